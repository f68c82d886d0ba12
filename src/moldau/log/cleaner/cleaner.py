"""Compaction of one log, off the loop.

A `CleanJob` is made on the loop, which decides what to clean; `run`, on any thread, reads the sources through handles
of its own and writes `.cleaned` files; `finish`, on the loop again, puts them in place. The owner may append, read,
roll and retain in the meantime: if a source is gone when the job is done, its group is thrown away. A truncation, the
deletion of the topic or anything else that ends the incarnation of the log (`incarnation.Incarnation`) aborts it.

Nothing is compacted before it is flushed: a newer value that a crash takes must not have cost us the older one. A
cleaned segment ends where its last source did, if need be with an empty batch: gaps are inside of segments, never
between them, so that recovery knows what it replaces, and a gap between segments for a loss. The swap is ordered so
that recovery can finish or undo it at any point: `.cleaned` (durable, but worth nothing) becomes `.swap` (worth more
than the sources), the sources are renamed, `.swap` gets its final name.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from moldau.log.cleaner.chunks import BatchFields, Chunk, CleanOutput, read_chunks
from moldau.log.cleaner.cleanable import LogToClean
from moldau.log.cleaner.filter import CleanFilter, CleanStats, TransactionState
from moldau.log.cleaner.offset_map import OffsetMap
from moldau.log.cleaner.scan import no_records, scan_batches, scan_records
from moldau.log.cleaner.throttle import UNLIMITED_BYTES_PER_SECOND, Throttle
from moldau.log.config import LogConfig
from moldau.log.errors import CleaningAborted, CorruptRecord, IncarnationOver, LogError
from moldau.log.flush import FlushJob
from moldau.log.index.offset_index import ENTRY_BYTES as OFFSET_ENTRY_BYTES
from moldau.log.index.offset_index import MAX_RELATIVE_OFFSET
from moldau.log.index.time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from moldau.log.index.txn_index import AbortedTxn
from moldau.log.open_segments import OpenSegments
from moldau.log.segment import LOG_SUFFIX, Segment
from moldau.log.segments import CLEANED_SUFFIX, SWAP_SUFFIX
from moldau.records import LOG_OVERHEAD_BYTES, CorruptBatch, RecordsError, read_header
from moldau.records.batch import CODEC_MASK, CONTROL_FLAG, TRANSACTIONAL_FLAG
from moldau.records.reader import read_body
from moldau.seams import Disk
from moldau.seams.disk import is_shortage

_PACE_BYTES = 1 << 16
_NOT_PLAIN = CODEC_MASK | TRANSACTIONAL_FLAG | CONTROL_FLAG


@dataclass(slots=True, frozen=True)
class _Source:
    """A segment to clean: the log's own object, to recognise it by, and a private one to read with."""

    original: Segment
    reader: Segment
    end_offset: int  # where the next one begins
    aborted: list[AbortedTxn]


@dataclass(slots=True, frozen=True)
class _Cleaned:
    """What became of a group of segments."""

    sources: list[_Source]
    segment: Segment


class CleanJob:
    def __init__(
        self,
        target: LogToClean,
        *,
        memory_bytes: int = 128 << 20,
        throttle: Throttle | None = None,
    ) -> None:
        """On the loop: note what is to be cleaned."""
        log = target.log
        self.log = log
        self.target = target
        self.stats = CleanStats()
        self.error: LogError | OSError | None = None
        self._incarnation = log.incarnation
        self.end_offset = target.first_dirty_offset  # where the log is clean up to, once finished
        self._config: LogConfig = log.config
        self._disk: Disk = log.context.disk
        self._throttle = throttle or Throttle(lambda: UNLIMITED_BYTES_PER_SECOND, log.context.clock)
        self._map = OffsetMap(memory_bytes, target.first_dirty_offset)
        self._now_ms = log.context.clock.wall_ms()
        self._stopped = False
        self._unpaid_bytes = 0
        self._flush = FlushJob(log)
        self._files = OpenSegments(1 << 16)
        self._sources = [self._source(s) for s in log.segments if s.base_offset < target.first_uncleanable_offset]
        dirty = [s for s in log.segments if s.base_offset <= target.first_dirty_offset]
        place = dirty[-1].find(target.first_dirty_offset) if dirty else None
        self._dirty_base = dirty[-1].base_offset if dirty else 0
        self._dirty_position = place.position if place else 0
        self._last_offsets = {
            entry.producer_id: (entry.last_data_offset, entry.epoch) for entry in log.producers.producers.values()
        }
        self._cleaned: list[_Cleaned] = []

    def _source(self, segment: Segment) -> _Source:
        end = self.log.end_offset_of(segment)
        return _Source(
            segment, segment.private_copy(self._files), end, self.log.aborted_transactions(segment.base_offset, end)
        )

    def stop(self) -> None:
        """From any thread: give up soon. The log stays as it is."""
        self._stopped = True

    # -- on any thread

    def run(self) -> None:
        try:
            self._flush_sources()
            self._build_map()
            groups = self._groups()
            clean = CleanFilter(
                self._map,
                self._now_ms,
                self._config.delete_retention_ms,
                frozenset(group[-1].end_offset for group in groups),
                self._last_offsets,
                self._config.max_decompressed_bytes,
                stats=self.stats,
            )
            for group in groups:
                self._cleaned.append(self._clean_group(group, clean))
        except (LogError, OSError) as error:
            self._give_up(error)
        except Exception as error:  # whatever is wrong with this log, the cleaner goes on with the others
            self._give_up(LogError(f"{type(error).__name__}: {error}"))
        finally:
            for source in self._sources:
                source.reader.close_files()

    def _flush_sources(self) -> None:
        self._flush.run()
        if self._flush.end_offset is None:
            raise self._flush.error or CleaningAborted("the log was moved away")

    def _give_up(self, error: LogError | OSError) -> None:
        if isinstance(error, OSError) and is_shortage(error):  # nothing is wrong with the disk: the next round tries
            error = CleaningAborted(f"too many files are open: {error}; raise the limit on them (ulimit -n)")
        self.error = error
        for cleaned in self._cleaned:
            with contextlib.suppress(OSError):  # the next start removes them
                cleaned.segment.remove_files()
        self._cleaned.clear()

    def _pace(self, size: int) -> None:
        """Account for bytes read or written; many batches are small, so the throttle hears of them together."""
        self._check_wanted()
        self._unpaid_bytes += size
        if self._unpaid_bytes >= _PACE_BYTES:
            self._throttle.spend(self._unpaid_bytes)
            self._unpaid_bytes = 0

    def _check_wanted(self, originals: Sequence[Segment] = ()) -> None:
        """Any thread; and on the loop, before anything takes the place of `originals`."""
        if self._stopped:
            raise CleaningAborted("told to stop")
        self._incarnation.check()
        current = self.log.segments
        if not all(segment in current for segment in originals):
            raise CleaningAborted("a source was removed meanwhile")

    def _build_map(self) -> None:
        """Note the newest offset of every key in the dirty part, as far as memory reaches."""
        newest = self._map
        transactions = TransactionState()
        for source in self._sources:
            if source.reader.base_offset < self._dirty_base:
                continue
            # One that ended before the dirty part says nothing about its producer's next, which may be committed.
            transactions.add_aborted([txn for txn in source.aborted if txn.last_offset >= newest.first_offset])
            position = self._dirty_position if source.reader.base_offset == self._dirty_base else 0
            for chunk in read_chunks(source.reader, position, check_crcs=True):
                self._pace(chunk.size)
                if not self._map_chunk(chunk, transactions):
                    return
            newest.latest_offset = max(newest.latest_offset, source.end_offset - 1)

    def _map_chunk(self, chunk: Chunk, transactions: TransactionState) -> bool:
        """Whether all of it went into the map; that ends with a batch. Plain batches are put there together."""
        newest = self._map
        if not chunk.attributes & _NOT_PLAIN and chunk.record_count < newest.max_entries - len(newest):
            self._map_plain(chunk.data, chunk.batches, 0)
            return True
        plain: list[BatchFields] = []  # not mapped yet, from `plain_start` to `end`
        room = newest.max_entries - len(newest)
        plain_start = end = 0
        for fields in chunk.batches:
            if room <= 0:  # perhaps: keys may come twice
                self._map_plain(chunk.data, plain, plain_start)
                plain, plain_start = [], end
                room = newest.max_entries - len(newest)
                if room <= 0:
                    return False
            base_offset, length, _, _, attributes, delta, _, count = fields
            start = end
            end += LOG_OVERHEAD_BYTES + length
            if attributes & _NOT_PLAIN:
                self._map_plain(chunk.data, plain, plain_start)
                plain, plain_start = [], end
                self._map_special(memoryview(chunk.data)[start:end], transactions)
                newest.latest_offset = base_offset + delta
                room = newest.max_entries - len(newest)
            else:
                plain.append(fields)
                room -= count
        self._map_plain(chunk.data, plain, plain_start)
        return True

    def _map_plain(self, data: bytes, batches: list[BatchFields], start: int) -> None:
        """Batches that follow each other in `data`."""
        if not batches:
            return
        found = no_records(data)
        try:
            scan_batches(found, batches, start)
        except CorruptBatch as error:
            message = f"a batch between offsets {batches[0][0]} and {batches[-1][0]} cannot be cleaned: {error}"
            raise CorruptRecord(message) from error
        self._map.put_batch(found)
        base_offset, _, _, _, _, delta, _, _ = batches[-1]
        self._map.latest_offset = base_offset + delta

    def _map_special(self, batch: memoryview, transactions: TransactionState) -> None:
        """A batch that is compressed or belongs to a transaction."""
        header = read_header(batch)
        if header.is_control:
            transactions.on_control(header, batch)
        elif not transactions.on_data(header):
            try:
                body = read_body(batch, 0, header, self._config.max_decompressed_bytes)
                self._map.put_batch(scan_records(body, header.record_count, header.base_offset))
            except RecordsError as error:
                raise CorruptRecord(f"the batch at offset {header.base_offset} cannot be cleaned: {error}") from error

    def _groups(self) -> list[list[_Source]]:
        """Neighbours that fit into one segment together, up to where the map reaches."""
        groups: list[list[_Source]] = []
        size = index_bytes = time_index_bytes = 0
        sources = [s for s in self._sources if s.reader.base_offset <= self._map.latest_offset]
        for source in sources:
            reader = source.reader
            index_size = reader.offset_index.file.count * OFFSET_ENTRY_BYTES
            time_index_size = reader.time_index.file.count * TIME_ENTRY_BYTES
            if (
                groups
                and size + reader.size <= self._config.segment_bytes
                and index_bytes + index_size <= self._config.segment_index_bytes
                and time_index_bytes + time_index_size <= self._config.segment_index_bytes
                and source.end_offset - 1 - groups[-1][0].reader.base_offset <= MAX_RELATIVE_OFFSET
            ):
                groups[-1].append(source)
            else:
                groups.append([source])
                size = index_bytes = time_index_bytes = 0
            size += reader.size
            index_bytes += index_size
            time_index_bytes += time_index_size
        return groups

    def _clean_group(self, group: list[_Source], clean: CleanFilter) -> _Cleaned:
        first = group[0].reader
        cleaned = first.cleaned_copy(self._files, self._config, CLEANED_SUFFIX)
        cleaned.remove_files()
        output = CleanOutput(cleaned)
        try:
            for source in group:
                clean.transactions.add_aborted(source.aborted)
                # What is in the map was checked on the way there; the filter checks the rest.
                for chunk in read_chunks(source.reader, 0, check_crcs=False):
                    self._pace(chunk.size)
                    for aborted in clean.clean_chunk(chunk, output):
                        cleaned.txn_index.append(aborted)
                    self._pace(output.write())
            self._pace(output.write(0))
            self.stats.bytes_written += cleaned.size
            cleaned.create_file()
            cleaned.seal()
            cleaned.flush()
            modified_ms = self._disk.modified_ms(group[-1].reader.path(LOG_SUFFIX))
            self._disk.set_modified_ms(cleaned.path(LOG_SUFFIX), modified_ms)
            self._disk.flush_dir(cleaned.folder)
        except BaseException:
            cleaned.close_files()
            with contextlib.suppress(OSError):
                cleaned.remove_files()
            raise
        cleaned.close_files()
        return _Cleaned(group, cleaned)

    # -- on the loop

    def finish(self) -> bool:
        """Put the cleaned segments in place; whether the whole job succeeded. Disk errors take the log offline."""
        self._flush.finish()
        try:
            self._put_in_place()
        except OSError as error:
            self.error = error
        if self._incarnation.is_over and not self._incarnation.is_disk_error(self.error):
            self.error = CleaningAborted(f"the log {self._incarnation.ended} meanwhile")  # whatever it met on the way
        if isinstance(self.error, OSError):
            raise self.log.fail(self.error) from self.error
        if self.error is None:
            self.end_offset = self._map.latest_offset + 1
        return self.error is None

    def _put_in_place(self) -> None:
        """Group by group, but nothing that is no longer wanted."""
        for cleaned in self._cleaned:
            originals = [source.original for source in cleaned.sources]
            try:
                self._check_wanted(originals)
            except (CleaningAborted, IncarnationOver) as error:
                self.error = error
                cleaned.segment.remove_files()
                continue
            cleaned.segment.rename(SWAP_SUFFIX)
            cleaned.segment.join(self.log.context.open_segments)
            self.log.replace_segments(originals, cleaned.segment)

    def run_and_finish(self) -> bool:
        self.run()
        return self.finish()
