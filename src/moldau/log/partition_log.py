"""One partition's log: a folder of segments that grows at the end and is cut at the start.

Owned by one thread, the event loop's: every method here runs there and is quick. Slow work is given out as jobs
(`flush.FlushJob`, `cleaner.CleanJob`, …) whose `run` any thread may call while the owner keeps appending, and whose
`finish` the owner calls afterwards.

Invariants
- log start offset <= last stable offset <= high watermark <= log end offset.
- Segments are sorted, the last one is active; there is always one. Offsets never change and never repeat.
- A refused or failed append changes nothing. After a disk error the log is offline: it refuses everything until it
  is opened again, which recovers it.
- `flushed_offset` counts what survives a power loss; `recovery_point` never lies beyond what was flushed.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from moldau.log.checkpoints import PARTITION_METADATA, write_topic_id
from moldau.log.config import LogConfig
from moldau.log.context import LogContext
from moldau.log.epoch_cache import UNDEFINED_OFFSET, EpochCache, EpochEndOffset
from moldau.log.errors import (
    CorruptRecord,
    LogError,
    OffsetOutOfRange,
    RecordListTooLarge,
    StorageError,
    UnexpectedAppendOffset,
)
from moldau.log.flush import FlushJob
from moldau.log.producer_state import AppendOrigin, ProducerEntry, ProducerState
from moldau.log.replay import rebuild_producer_state
from moldau.log.retention import deletable_segments
from moldau.log.segment import SUFFIXES, Segment
from moldau.log.snapshots import Snapshots
from moldau.log.txn_index import AbortedTxn
from moldau.log.validation import read_marker, validate_for_leader
from moldau.records import BatchHeader, CorruptBatch, EndTransactionMarker, check_crc, iter_batches, stamp
from moldau.seams import FileRegion

WritableBuffer = bytearray | memoryview
DELETED_SUFFIX = ".deleted"
UNKNOWN_OFFSET = -1


class AppendInfo(NamedTuple):
    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time: int  # -1 unless the topic stamps it
    log_start_offset: int
    size_bytes: int
    duplicate: bool = False  # a repetition of a batch that is in the log: the offsets are those of then
    needs_flush: bool = False  # flush.messages demands a flush before this append counts


class ReadInfo(NamedTuple):
    """Whole batches from the one that holds the asked offset; the last may be cut by the byte limit."""

    region: FileRegion | None
    first_offset: int  # base offset of the first batch in the region, or the asked offset
    segment_base_offset: int
    position: int
    first_batch_incomplete: bool = False

    @property
    def length(self) -> int:
        return self.region.length if self.region else 0


class ActiveProducer(NamedTuple):
    """A row of DescribeProducers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class PartitionLog:
    """Made by `recovery.open_log`, which finds out what is on the disk."""

    def __init__(
        self,
        context: LogContext,
        folder: str,
        topic: str,
        partition: int,
        config: LogConfig,
        *,
        segments: list[Segment],
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        epochs: EpochCache,
        producers: ProducerState,
        snapshots: Snapshots,
        topic_id: bytes | None = None,
        created: bool = True,
    ) -> None:
        self.context = context
        self._disk = context.disk
        self._clock = context.clock
        self.folder = folder
        self.topic = topic
        self.partition = partition
        self.config = config
        self.topic_id = topic_id
        self.epochs = epochs
        self.producers = producers
        self.snapshots = snapshots
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._active = segments[-1]
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self._high_watermark = log_start_offset
        self.flushed_offset = recovery_point
        self.last_flush_ms = context.clock.wall_ms()
        # Segments from here on are not known to be on the disk with all their files.
        self._flush_from = self.segment_for(recovery_point).base_offset
        self._names_changed = True  # files were created or renamed since the folder was last flushed
        self._created = created  # the folder itself is not known to be on the disk
        self.truncations = 0  # tells a job whether the log it was made for is still the same
        self._upper_bound: tuple[int, Segment, int] | None = None
        self._removals: list[tuple[int, list[str]]] = []
        self._failure: OSError | None = None

    def __repr__(self) -> str:
        return f"PartitionLog({self.folder}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def topic_partition(self) -> tuple[str, int]:
        return self.topic, self.partition

    @property
    def log_dir(self) -> str:
        return self.folder.rpartition("/")[0]

    # -- failure

    @property
    def is_offline(self) -> bool:
        return self._failure is not None

    def fail(self, error: OSError) -> StorageError:
        """Take the log offline. Returns the error to raise, so that a caller may write `raise log.fail(error)`."""
        first = self._failure is None
        self._failure = self._failure or error
        if first:
            self.context.on_failure(self.log_dir, error)
        return StorageError(f"log dir {self.log_dir} failed ({error}): replace the disk or free space, then restart")

    def _check_online(self) -> None:
        if self._failure is not None:
            raise StorageError(f"log dir {self.log_dir} is offline ({self._failure}): restart the node to recover it")

    # -- append

    def append_as_leader(
        self,
        buffer: WritableBuffer,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        *,
        verification_guard: object | None = None,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """Append the one batch in `buffer`, giving it offsets and the leader's epoch, in place."""
        if self._failure is not None:
            self._check_online()
        config = self.config
        now_ms = self._clock.wall_ms()
        batch = validate_for_leader(buffer, config, origin, now_ms)
        buffer, header, size, max_timestamp, log_append_time = batch
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        marker: EndTransactionMarker | None = None
        if header.producer_id >= 0:
            if header.is_control:
                marker = read_marker(buffer, header)
                if marker is not None:
                    self.producers.check_marker(header, marker, transaction_version)
            else:
                duplicate = self.producers.check_data(header, origin)
                if duplicate is not None:
                    return AppendInfo(
                        duplicate.first_offset,
                        duplicate.last_offset,
                        duplicate.timestamp,
                        -1 if log_append_time < 0 else duplicate.timestamp,
                        self.log_start_offset,
                        0,
                        duplicate=True,
                    )
                if config.transaction_partition_verification_enable and header.is_transactional:
                    self.producers.check_verified(header, verification_guard)
        try:
            if self._must_roll(size, last_offset, max_timestamp, now_ms):
                self.roll()
            if leader_epoch != self.epochs.latest:
                self.epochs.assign(leader_epoch, base_offset)
            stamp(buffer, 0, base_offset, leader_epoch)
            self._active.append(buffer, last_offset, max_timestamp)
            self.log_end_offset = last_offset + 1
            if header.producer_id >= 0:
                self._note_producer(header, base_offset, max_timestamp, marker)
        except OSError as error:
            raise self.fail(error) from error
        self.producers.map_end_offset = last_offset + 1
        return AppendInfo(
            base_offset,
            last_offset,
            max_timestamp,
            log_append_time,
            self.log_start_offset,
            size,
            needs_flush=last_offset + 1 - self.flushed_offset >= config.flush_messages,
        )

    def append_as_follower(self, buffer: bytes | bytearray | memoryview, leader_epoch: int | None = None) -> AppendInfo:
        """Append whole batches as the leader stamped them; a cut-off one at the end is left out.

        Batches of an epoch newer than `leader_epoch` are left out too: the leader they come from is not the one that
        was asked, and the next fetch will tell.
        """
        self._check_online()
        batches = self._check_followed(buffer, leader_epoch)
        if not batches:
            return AppendInfo(UNKNOWN_OFFSET, UNKNOWN_OFFSET, -1, -1, self.log_start_offset, 0)
        now_ms = self._clock.wall_ms()
        view = memoryview(buffer)
        try:
            run: list[tuple[int, BatchHeader]] = []
            for position, header in batches:
                pending = position - run[0][0] if run else 0
                if self._must_roll(pending + header.size_bytes, header.last_offset, header.max_timestamp, now_ms):
                    self._append_run(view, run)
                    run = []
                    self.roll(header.base_offset)
                run.append((position, header))
            self._append_run(view, run)
        except OSError as error:
            raise self.fail(error) from error
        first, last = batches[0][1], batches[-1][1]
        size = batches[-1][0] + last.size_bytes
        max_timestamp = max(header.max_timestamp for _, header in batches)
        needs_flush = last.next_offset - self.flushed_offset >= self.config.flush_messages
        return AppendInfo(
            first.base_offset,
            last.last_offset,
            max_timestamp,
            -1,
            self.log_start_offset,
            size,
            needs_flush=needs_flush,
        )

    def _check_followed(
        self, buffer: bytes | bytearray | memoryview, leader_epoch: int | None
    ) -> list[tuple[int, BatchHeader]]:
        batches = []
        next_offset = self.log_end_offset
        try:
            for position, header in iter_batches(buffer):
                check_crc(buffer, position, header)
                if leader_epoch is not None and header.leader_epoch > leader_epoch:
                    break
                if header.base_offset < next_offset:
                    raise UnexpectedAppendOffset(
                        f"batch at offset {header.base_offset} does not continue the log at {next_offset}",
                        header.base_offset,
                        header.last_offset,
                    )
                next_offset = header.next_offset
                batches.append((position, header))
        except CorruptBatch as error:
            raise CorruptRecord(str(error)) from error
        return batches

    def _append_run(self, view: memoryview, run: list[tuple[int, BatchHeader]]) -> None:
        """Write batches that go into the active segment with one call, then note each."""
        if not run:
            return
        start = run[0][0]
        last = run[-1]
        for _, header in run:
            if header.leader_epoch > self.epochs.latest:
                self.epochs.assign(header.leader_epoch, header.base_offset)
        self._active.append_run(view[start : last[0] + last[1].size_bytes], start, run)
        self.log_end_offset = last[1].next_offset
        for position, header in run:
            if header.producer_id >= 0:
                marker = None
                if header.is_control:
                    marker = read_marker(view[position : position + header.size_bytes], header)
                self._note_producer(header, header.base_offset, header.max_timestamp, marker)
        self.producers.map_end_offset = self.log_end_offset

    def _note_producer(
        self, header: BatchHeader, base_offset: int, max_timestamp: int, marker: EndTransactionMarker | None
    ) -> None:
        if not header.is_control:
            self.producers.update_data(header, base_offset, max_timestamp)
            return
        if marker is None:
            return
        completed = self.producers.update_marker(header, base_offset, marker)
        if completed is not None:
            if completed.aborted:
                last_stable = self.producers.last_stable_offset_after(completed)
                aborted = AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, last_stable)
                self._active.txn_index.append(aborted)
            self.producers.complete(completed)

    # -- roll

    def _must_roll(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        active, config = self._active, self.config
        used = active.size
        if used + size > config.segment_bytes:
            if size > config.segment_bytes:
                raise RecordListTooLarge(
                    f"{size} bytes do not fit into a segment of {config.segment_bytes}: raise segment.bytes"
                )
            return used > 0
        if active.index_full or last_offset - active.base_offset > 0x7FFFFFFF:
            return True
        if not used:
            return False
        first = active.first_timestamp
        waited = max_timestamp - first if first is not None and first >= 0 else now_ms - active.created_ms
        return waited > config.max_segment_ms - active.roll_jitter_ms

    def roll(self, base_offset: int | None = None) -> Segment:
        """Begin a new segment at the log end offset (or a later one: followers meet gaps of compacted leaders)."""
        offset = self.log_end_offset if base_offset is None else max(base_offset, self.log_end_offset)
        former = self._active
        if former.size == 0 and former.base_offset == offset:
            return former
        former.seal()
        segment = self._new_segment(offset)
        self._segments = [*self._segments, segment]
        self._bases = [*self._bases, offset]
        self._active = segment
        self._names_changed = True
        self.producers.map_end_offset = offset
        self.snapshots.take(self.producers)
        return segment

    def _new_segment(self, base_offset: int) -> Segment:
        config = self.config
        jitter_ms = self.context.random.below(config.segment_jitter_ms + 1) if config.segment_jitter_ms > 0 else 0
        segment = Segment(
            self._disk,
            self.context.open_segments,
            self.folder,
            base_offset,
            config,
            created_ms=self._clock.wall_ms(),
            roll_jitter_ms=min(jitter_ms, config.segment_ms),
        )
        for kind in SUFFIXES:  # what an earlier crash may have left under this name
            if self._disk.exists(segment.path(kind)):
                self._disk.remove(segment.path(kind))
        _ = segment.file
        return segment

    # -- read

    def segment_for(self, offset: int) -> Segment:
        """The segment that holds `offset`, or the first one if it lies before."""
        return self._segments[max(0, bisect_right(self._bases, offset) - 1)]

    @property
    def segments(self) -> list[Segment]:
        """Oldest first, the last one active. The list is never changed, only replaced."""
        return self._segments

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        upper_bound_offset: int | None = None,
        min_one_batch: bool = True,
    ) -> ReadInfo:
        """Batches from the one holding `offset` to the byte limit, none reaching `upper_bound_offset` (the high
        watermark or the last stable offset; the end of the log without one)."""
        self._check_online()
        bound = self.log_end_offset if upper_bound_offset is None else min(upper_bound_offset, self.log_end_offset)
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is not in {self.log_start_offset}..{self.log_end_offset} of "
                f"{self.topic}-{self.partition}"
            )
        index = max(0, bisect_right(self._bases, offset) - 1)
        if offset >= bound:
            return ReadInfo(None, offset, self._segments[index].base_offset, UNKNOWN_OFFSET)
        try:
            for segment in self._segments[index:]:
                place = segment.find(offset)
                if place is None:  # the compaction took the rest of this segment
                    continue
                limit = self._end_position(segment, bound) - place.position
                if limit <= 0:
                    break
                wanted = max(max_bytes, place.size) if min_one_batch else max_bytes
                if wanted < place.size:
                    return ReadInfo(None, place.base_offset, segment.base_offset, place.position, True)
                region = FileRegion(segment.file, place.position, min(wanted, limit))
                return ReadInfo(region, place.base_offset, segment.base_offset, place.position)
        except OSError as error:
            raise self.fail(error) from error
        return ReadInfo(None, offset, self._segments[index].base_offset, UNKNOWN_OFFSET)

    def _end_position(self, segment: Segment, bound: int) -> int:
        """Where in `segment` the batches below `bound` end."""
        if bound >= self.log_end_offset or (segment is not self._active and bound >= self._next_base(segment)):
            return segment.size
        cached = self._upper_bound
        if cached is not None and cached[0] == bound and cached[1] is segment:
            return cached[2]
        place = segment.find(bound)
        position = segment.size if place is None else place.position
        self._upper_bound = (bound, segment, position)
        return position

    def _next_base(self, segment: Segment) -> int:
        index = bisect_right(self._bases, segment.base_offset)
        return self._bases[index] if index < len(self._bases) else self.log_end_offset

    # -- offsets

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    def update_high_watermark(self, offset: int) -> int:
        """Set by replication; kept within the log. Decides transactions whose markers it passes."""
        offset = min(max(offset, self.log_start_offset), self.log_end_offset)
        self._high_watermark = offset
        self.producers.on_high_watermark(offset)
        return offset

    @property
    def last_stable_offset(self) -> int:
        """Consumers with read_committed stop here: the first undecided transaction, or the high watermark."""
        unstable = self.producers.first_unstable_offset
        if unstable is None or unstable >= self._high_watermark:
            return self._high_watermark
        return max(unstable, self.log_start_offset)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def recovery_point(self) -> int:
        """What may be checkpointed: everything below needs no look after a crash, not even at its indexes."""
        if self._flush_from < self._active.base_offset:
            return min(self.flushed_offset, self._next_base(self.segment_for(self._flush_from)) - 1)
        return self.flushed_offset

    @property
    def active_segment(self) -> Segment:
        return self._active

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset | None:
        found = self.epochs.end_offset_for(leader_epoch, self.log_end_offset)
        return None if found.end_offset == UNDEFINED_OFFSET else found

    def assign_epoch(self, leader_epoch: int) -> None:
        """A new leader notes where its epoch begins, before it has written anything."""
        try:
            self.epochs.assign(leader_epoch, self.log_end_offset)
        except OSError as error:
            raise self.fail(error) from error

    def assign_topic_id(self, topic_id: bytes) -> None:
        if self.topic_id is not None and self.topic_id != topic_id:
            raise LogError(f"{self.folder} belongs to another topic of the same name: it was deleted and created anew")
        if self.topic_id is None:
            try:
                write_topic_id(self._disk, self.folder, topic_id)
                self._created = self._names_changed = True
            except OSError as error:
                raise self.fail(error) from error
            self.topic_id = topic_id

    def active_producers(self) -> list[ActiveProducer]:
        return [
            ActiveProducer(
                entry.producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.txn_first_offset,
            )
            for entry in self.producers.producers.values()
        ]

    def producer(self, producer_id: int) -> ProducerEntry | None:
        return self.producers.producers.get(producer_id)

    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, *, supports_epoch_bump: bool = True
    ) -> object | None:
        """Before asking the coordinator about a transaction (KIP-890): pass the guard to the append that follows.
        None means the transaction is open in this partition already, and nothing needs to be asked."""
        now_ms = self._clock.wall_ms()
        return self.producers.start_verification(
            producer_id, sequence, epoch, now_ms, supports_epoch_bump=supports_epoch_bump
        )

    def has_open_transaction(self, producer_id: int) -> bool:
        entry = self.producers.producers.get(producer_id)
        return entry is not None and entry.txn_first_offset >= 0

    def aborted_transactions(self, first_offset: int, upper_bound_offset: int) -> list[AbortedTxn]:
        """For a read_committed fetch of [first_offset, upper_bound_offset): what the client must leave out."""
        found: list[AbortedTxn] = []
        index = max(0, bisect_right(self._bases, first_offset) - 1)
        for segment in self._segments[index:]:
            entries, complete = segment.txn_index.collect(first_offset, upper_bound_offset)
            found += entries
            if complete:
                break
        return found

    def headers(self, offset: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
        """Every batch header from the one holding `offset` on."""
        index = max(0, bisect_right(self._bases, offset) - 1)
        for segment in self._segments[index:]:
            place = segment.find(offset)
            if place is not None:
                for position, header in segment.headers(place.position):
                    yield segment, position, header

    # -- cut

    def truncate_to(self, offset: int) -> bool:
        """Remove everything at or after `offset`; whether there was anything."""
        self._check_online()
        if offset < 0:
            raise ValueError(f"cannot truncate {self.folder} to {offset}")
        try:
            if offset >= self.log_end_offset:
                self.epochs.truncate_from_end(self.log_end_offset)
                return False
            if offset < self._bases[0]:
                self.truncate_fully_and_start_at(offset)
                return True
            self._lower_recovery_point(offset)
            keep = bisect_right(self._bases, offset)
            removed = self._segments[keep:]
            self._set_segments(self._segments[:keep])
            self._discard(removed[::-1])  # last first: a crash in between leaves no hole
            if removed:
                self._disk.flush_dir(self.folder)
            self._active.truncate_to(offset)
            self._cut_at(offset, min(offset, self.log_start_offset))
            self.epochs.truncate_from_end(offset)
            self._reload_producers()
        except OSError as error:
            raise self.fail(error) from error
        return True

    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """Throw the whole log away; the next record gets `offset`."""
        self._check_online()
        try:
            self._lower_recovery_point(offset)
            former = self._segments
            self._discard(former[::-1])
            self._disk.flush_dir(self.folder)
            self._names_changed = True
            self._set_segments([self._new_segment(offset)])
            self._flush_from = offset
            self._cut_at(offset, offset if log_start_offset is None else log_start_offset)
            self.epochs.clear()
            self._reload_producers()
        except OSError as error:
            raise self.fail(error) from error

    def _lower_recovery_point(self, offset: int) -> None:
        self.truncations += 1
        if offset < self.flushed_offset:
            self.flushed_offset = offset
            self._flush_from = min(self._flush_from, self.segment_for(offset).base_offset)
            self.context.before_truncation(self)

    def _cut_at(self, log_end_offset: int, log_start_offset: int) -> None:
        self._upper_bound = None
        self.log_end_offset = log_end_offset
        self.log_start_offset = log_start_offset
        self._high_watermark = max(min(self._high_watermark, log_end_offset), log_start_offset)

    def _set_segments(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._active = segments[-1]

    def _reload_producers(self) -> None:
        rebuild_producer_state(
            self.producers,
            self.snapshots,
            self._segments,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            now_ms=self._clock.wall_ms(),
            expiration_ms=self.config.producer_id_expiration_ms,
        )

    def delete_records_before(self, offset: int) -> int:
        """DeleteRecords: move the log start offset up; files follow with the next retention. The new start."""
        self._check_online()
        if offset > self._high_watermark or offset < 0:
            raise OffsetOutOfRange(f"cannot delete up to {offset}: the high watermark is {self._high_watermark}")
        try:
            self._raise_log_start(offset)
        except OSError as error:
            raise self.fail(error) from error
        return self.log_start_offset

    def _raise_log_start(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epochs.truncate_from_start(offset)

    def apply_retention(self) -> int:
        """Remove whole segments that are too old, too many or before the log start; how many."""
        self._check_online()
        try:
            count = deletable_segments(
                self._segments,
                self.config,
                log_start_offset=self.log_start_offset,
                high_watermark=self._high_watermark,
                log_end_offset=self.log_end_offset,
                now_ms=self._clock.wall_ms(),
            )
            if not count:
                return 0
            if count == len(self._segments):
                self.roll()
            removed, kept = self._segments[:count], self._segments[count:]
            self._raise_log_start(kept[0].base_offset)
            self._set_segments(kept)
            self._discard(removed)
        except OSError as error:
            raise self.fail(error) from error
        return count

    def _discard(self, segments: list[Segment]) -> None:
        """Rename files out of the way; readers keep what they have open, the files go after a delay."""
        self._names_changed = True
        paths = []
        for segment in segments:
            segment.discard(DELETED_SUFFIX)
            paths += [segment.path(kind) for kind in SUFFIXES]
            if self.snapshots.forget(segment.base_offset):
                path = self.snapshots.path(segment.base_offset)
                if self._disk.exists(path):
                    self._disk.rename(path, path + DELETED_SUFFIX)
                    paths.append(path + DELETED_SUFFIX)
        if paths:
            self._removals.append((self._clock.wall_ms() + self.config.file_delete_delay_ms, paths))

    def take_removals(self, now_ms: int) -> list[str]:
        """Files whose time has come: remove them off the loop (`disk.remove`), it may take long."""
        due = [paths for at_ms, paths in self._removals if at_ms <= now_ms]
        self._removals = [entry for entry in self._removals if entry[0] > now_ms]
        return [path for paths in due for path in paths]

    # -- compaction: the last step of `cleaner.CleanJob`

    def replace_segments(self, former: list[Segment], cleaned: Segment) -> None:
        """Put a cleaned segment, whose files are called `.swap` and are durable, in the place of its sources.

        The sources are renamed first. A crash in between leaves the `.swap` files, and recovery finishes the job.
        """
        try:
            self._discard(former)
            cleaned.rename("")
            first = self._segments.index(former[0])
            self._set_segments([*self._segments[:first], cleaned, *self._segments[first + len(former) :]])
            self._upper_bound = None
        except OSError as error:
            raise self.fail(error) from error

    # -- flush and close

    def flush_targets(self, *, everything: bool = False) -> list[str]:
        """Paths to fsync so that everything appended so far survives: segments not flushed yet (the active one without
        its indexes, recovery rebuilds those), their snapshots, and the small files."""
        paths = []
        for segment in self._segments[bisect_right(self._bases, self._flush_from) - 1 :]:
            kinds = SUFFIXES if everything or segment is not self._active else SUFFIXES[::3]
            paths += [segment.path(kind) for kind in kinds if kind != SUFFIXES[3] or segment.txn_index.exists]
        paths += [self.snapshots.path(offset) for offset in self.snapshots.offsets if offset >= self._flush_from]
        if self.epochs.dirty:
            paths.append(self.epochs.path)
        if self._created:
            paths.append(f"{self.folder}/{PARTITION_METADATA}")
        return paths

    def flush_folders(self) -> list[str]:
        """Folders to fsync after the files, so that their names survive too."""
        folders = [self.folder] if self._names_changed or self.epochs.dirty else []
        return [*folders, self.log_dir] if self._created else folders

    @property
    def has_unflushed(self) -> bool:
        return (
            self.flushed_offset < self.log_end_offset
            or self._flush_from < self._active.base_offset
            or self.epochs.dirty
        )

    def flushed(self, log_end_offset: int, active_base_offset: int) -> None:
        """A flush of everything below `log_end_offset` succeeded, begun when the active segment was the given one."""
        self.flushed_offset = max(self.flushed_offset, log_end_offset)
        self._flush_from = max(self._flush_from, active_base_offset)
        self._created = False
        self.last_flush_ms = self._clock.wall_ms()

    def begin_flush(self, *, everything: bool) -> tuple[list[str], list[str]]:
        """What to flush; from here on changes count for the next flush."""
        files, folders = self.flush_targets(everything=everything), self.flush_folders()
        self._names_changed = self.epochs.dirty = False
        return files, folders

    def flush(self) -> None:
        """Flush now, on this thread. The broker rather runs a `FlushJob` off the loop."""
        FlushJob(self).run_and_finish()

    def close(self) -> None:
        """Bring the files into the shape of a log at rest and flush them: the next start needs no recovery."""
        if self._failure is not None:
            self.release()
            return
        try:
            self._active.seal()
            if self.producers.map_end_offset != max(self.snapshots.offsets, default=-1):
                self.snapshots.take(self.producers)
        except OSError as error:
            raise self.fail(error) from error
        FlushJob(self, everything=True).run_and_finish()
        self.release()

    def release(self) -> None:
        """Let go of all files, leaving them as they are."""
        for segment in self._segments:
            segment.close_files()

    def moved(self, folder: str) -> None:
        """The folder was renamed."""
        self.folder = folder
        self.epochs.moved(folder)
        self.snapshots.moved(folder)
        for segment in self._segments:
            segment.moved(folder)
        self._removals = [
            (at_ms, [f"{folder}/{p.rpartition('/')[2]}" for p in paths]) for at_ms, paths in self._removals
        ]
