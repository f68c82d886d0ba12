"""Compaction of one log, off the loop.

A `CleanJob` is made on the loop, which decides what to clean; `run`, on any thread, reads the sources through handles
of its own and writes `.cleaned` files; `finish`, on the loop again, puts them in place. The owner may append, read,
roll, retain and truncate in the meantime: sources are never written to, and if one is gone when the job is done, its
group is thrown away.

Nothing is compacted before it is flushed: a newer value that a crash takes must not have cost us the older one. And
the recovery point on disk is raised first, because compaction leaves holes, which recovery would take for damage. The
swap is ordered so that recovery can finish or undo it at any point: `.cleaned` (durable, but worth nothing) becomes
`.swap` (worth more than the sources), the sources are renamed, `.swap` gets its final name.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from moldau.log.clean_filter import CleanFilter, CleanStats, TransactionState
from moldau.log.clean_scan import scan_records
from moldau.log.cleanable import LogToClean
from moldau.log.config import LogConfig
from moldau.log.errors import CleaningAborted, CorruptRecord, LogError
from moldau.log.flush import FlushJob
from moldau.log.offset_index import ENTRY_BYTES as OFFSET_ENTRY_BYTES
from moldau.log.offset_index import MAX_RELATIVE_OFFSET
from moldau.log.offset_map import OffsetMap
from moldau.log.open_segments import OpenSegments
from moldau.log.segment import LOG_SUFFIX, Segment
from moldau.log.segments import CLEANED_SUFFIX, SWAP_SUFFIX
from moldau.log.throttle import UNLIMITED_BYTES_PER_SECOND, Throttle
from moldau.log.time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from moldau.log.txn_index import AbortedTxn
from moldau.records import BatchHeader, CorruptBatch, RecordsError, check_crc, read_header
from moldau.records.reader import read_body
from moldau.seams import Disk

_WRITE_BYTES = 1 << 20
_PACE_BYTES = 1 << 16


@dataclass(slots=True, frozen=True)
class _Source:
    """A segment to clean: the log's own object, to recognise it by, and a private one to read with."""

    original: Segment
    reader: Segment
    aborted: list[AbortedTxn]


@dataclass(slots=True, frozen=True)
class _Cleaned:
    """What became of a group of segments."""

    sources: list[_Source]
    segment: Segment


class _Output:
    """What is kept, on its way into a cleaned segment: written a mebibyte at a time, because many batches are small."""

    __slots__ = ("_batches", "_buffers", "_segment", "_size")

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._buffers: list[bytes | bytearray | memoryview] = []
        self._batches: list[tuple[int, BatchHeader]] = []
        self._size = 0

    def add(self, header: BatchHeader, batch: bytes | bytearray | memoryview) -> None:
        self._buffers.append(batch)
        self._batches.append((self._size, header))
        self._size += len(batch)
        if self._size >= _WRITE_BYTES:
            self.write()

    def write(self) -> None:
        if self._buffers:
            self._segment.append_run(b"".join(self._buffers), 0, self._batches)
            self._buffers, self._batches, self._size = [], [], 0


class CleanJob:
    def __init__(
        self,
        target: LogToClean,
        *,
        memory_bytes: int = 128 << 20,
        throttle: Throttle | None = None,
        raise_recovery_point: Callable[[int], None] = lambda offset: None,
    ) -> None:
        """On the loop: note what is to be cleaned. `raise_recovery_point` writes the log's checkpoint, off the loop."""
        log = target.log
        self.log = log
        self.target = target
        self.stats = CleanStats()
        self.error: LogError | OSError | None = None
        self.end_offset = target.first_dirty_offset  # where the log is clean up to, once finished
        self._config: LogConfig = log.config
        self._disk: Disk = log.context.disk
        self._throttle = throttle or Throttle(lambda: UNLIMITED_BYTES_PER_SECOND, log.context.clock)
        self._map = OffsetMap(memory_bytes, target.first_dirty_offset)
        self._now_ms = log.context.clock.wall_ms()
        self._stopped = False
        self._unpaid_bytes = 0
        self._raise_recovery_point = raise_recovery_point
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
            segment, segment.private_copy(self._files), self.log.aborted_transactions(segment.base_offset, end)
        )

    def stop(self) -> None:
        """From any thread: give up soon. The log stays as it is."""
        self._stopped = True

    # -- on any thread

    def run(self) -> None:
        try:
            self._flush.run()
            if self._flush.end_offset is None:
                raise self._flush.error or CleaningAborted("the log was moved away")
            self._raise_recovery_point(self._flush.end_offset)
            self._build_map()
            clean = CleanFilter(
                self._map,
                self._now_ms,
                self._config.delete_retention_ms,
                self.target.first_uncleanable_offset,
                self._last_offsets,
                self._config.max_decompressed_bytes,
                stats=self.stats,
            )
            for group in self._groups():
                self._cleaned.append(self._clean_group(group, clean))
        except (LogError, OSError) as error:
            self.error = error
        finally:
            for source in self._sources:
                source.reader.close_files()

    def _pace(self, size: int) -> None:
        """Account for bytes read or written; many batches are small, so the throttle hears of them together."""
        if self._stopped:
            raise CleaningAborted("told to stop")
        self._unpaid_bytes += size
        if self._unpaid_bytes >= _PACE_BYTES:
            self._throttle.spend(self._unpaid_bytes)
            self._unpaid_bytes = 0

    def _build_map(self) -> None:
        """Note the newest offset of every key in the dirty part, as far as memory reaches."""
        newest = self._map
        transactions = TransactionState()
        for index, source in enumerate(self._sources):
            if source.reader.base_offset < self._dirty_base:
                continue
            transactions.add_aborted(source.aborted)
            position = self._dirty_position if source.reader.base_offset == self._dirty_base else 0
            for _, header, batch in _checked_batches(source.reader, position):
                if newest.is_full:
                    return
                self._pace(len(batch))
                if header.is_control:
                    transactions.on_control(header, batch)
                elif not transactions.on_data(header):
                    self._map_batch(header, batch)
                newest.latest_offset = max(newest.latest_offset, header.last_offset)
            following = self._sources[index + 1].reader.base_offset if index + 1 < len(self._sources) else None
            end = self.target.first_uncleanable_offset if following is None else following
            newest.latest_offset = max(newest.latest_offset, end - 1)

    def _map_batch(self, header: BatchHeader, batch: memoryview) -> None:
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
        for position, source in enumerate(sources):
            reader = source.reader
            index_size = reader.offset_index.file.count * OFFSET_ENTRY_BYTES
            time_index_size = reader.time_index.file.count * TIME_ENTRY_BYTES
            following = sources[position + 1].reader.base_offset if position + 1 < len(sources) else None
            last_offset = (self.target.first_uncleanable_offset if following is None else following) - 1
            if (
                groups
                and size + reader.size <= self._config.segment_bytes
                and index_bytes + index_size <= self._config.segment_index_bytes
                and time_index_bytes + time_index_size <= self._config.segment_index_bytes
                and last_offset - groups[-1][0].reader.base_offset <= MAX_RELATIVE_OFFSET
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
        output = _Output(cleaned)
        try:
            for source in group:
                clean.transactions.add_aborted(source.aborted)
                for _, header, batch in _checked_batches(source.reader, 0):
                    self._pace(len(batch))
                    kept, indexed = clean.clean(header, batch)
                    if kept is not None:
                        self._pace(len(kept))
                        output.add(header if kept is batch else read_header(kept), kept)
                    for aborted in indexed:
                        cleaned.txn_index.append(aborted)
            output.write()
            cleaned.create_file()
            cleaned.seal()
            cleaned.flush()
            modified_ms = self._disk.modified_ms(group[-1].reader.path(LOG_SUFFIX))
            self._disk.set_modified_ms(cleaned.path(LOG_SUFFIX), modified_ms)
            self._disk.flush_dir(cleaned.folder)
        except BaseException:
            cleaned.close_files()
            cleaned.remove_files()
            raise
        cleaned.close_files()
        return _Cleaned(group, cleaned)

    # -- on the loop

    def finish(self) -> bool:
        """Put the cleaned segments in place; whether the whole job succeeded. Disk errors take the log offline."""
        self._flush.finish()
        for cleaned in self._cleaned:
            originals = [source.original for source in cleaned.sources]
            current = self.log.segments
            if self.error is not None or self.log.is_offline or not all(s in current for s in originals):
                cleaned.segment.remove_files()
                self.error = self.error or CleaningAborted("a source was removed meanwhile")
                continue
            cleaned.segment.rename(SWAP_SUFFIX)
            cleaned.segment.join(self.log.context.open_segments)
            self.log.replace_segments(originals, cleaned.segment)
        if isinstance(self.error, OSError):
            raise self.log.fail(self.error) from self.error
        if self.error is None:
            self.end_offset = self._map.latest_offset + 1
        return self.error is None

    def run_and_finish(self) -> bool:
        self.run()
        return self.finish()


def _checked_batches(segment: Segment, position: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Every batch of a source; a damaged one ends the cleaning, for the compaction must not bless it with a new CRC."""
    end = position
    for at, header, batch in segment.batches(position):
        try:
            check_crc(batch, 0, header)
        except CorruptBatch as error:
            raise CorruptRecord(f"{segment!r}, position {at}: {error}") from error
        yield at, header, batch
        end = at + len(batch)
    if end != segment.size:
        raise CorruptRecord(f"{segment!r} holds no whole batch at position {end}")
