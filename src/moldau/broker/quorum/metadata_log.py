"""The metadata log on disk, as Raft sees it: a partition log with snapshots, and with the voters its records name.

Invariants
- The log starts at 0 or where a snapshot ends. If a crash left it ending before its newest snapshot, that replaces it:
  once it was read and found whole, not before.
- What was flushed is there, or the log is not opened (`quorum_recovery`).
- `history` says what the control records in the log say, truncated or not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from moldau.broker.quorum.recovery_point import (
    CorruptMetadata,
    check_flushed,
    read_recovery_point,
    write_recovery_point,
)
from moldau.broker.quorum.snapshot_files import (
    CorruptSnapshot,
    Snapshot,
    list_snapshots,
    read_snapshot,
    read_voters,
    snapshot_batches,
    snapshot_name,
    write_snapshot,
)
from moldau.controller.image import EMPTY_IMAGE
from moldau.log.config import LogConfig
from moldau.log.context import LogContext
from moldau.log.errors import StorageError
from moldau.log.origin import AppendOrigin
from moldau.log.partition_log import PartitionLog
from moldau.log.recovery.recovery import Gaps, open_log
from moldau.raft import (
    ElectionState,
    SnapshotId,
    VoterHistory,
    VoterSet,
    decode_quorum_state,
    encode_quorum_state,
)
from moldau.records import BatchHeader, ControlType, check_crc, iter_batches, iter_records, read_control_records
from moldau.wire import Message, decode
from moldau.wire import messages as m
from moldau.wire.internal import decode_metadata_record

TOPIC = "__cluster_metadata"
TOPIC_ID = bytes(15) + b"\x01"
QUORUM_STATE = "quorum-state"
_READ_BYTES = 8 << 20
_CHECKPOINT_INTERVAL_MS = 60_000


class QuorumLog:
    """Belongs to the event loop. See `moldau.raft.LogFacts` for the half that Raft uses."""

    def __init__(
        self, context: LogContext, log_dir: str, config: LogConfig, static_voters: VoterSet, advice: str = ""
    ) -> None:
        """`advice` is what to do about a log that cannot be opened."""
        self.context = replace(context)
        self.context.use_held_back()
        self.disk = context.disk
        self.folder = f"{log_dir}/{TOPIC}-0"
        self._config = config
        self._advice = advice
        self._recovery_point = 0  # on disk
        self._checkpointed_ms: float | None = None
        self.history = VoterHistory(static_voters)
        self.snapshots: list[SnapshotId] = []
        self.log: PartitionLog

    def open(self) -> None:
        """CorruptMetadata if something is damaged that was flushed; then nothing was changed."""
        self.disk.make_dir(self.folder)
        try:
            self._open()
        except CorruptMetadata as error:
            raise CorruptMetadata(f"{error}. {self._advice}") from error

    def _open(self) -> None:
        self.snapshots = list_snapshots(self.disk, self.folder)
        newest = self.latest_snapshot
        content = None if newest is None else self.read_snapshot(newest)
        self._recovery_point = read_recovery_point(self.disk, self.folder)
        newest_epoch = self.read_election_state().epoch if self.disk.exists(self._state_path) else None
        check_flushed(self.disk, self.folder, self._recovery_point, newest_epoch)
        self.log = open_log(
            self.context,
            self.folder,
            TOPIC,
            0,
            self._config,
            gaps=Gaps.NOWHERE,
            newest_epoch=newest_epoch,
            topic_id=TOPIC_ID,
        )
        if newest is not None and self.log.log_end_offset < newest.end_offset:
            self._lower_recovery_point(0)
            self.log.truncate_fully_and_start_at(newest.end_offset)
        if self.log.log_start_offset > 0:
            self._start_at_a_snapshot()
        self._read_history(content)

    def close(self) -> None:
        if hasattr(self, "log"):  # it may never have been opened
            # A disk that is full or gone: its owner was told, and the next start recovers what is there.
            with contextlib.suppress(StorageError, OSError):
                self.log.close()
                self._checkpoint()

    def checkpoint_if_due(self) -> None:
        """Something was flushed: after the first flush, and now and then, note how much."""
        now_ms = self.context.clock.monotonic_ms()
        if self._checkpointed_ms is None or now_ms - self._checkpointed_ms >= _CHECKPOINT_INTERVAL_MS:
            self._checkpointed_ms = now_ms
            self._checkpoint()

    def _checkpoint(self) -> None:
        if self.log.flushed_offset > self._recovery_point:
            self._recovery_point = self.log.flushed_offset
            write_recovery_point(self.disk, self.folder, self._recovery_point)

    def _lower_recovery_point(self, offset: int) -> None:
        """Before the log is truncated there."""
        if offset < self._recovery_point:
            self._recovery_point = offset
            write_recovery_point(self.disk, self.folder, offset)

    @property
    def is_new(self) -> bool:
        return not self.snapshots and self.log.log_end_offset == 0 and not self.disk.exists(self._state_path)

    def found(self, voters: VoterSet) -> None:
        """Begin a quorum of these voters, as formatting does for Apache Kafka: they are in the snapshot of nothing."""
        snapshot = SnapshotId(0, 0)
        parts = snapshot_batches(EMPTY_IMAGE, snapshot, timestamp_ms=0, kraft_version=1, voters=voters)
        write_snapshot(self.disk, self.folder, snapshot, parts)
        self.snapshots = [snapshot]
        self._read_history(self.read_snapshot(snapshot))

    @property
    def _state_path(self) -> str:
        return f"{self.folder}/{QUORUM_STATE}"

    def _start_at_a_snapshot(self) -> None:
        """Segments are removed as a whole: what is left of the first one may begin before the oldest snapshot ends."""
        start = self.log.log_start_offset
        self.snapshots = [each for each in self.snapshots if each.end_offset >= start]
        if not self.snapshots:
            raise CorruptSnapshot(
                f"{self.folder} begins at offset {start}, and the snapshot of what was before is missing"
            )
        self._raise_start(self.snapshots[0].end_offset)

    def _raise_start(self, offset: int) -> None:
        if offset > self.log.log_start_offset:
            self.log.update_high_watermark(max(offset, self.log.high_watermark))
            self.log.delete_records_before(offset)

    def _read_history(self, newest: Snapshot | None) -> None:
        """From the newest snapshot on. What it covers is committed: who was removed there knows that from the start."""
        self.history.clear()
        start = self.log.log_start_offset
        if newest is not None:
            self._note_snapshot_voters(self.snapshots[-1], newest)
            start = max(start, self.snapshots[-1].end_offset)
        for data, position, header in self._batches(start, self.log.log_end_offset):
            if header.is_control:
                self._note_control(data, position)

    # -- facts for Raft

    @property
    def start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def flushed_offset(self) -> int:
        return self.log.flushed_offset

    @property
    def last_epoch(self) -> int:
        if self.log.epochs.latest >= 0:
            return self.log.epochs.latest
        return self._epoch_before_start()

    def _epoch_before_start(self) -> int:
        start = self.start_offset
        return next((each.epoch for each in self.snapshots if each.end_offset == start and start), 0)

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        found, end = self._epoch_before_start(), self.start_offset
        entries = self.log.epochs.entries
        for index, (each, _) in enumerate(entries):
            if each > epoch:
                break
            found = each
            end = entries[index + 1][1] if index + 1 < len(entries) else self.end_offset
        return found, end

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[0] if self.snapshots else None

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[-1] if self.snapshots else None

    # -- changes

    def append_as_leader(self, batch: bytearray, epoch: int) -> int:
        """The offset of the last record."""
        return self.log.append_as_leader(batch, epoch, AppendOrigin.RAFT_LEADER)[1]

    def append_control(self, batch: bytearray, epoch: int) -> int:
        """The same for control records; the history learns of them."""
        last_offset = self.append_as_leader(batch, epoch)
        self._note_control(bytes(batch), 0)
        return last_offset

    def append_as_follower(self, records: bytes | memoryview, epoch: int) -> bool:
        """Whether the voters may have changed."""
        before = self.end_offset
        self.log.append_as_follower(records, epoch)
        changed = False
        for position, header in iter_batches(records):
            if header.is_control and before <= header.base_offset < self.end_offset:
                changed = self._note_control(bytes(records), position) or changed
        return changed

    def truncate_to(self, offset: int) -> None:
        self._lower_recovery_point(offset)
        self.log.truncate_to(offset)
        self.history.truncate_to(offset)

    def start_after(self, snapshot: SnapshotId, content: Snapshot) -> None:
        """A fetched snapshot replaces the log; `content` is what was read from it, all of it."""
        self._lower_recovery_point(0)
        self.log.truncate_fully_and_start_at(snapshot.end_offset)
        for each in self.snapshots:
            if each != snapshot:
                self.disk.remove(f"{self.folder}/{snapshot_name(each)}")
        self.snapshots = [snapshot]
        self.history.clear()
        self._note_snapshot_voters(snapshot, content)

    def add_snapshot(self, snapshot: SnapshotId) -> bool:
        """One was written. Unless the log was replaced meanwhile by a newer one, it counts."""
        latest = self.latest_snapshot
        if latest is not None and latest.end_offset >= snapshot.end_offset:
            self.disk.remove(f"{self.folder}/{snapshot_name(snapshot)}")
            return False
        self.snapshots.append(snapshot)
        self.history.forget_before(snapshot.end_offset)
        self.log.roll()  # so that the segments it covers can go as a whole
        return True

    def clean(self, retention_bytes: int, retention_ms: int) -> list[str]:
        """Remove the oldest snapshots and the log before the next one, as long as there is too much or it is too old.
        The newest snapshot always stays. Returns files to be removed off the loop."""
        removals = []
        now_ms = self.context.clock.wall_ms()
        while len(self.snapshots) > 1:
            path = f"{self.folder}/{snapshot_name(self.snapshots[0])}"
            size = self.log.size_bytes + sum(
                self.disk.file_size(f"{self.folder}/{snapshot_name(each)}") for each in self.snapshots
            )
            is_old = retention_ms >= 0 and now_ms - self.disk.modified_ms(path) > retention_ms
            if not is_old and (retention_bytes < 0 or size <= retention_bytes):
                break
            removals.append(path)
            del self.snapshots[0]
            self._raise_start(self.snapshots[0].end_offset)
            self.log.apply_retention()
        return removals + self.log.take_removals()

    def read_snapshot(self, snapshot: SnapshotId) -> Snapshot:
        if snapshot.end_offset == 0 and not self.disk.exists(f"{self.folder}/{snapshot_name(snapshot)}"):
            return Snapshot(EMPTY_IMAGE)
        return read_snapshot(self.disk.read_file(f"{self.folder}/{snapshot_name(snapshot)}"), snapshot)

    def _note_snapshot_voters(self, snapshot: SnapshotId, content: Snapshot) -> None:
        if content.voters is not None:
            self.history.add_kraft_version(snapshot.end_offset - 1, content.kraft_version)
            self.history.add_voters(snapshot.end_offset - 1, content.voters)

    def _note_control(self, data: bytes, position: int) -> bool:
        changed = False
        for kind, record in read_control_records(data, position):
            if kind is ControlType.KRAFT_VOTERS and record.value is not None:
                self.history.add_voters(record.offset, read_voters(decode(m.VotersRecord, 0, record.value)))
                changed = True
            elif kind is ControlType.KRAFT_VERSION and record.value is not None:
                version = decode(m.KRaftVersionRecord, 0, record.value).kraft_version
                self.history.add_kraft_version(record.offset, version)
        return changed

    # -- reading

    def replay(self, start: int, end: int) -> Iterator[tuple[list[Message], BatchHeader]]:
        """The metadata records of every batch in [start, end); control batches have none."""
        for data, position, header in self._batches(start, end):
            records: list[Message] = []
            if not header.is_control:
                values = (record.value for record in iter_records(data, position))
                records = [decode_metadata_record(value) for value in values if value is not None]
            yield records, header

    def _batches(self, start: int, end: int) -> Iterator[tuple[bytes, int, BatchHeader]]:
        offset = start
        while offset < end:
            region = self.log.read(offset, _READ_BYTES, upper_bound_offset=end).region
            if region is None:
                return
            data = region.read()
            for position, header in iter_batches(data):
                check_crc(data, position, header)
                if header.last_offset >= offset:
                    yield data, position, header
                offset = header.next_offset

    # -- quorum-state

    def read_election_state(self) -> ElectionState:
        path = self._state_path
        return decode_quorum_state(self.disk.read_file(path)) if self.disk.exists(path) else ElectionState()

    def write_election_state(self, state: ElectionState) -> None:
        voter_ids = [voter.key.id for voter in self.history.latest]
        data = encode_quorum_state(state, self.history.kraft_version, voter_ids)
        self.disk.write_file_atomically(self._state_path, data)


__all__ = ["QUORUM_STATE", "TOPIC", "TOPIC_ID", "CorruptSnapshot", "QuorumLog"]
