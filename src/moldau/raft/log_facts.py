"""What Raft needs to know of the log. It never changes the log: it asks for that with effects."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class SnapshotId(NamedTuple):
    """The state of everything before `end_offset`, the last of it written in `epoch`."""

    end_offset: int
    epoch: int


class LogFacts(Protocol):
    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def flushed_offset(self) -> int:
        """What is before survives a crash; only that may be promised to others."""

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, or of the snapshot the log starts after; 0 when there is nothing."""

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        """(the largest known epoch up to this one, where it ends)."""

    @property
    def earliest_snapshot(self) -> SnapshotId | None: ...

    @property
    def latest_snapshot(self) -> SnapshotId | None: ...


def where_logs_part(log: LogFacts, offset: int, epoch: int) -> tuple[SnapshotId | None, tuple[int, int] | None]:
    """For a fetch from `offset` after a record of `epoch`: (the snapshot to fetch instead, None), (None, (epoch, end
    offset) to go back to), or neither if the logs agree so far."""
    if log.start_offset == 0 and offset == 0 and epoch <= 0:
        return None, None
    earliest = log.earliest_snapshot
    if earliest is not None and (
        offset < log.start_offset
        or (offset == log.start_offset != 0 and epoch != earliest.epoch)
        or epoch < earliest.epoch
    ):
        return log.latest_snapshot, None
    known_epoch, end_offset = log.end_offset_for(epoch)
    if known_epoch != epoch or end_offset < offset:
        return None, (known_epoch, end_offset)
    return None, None
