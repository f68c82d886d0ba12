"""A partition's log at its end: how batches get in, from producers or a leader, and how segments follow each other.

Nearly every batch of a producer takes the short way (`short_way.py`); what is unusual goes in with care, and opens it
for the next ones. Appending also tells the producers' state what happened, after it was asked whether it may.
"""

import contextlib

from moldau.log.config import LogConfig
from moldau.log.context import LogContext
from moldau.log.durability import Durability
from moldau.log.epoch_cache import EpochCache
from moldau.log.errors import CorruptRecord, OutOfOrderSequence, StorageError
from moldau.log.failure import check_descriptors, offline_on_error
from moldau.log.incarnation import Incarnation
from moldau.log.index.offset_index import MAX_RELATIVE_OFFSET
from moldau.log.producers.producer_state import AppendOrigin, BatchMetadata, ProducerEntry, ProducerState
from moldau.log.producers.recalled_batches import recall_batches
from moldau.log.producers.snapshots import Snapshots
from moldau.log.reading import Reader
from moldau.log.results import ActiveProducer, Appended
from moldau.log.rolling import must_roll
from moldau.log.segment import Segment
from moldau.log.segments import Segments
from moldau.log.short_way import NOT_TAKEN, append_on_short_way
from moldau.log.validation import (
    CheckedBatch,
    read_marker,
    stamp_valid,
    validate_for_follower,
    validate_for_leader,
)
from moldau.records import BatchHeader, EndTransactionMarker
from moldau.records.batch import (
    CONTROL_FLAG,
    TRANSACTIONAL_FLAG,
    HeaderFields,
    as_header,
    pack_place,
)

WritableBuffer = bytearray | memoryview


class GrowingLog:
    """What a log is made of, and how it grows; `PartitionLog` is all of it."""

    __slots__ = (
        "_active",
        "_config",
        "_disk",
        "_durability",
        "_failure",
        "_high_watermark",
        "_reader",
        "_segments",
        "_untouched",
        "_wall_ms",
        "context",
        "epochs",
        "incarnation",
        "log_end_offset",
        "log_start_offset",
        "partition",
        "producers",
        "snapshots",
        "topic",
        "topic_id",
        "uncleanable",
    )

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
        clean: bool = False,
    ) -> None:
        self.context = context
        self._disk = context.disk
        self._wall_ms = context.clock.wall_ms
        self.topic = topic
        self.partition = partition
        self._config = config
        self.topic_id = topic_id
        self.epochs = epochs
        self.producers = producers
        self.snapshots = snapshots
        self._segments = Segments(context, folder, segments)
        self._active = self._segments.active  # that of the last careful append: its short way may be open
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self._high_watermark = log_start_offset
        flush_from = self._segments.holding(recovery_point).base_offset
        self._durability = Durability(recovery_point, flush_from, context.clock.wall_ms(), names_durable=clean)
        self._untouched = clean
        self._reader = Reader(self._segments)
        self._failure: OSError | None = None
        self.incarnation = Incarnation()  # what jobs off the loop belong to
        self.uncleanable = ""  # why compaction leaves this log alone

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.folder}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def topic_partition(self) -> tuple[str, int]:
        return self.topic, self.partition

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._segments.active.close_short_way()

    @property
    def folder(self) -> str:
        return self._segments.folder

    @property
    def log_dir(self) -> str:
        return self._segments.folder.rpartition("/")[0]

    # -- failure

    @property
    def is_offline(self) -> bool:
        return self._failure is not None

    def fail(self, error: OSError) -> StorageError:
        """Take the log offline. Returns the error to raise, so that a caller may write `raise log.fail(error)`."""
        first = self._failure is None
        self._failure = self._failure or error
        self.incarnation.end("went offline")
        self._segments.active.close_short_way()
        if first:
            self.context.on_failure(self.log_dir, error)
        return StorageError(f"log dir {self.log_dir} failed ({error}): replace the disk or free space, then restart")

    def _check_online(self) -> None:
        if self._failure is not None:
            raise StorageError(f"log dir {self.log_dir} is offline ({self._failure}): restart the node to recover it")

    # -- append

    @offline_on_error
    def _before_first_append(self) -> None:
        """After a clean start the log end was taken from a checkpoint: before it is relied upon, look at the records.
        Should there be more of them than it says, their offsets are taken."""
        self._check_online()
        if self._untouched:
            self._untouched = False
            self.log_end_offset = max(self.log_end_offset, self._segments.active.next_offset())

    def append_as_leader(
        self,
        buffer: WritableBuffer,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verification_guard: object | None = None,
        transaction_version: int = 0,
        checked: CheckedBatch | None = None,
    ) -> Appended:
        """Append the one batch in `buffer`, giving it offsets and the leader's epoch, in place."""
        base_offset = self.log_end_offset
        try:
            last_offset = append_on_short_way(self._active, self.producers, buffer, base_offset, leader_epoch)
        except OSError as error:
            raise self.fail(error) from error
        if last_offset == NOT_TAKEN:
            return self._append_with_care(
                buffer, leader_epoch, origin, verification_guard, transaction_version, checked
            )
        self.log_end_offset = last_offset + 1
        return base_offset, last_offset, -1

    def _append_with_care(
        self,
        buffer: WritableBuffer,
        leader_epoch: int,
        origin: AppendOrigin,
        verification_guard: object | None,
        transaction_version: int,
        checked: CheckedBatch | None = None,
    ) -> Appended:
        check_descriptors(self)
        if self._failure is not None or self._untouched:
            self._before_first_append()
        config = self.config
        now_ms = self._wall_ms()
        if checked is None or checked.config is not config:
            valid = validate_for_leader(buffer, config, origin, now_ms)
        else:
            valid = stamp_valid(checked.valid, now_ms) if config.stamps_append_time else checked.valid
        buffer, fields, size, max_timestamp, append_time = valid
        base_offset = self.log_end_offset
        last_offset = base_offset + fields[6]
        has_producer = fields[9] >= 0
        marker: EndTransactionMarker | None = None
        if has_producer:
            if fields[5] & CONTROL_FLAG:
                marker = self._check_marker(buffer, as_header(fields), transaction_version)
            else:
                duplicate = self._check_data(fields, origin)
                if duplicate is not None:  # the producer's time is told whatever the topic's timestamp type is
                    return duplicate.first_offset, duplicate.last_offset, duplicate.timestamp
                if config.transaction_partition_verification_enable and fields[5] & TRANSACTIONAL_FLAG:
                    self.producers.check_verified(fields[9], fields[10], verification_guard)
        try:
            segment = self._segments.active
            if must_roll(segment, config, size, last_offset, max_timestamp, now_ms):
                self.roll()
                segment = self._segments.active
            if leader_epoch != self.epochs.latest:
                self.epochs.assign(leader_epoch, base_offset)
            pack_place(buffer, 0, base_offset, fields[1], leader_epoch)
            segment.append(buffer, size, last_offset, max_timestamp)
            segment.open_short_way(config, leader_epoch, now_ms)
            self._active = segment
            self.log_end_offset = last_offset + 1
            if has_producer:
                self._note_producer(fields, base_offset, max_timestamp, marker)
        except OSError as error:
            raise self.fail(error) from error
        return base_offset, last_offset, append_time

    def _check_data(self, fields: HeaderFields, origin: AppendOrigin) -> BatchMetadata | None:
        try:
            return self.producers.check_data(fields, origin)
        except OutOfOrderSequence:
            entry = self.producers.producers.get(fields[9])
            if entry is None or not entry.is_from_snapshot:
                raise
        self._recall(entry)
        return self.producers.check_data(fields, origin)

    @offline_on_error
    def _recall(self, entry: ProducerEntry) -> None:
        with contextlib.suppress(CorruptRecord):  # whoever reads there will be told
            recall_batches(entry, self._segments.items)

    def _check_marker(
        self, buffer: WritableBuffer, header: BatchHeader, transaction_version: int
    ) -> EndTransactionMarker | None:
        marker = read_marker(buffer, header)
        if marker is not None:
            self.producers.check_marker(header, marker, transaction_version)
        return marker

    @offline_on_error
    def append_as_follower(self, buffer: bytes | bytearray | memoryview, leader_epoch: int | None = None) -> None:
        """Append whole batches as the leader stamped them; a cut-off one at the end is left out.

        Batches of an epoch newer than `leader_epoch` are left out too: the leader they come from is not the one that
        was asked, and the next fetch will tell.
        """
        self._before_first_append()
        batches = validate_for_follower(buffer, self.log_end_offset, leader_epoch)
        now_ms = self._wall_ms()
        view = memoryview(buffer)
        run: list[tuple[int, BatchHeader]] = []
        for position, header in batches:
            size = header.size_bytes + (position - run[0][0] if run else 0)
            active = self._segments.active
            if must_roll(active, self.config, size, header.last_offset, header.max_timestamp, now_ms):
                self._append_run(view, run)
                run = []
                self.roll(header.base_offset)
            run.append((position, header))
        self._append_run(view, run)

    def _append_run(self, view: memoryview, run: list[tuple[int, BatchHeader]]) -> None:
        """Write batches that go into the active segment with one call, then note each."""
        if not run:
            return
        start = run[0][0]
        last = run[-1]
        for _, header in run:
            if header.leader_epoch > self.epochs.latest:
                self.epochs.assign(header.leader_epoch, header.base_offset)
        self._segments.active.append_run(
            view[start : last[0] + last[1].size_bytes],
            [(position - start, h.size_bytes, h.last_offset, h.max_timestamp) for position, h in run],
        )
        self.log_end_offset = last[1].next_offset
        for position, header in run:
            if header.producer_id >= 0:
                marker = None
                if header.is_control:
                    marker = read_marker(view[position : position + header.size_bytes], header)
                self._note_producer(header, header.base_offset, header.max_timestamp, marker)

    def _note_producer(
        self, fields: HeaderFields, base_offset: int, max_timestamp: int, marker: EndTransactionMarker | None
    ) -> None:
        aborted = self.producers.update(fields, base_offset, max_timestamp, marker)
        if aborted is not None:
            self._segments.active.txn_index.append(aborted)

    # -- roll

    def roll(self, first_offset: int | None = None) -> None:
        """Begin a new segment, for a batch at `first_offset` if that is not the log end.

        It begins where the records end, which is before the log end offset if that was set by truncation, or if a
        follower of a compacted leader meets a gap. So segments follow each other without holes, and recovery knows a
        hole for what it is: records that a crash took.
        """
        former = self._segments.active
        offset = former.next_offset() if former.size else former.base_offset
        following = self.log_end_offset if first_offset is None else max(first_offset, self.log_end_offset)
        if following - offset > MAX_RELATIVE_OFFSET:
            offset = following
        if offset == former.base_offset:
            return
        former.seal()
        self._segments.add(offset, self.config)
        self._durability.change_names()
        self.snapshots.take(self.producers, offset)

    # -- producers

    def active_producers(self) -> list[ActiveProducer]:
        """For DescribeProducers."""
        return self.producers.active()

    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, *, supports_epoch_bump: bool = True
    ) -> object | None:
        """Before asking the coordinator about a transaction (KIP-890): pass the guard to the append that follows.
        None means the transaction is open in this partition already, and nothing needs to be asked.
        InvalidProducerEpoch if a later epoch of the producer was seen."""
        return self.producers.start_verification(
            producer_id, sequence, epoch, self._wall_ms(), supports_epoch_bump=supports_epoch_bump
        )

    def has_open_transaction(self, producer_id: int) -> bool:
        entry = self.producers.producers.get(producer_id)
        return entry is not None and entry.txn_first_offset >= 0

    def expire_producers(self) -> None:
        """Forget producers silent for longer than `producer.id.expiration.ms`."""
        self.producers.remove_expired(self._wall_ms(), self.config.producer_id_expiration_ms)
