"""One partition's log: a folder of segments that grows at the end and is shortened at the start.

Nearly every batch of a producer takes the short way in (`short_way.py`); what is unusual goes in with care, and opens
it for the next ones. What a leader sent goes in as it came.

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

from moldau.log.checkpoints import write_topic_id
from moldau.log.config import LogConfig
from moldau.log.context import LogContext
from moldau.log.durability import Durability
from moldau.log.epoch_cache import UNDEFINED_OFFSET, EpochCache, EpochEndOffset
from moldau.log.errors import LogError, OffsetOutOfRange, StorageError
from moldau.log.failure import check_descriptors, offline_on_error
from moldau.log.flush import FlushJob, FlushTicket
from moldau.log.incarnation import Incarnation
from moldau.log.index.offset_index import MAX_RELATIVE_OFFSET
from moldau.log.index.time_index import NO_TIMESTAMP
from moldau.log.index.txn_index import AbortedTxn
from moldau.log.origin import AppendOrigin
from moldau.log.producers.admission import admit_data, admit_marker, note_batch, note_run
from moldau.log.producers.producer_state import ProducerState
from moldau.log.producers.snapshots import Snapshots
from moldau.log.reading import Reader
from moldau.log.results import Appended, ReadInfo
from moldau.log.retention import raise_log_start, retain
from moldau.log.rolling import must_roll
from moldau.log.segment import Segment
from moldau.log.segments import Segments
from moldau.log.short_way import NOT_TAKEN, append_on_short_way
from moldau.log.timestamps import FoundOffset, find_by_timestamp, find_max_timestamp
from moldau.log.truncation import lower_recovery_point, start_over, truncate
from moldau.log.validation import CheckedBatch, stamp_valid, validate_for_follower, validate_for_leader
from moldau.records import BatchHeader, EndTransactionMarker
from moldau.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, as_header, pack_place

WritableBuffer = bytearray | memoryview


class PartitionLog:
    """Made by `recovery.open_log`, which finds out what is on the disk."""

    __slots__ = (
        "_active",
        "_config",
        "_disk",
        "_failure",
        "_untouched",
        "_wall_ms",
        "context",
        "durability",
        "epochs",
        "files",
        "high_watermark",
        "incarnation",
        "log_end_offset",
        "log_start_offset",
        "partition",
        "producers",
        "reader",
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
        self.files = Segments(context, folder, segments)
        self._active = self.files.active  # that of the last careful append: its short way may be open
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = log_start_offset
        flush_from = self.files.holding(recovery_point).base_offset
        self.durability = Durability(recovery_point, flush_from, context.clock.wall_ms(), names_durable=clean)
        self._untouched = clean
        self.reader = Reader(self.files)
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
        self.files.active.close_short_way()

    @property
    def folder(self) -> str:
        return self.files.folder

    @property
    def log_dir(self) -> str:
        return self.files.folder.rpartition("/")[0]

    # -- failure

    @property
    def is_offline(self) -> bool:
        return self._failure is not None

    def fail(self, error: OSError) -> StorageError:
        """Take the log offline. Returns the error to raise, so that a caller may write `raise log.fail(error)`."""
        first = self._failure is None
        self._failure = self._failure or error
        self.incarnation.end("went offline")
        self.files.active.close_short_way()
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
            self.log_end_offset = max(self.log_end_offset, self.files.active.next_offset())

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
        try:
            if has_producer:
                if fields[5] & CONTROL_FLAG:
                    marker = admit_marker(self.producers, buffer, as_header(fields), transaction_version)
                else:
                    duplicate = admit_data(self.producers, self.files.items, fields, origin)
                    if duplicate is not None:  # the producer's time is told whatever the topic's timestamp type is
                        return duplicate.first_offset, duplicate.last_offset, duplicate.timestamp
                    if config.transaction_partition_verification_enable and fields[5] & TRANSACTIONAL_FLAG:
                        self.producers.check_verified(fields[9], fields[10], verification_guard)
            segment = self.files.active
            if must_roll(segment, config, size, last_offset, max_timestamp, now_ms):
                self.roll()
                segment = self.files.active
            if leader_epoch != self.epochs.latest:
                self.epochs.assign(leader_epoch, base_offset)
            pack_place(buffer, 0, base_offset, fields[1], leader_epoch)
            segment.append(buffer, size, last_offset, max_timestamp)
            segment.open_short_way(config, leader_epoch, now_ms)
            self._active = segment
            self.log_end_offset = last_offset + 1
            if has_producer:
                note_batch(self.producers, segment, fields, base_offset, max_timestamp, marker)
        except OSError as error:
            raise self.fail(error) from error
        return base_offset, last_offset, append_time

    @offline_on_error
    def append_as_follower(self, buffer: bytes | bytearray | memoryview, leader_epoch: int | None = None) -> None:
        """Append whole batches as the leader stamped them; an incomplete one at the end is left out.

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
            active = self.files.active
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
        for _, header in run:
            if header.leader_epoch > self.epochs.latest:
                self.epochs.assign(header.leader_epoch, header.base_offset)
        active = self.files.active
        start, (last_position, last) = run[0][0], run[-1]
        active.append_run(
            view[start : last_position + last.size_bytes],
            [(position - start, h.size_bytes, h.last_offset, h.max_timestamp) for position, h in run],
        )
        self.log_end_offset = last.next_offset
        note_run(self.producers, active, view, run)

    # -- roll

    def roll(self, first_offset: int | None = None) -> None:
        """Begin a new segment, for a batch at `first_offset` if that is not the log end.

        It begins where the records end, which is before the log end offset if that was set by truncation, or if a
        follower of a compacted leader meets a gap. So segments follow each other without holes, and recovery knows a
        hole for what it is: records that a crash took.
        """
        former = self.files.active
        offset = former.next_offset() if former.size else former.base_offset
        following = self.log_end_offset if first_offset is None else max(first_offset, self.log_end_offset)
        if following - offset > MAX_RELATIVE_OFFSET:
            offset = following
        if offset == former.base_offset:
            return
        former.seal()
        self.files.add(offset, self.config)
        self.durability.change_names()
        self.snapshots.take(self.producers, offset)

    # -- producers

    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, *, supports_epoch_bump: bool = True
    ) -> object | None:
        """Before asking the coordinator about a transaction (KIP-890): pass the guard to the append that follows.
        None means the transaction is open in this partition already, and nothing needs to be asked.
        InvalidProducerEpoch if a later epoch of the producer was seen."""
        return self.producers.start_verification(
            producer_id, sequence, epoch, self._wall_ms(), supports_epoch_bump=supports_epoch_bump
        )

    def expire_producers(self) -> None:
        """Forget producers silent for longer than `producer.id.expiration.ms`."""
        self.producers.remove_expired(self._wall_ms(), self.config.producer_id_expiration_ms)

    # -- read

    @offline_on_error
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
        end_offset = self.log_end_offset
        if offset < self.log_start_offset or offset > end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is not in {self.log_start_offset}..{end_offset} of {self.topic}-{self.partition}"
            )
        bound = end_offset if upper_bound_offset is None else min(upper_bound_offset, end_offset)
        return self.reader.read(offset, max_bytes, bound, end_offset, min_one_batch=min_one_batch)

    @offline_on_error
    def offset_for_timestamp(self, timestamp: int) -> FoundOffset | None:
        """ListOffsets by time: the first record at or after the log start that is at least this young."""
        self._check_online()
        return find_by_timestamp(self.files.items, timestamp, self.log_start_offset)

    @offline_on_error
    def offset_of_max_timestamp(self) -> FoundOffset | None:
        """ListOffsets for the largest timestamp (-3): the first record that has it."""
        self._check_online()
        return find_max_timestamp(self.files.items)

    def earliest(self) -> FoundOffset:
        """ListOffsets for the earliest offset (-2), and for the earliest local one (-4): nothing is tiered."""
        epoch = self.epochs.epoch_for_offset(self.log_start_offset)
        return FoundOffset(NO_TIMESTAMP, self.log_start_offset, epoch)

    def latest(self) -> FoundOffset:
        """ListOffsets for the end of the log; the broker answers -1 with the high watermark or last stable offset."""
        return FoundOffset(NO_TIMESTAMP, self.log_end_offset, self.epochs.latest)

    @offline_on_error
    def aborted_transactions(self, first_offset: int, upper_bound_offset: int) -> list[AbortedTxn]:
        """For a read_committed fetch of [first_offset, upper_bound_offset): what the client must leave out."""
        self._check_online()
        return self.files.aborted_transactions(first_offset, upper_bound_offset)

    def aborted_within(self, info: ReadInfo, upper_bound_offset: int) -> list[AbortedTxn]:
        """The same for what a read gave. The list ends where the data does: else each of many small fetches over a
        log full of aborts would carry all of them."""
        if info.region is None:
            return []
        end = self.files.offsets_end_before(info, self.log_end_offset)
        return self.aborted_transactions(info.first_offset, min(upper_bound_offset, end))

    # -- offsets

    @property
    def segments(self) -> list[Segment]:
        """Oldest first, the last one active. The list is never changed, only replaced."""
        return self.files.items

    @property
    def active_segment(self) -> Segment:
        return self.files.active

    def end_offset_of(self, segment: Segment) -> int:
        """Where the next segment begins, or the log ends."""
        return self.files.end_of(segment, self.log_end_offset)

    @property
    def grown_bytes(self) -> int:
        """See `Segments.grown_bytes`."""
        return self.files.grown_bytes

    @property
    def size_bytes(self) -> int:
        return self.files.size_bytes

    def update_high_watermark(self, offset: int) -> int:
        """Set by replication; kept within the log. Decides transactions whose markers it passes."""
        offset = min(max(offset, self.log_start_offset), self.log_end_offset)
        self.high_watermark = offset
        self.producers.on_high_watermark(offset)
        return offset

    @property
    def last_stable_offset(self) -> int:
        """Consumers with read_committed stop here: the first undecided transaction, or the high watermark."""
        unstable = self.producers.first_unstable_offset
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log_start_offset)

    @property
    def flushed_offset(self) -> int:
        """Records below survive a power loss."""
        return self.durability.flushed_offset

    @property
    def recovery_point(self) -> int:
        """What may be checkpointed: everything below needs no look after a crash, not even at its indexes."""
        return self.durability.recovery_point(self.files, self.log_end_offset)

    def take_truncation(self) -> int | None:
        """For who copies the log: the lowest offset to which it was truncated since the last call."""
        lowest, self.durability.lowest_truncation = self.durability.lowest_truncation, None
        return lowest

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset | None:
        """OffsetsForLeaderEpoch: the largest known epoch up to the asked one, and where it ends."""
        found = self.epochs.end_offset_for(leader_epoch, self.log_end_offset)
        return None if found.end_offset == UNDEFINED_OFFSET else found

    @offline_on_error
    def assign_epoch(self, leader_epoch: int) -> None:
        """A new leader notes where its epoch begins, before it has written anything."""
        self.epochs.assign(leader_epoch, self.log_end_offset)
        self.files.active.close_short_way()

    @offline_on_error
    def assign_topic_id(self, topic_id: bytes) -> None:
        if self.topic_id is not None and self.topic_id != topic_id:
            raise LogError(f"{self.folder} belongs to another topic of the same name: it was deleted and created anew")
        if self.topic_id is None:
            write_topic_id(self._disk, self.folder, topic_id)
            self.durability.change_identity()
            self.topic_id = topic_id

    # -- shorten

    @offline_on_error
    def truncate_to(self, offset: int) -> bool:
        """Remove everything at or after `offset`; whether there was anything."""
        self._check_online()
        return truncate(self, offset)

    @offline_on_error
    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """Throw the whole log away; the next record gets `offset`."""
        self._check_online()
        start_over(self, offset, offset if log_start_offset is None else log_start_offset)

    def lower_recovery_point(self, offset: int) -> bool:
        """See `truncation.lower_recovery_point`."""
        return lower_recovery_point(self, offset)

    @offline_on_error
    def delete_records_before(self, offset: int) -> int:
        """DeleteRecords: move the log start offset up; files follow with the next retention. The new start."""
        self._check_online()
        if offset > self.high_watermark or offset < 0:
            raise OffsetOutOfRange(f"cannot delete up to {offset}: the high watermark is {self.high_watermark}")
        raise_log_start(self, offset)
        return self.log_start_offset

    @offline_on_error
    def apply_retention(self) -> int:
        """Remove whole segments that are too old, too many or before the log start; how many."""
        self._check_online()
        return retain(self, self._wall_ms())

    def take_removals(self) -> list[str]:
        """Files whose time has come: remove them off the loop (`disk.remove`), it may take long."""
        return self.files.take_removals(self._wall_ms())

    @offline_on_error
    def replace_segments(self, former: list[Segment], cleaned: Segment) -> None:
        """The last step of a compaction; see `Segments.replace`."""
        self.files.replace(former, cleaned, self.config)
        self.durability.change_names()
        self.reader.forget()

    # -- flush and close

    @property
    def has_unflushed(self) -> bool:
        durability = self.durability
        return (
            durability.flushed_offset < self.log_end_offset
            or durability.flush_from < self.files.active.base_offset
            or self.epochs.dirty
        )

    @property
    def needs_flush(self) -> bool:
        """Whether `flush.messages` demands a flush before the last append counts."""
        return self.log_end_offset - self.durability.flushed_offset >= self._config.flush_messages

    @property
    def flush_due(self) -> bool:
        """Whether `flush.ms` demands a flush."""
        waited_ms = self._wall_ms() - self.durability.last_flush_ms
        return waited_ms >= self.config.flush_ms and self.durability.flushed_offset < self.log_end_offset

    def flush(self) -> None:
        """Flush now, on this thread. The broker rather runs a `FlushJob` off the loop."""
        FlushJob(self).run_and_finish()

    def begin_flush(self, *, everything: bool) -> FlushTicket:
        """For `FlushJob`."""
        return self.durability.begin_flush(
            self.files,
            self.snapshots,
            self.epochs,
            self.log_end_offset,
            self.incarnation,
            everything=everything,
        )

    def end_flush(self, ticket: FlushTicket) -> None:
        self.durability.end_flush(ticket, self.epochs, self._wall_ms())

    def close(self) -> None:
        """Bring the files into the shape of a log at rest and flush them: the next start needs no recovery."""
        job = self.begin_close()
        if job is not None:
            job.run_and_finish()

    @offline_on_error
    def begin_close(self) -> FlushJob | None:
        """All of `close` but the flush, which is left to the caller if there is one to do."""
        job = None
        if self._failure is None:
            self.incarnation = self.incarnation.followed("was closed")  # the flush is the only job of the next one
        if self._failure is None and not self._is_at_rest:
            self.files.active.seal()
            self.snapshots.take(self.producers, self.log_end_offset)
            job = FlushJob(self, everything=True)
        self.files.release()
        return job

    @property
    def _is_at_rest(self) -> bool:
        """Whether nothing happened since the log was opened after a clean shutdown."""
        return self._untouched and not self.durability.names_changed and not self.has_unflushed

    def release(self) -> None:
        """Let go of all files, leaving them as they are: somebody else will own them, or nobody."""
        self.incarnation.end("was let go")
        self.files.release()

    def join(self, context: LogContext) -> None:
        """Change over to another context, made for the thread that shall own the log from now on."""
        self.context = context
        self.files.join(context)

    @offline_on_error
    def take_place_of(self, log: "PartitionLog") -> None:
        """Become the same log as `log`, of which this is a copy: take over all that the batches do not tell, and flush.

        The producers' state is shared, not rebuilt: it knows what compaction took from the batches, and the guards of
        verifications under way."""
        if self.log_end_offset < log.log_end_offset:  # the log ends in a gap that compaction or a truncation left
            self.roll(log.log_end_offset)
            self.log_end_offset = log.log_end_offset
        self.config = log.config
        self.log_start_offset = log.log_start_offset
        self.epochs.replace(log.epochs.entries)
        self.producers = log.producers
        self.snapshots.forget(self.log_end_offset)
        self.snapshots.take(self.producers, self.log_end_offset)
        self.high_watermark = log.high_watermark
        self.flush()

    def moved(self, folder: str) -> None:
        """The folder was renamed."""
        self.epochs.moved(folder)
        self.snapshots.moved(folder)
        self.files.moved(folder)
