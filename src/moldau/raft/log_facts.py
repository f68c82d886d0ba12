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
