"""Leader epochs: which epoch began at which offset, kept in `leader-epoch-checkpoint`.

Followers find where their log parted from the leader's by asking for the end offset of an epoch, and truncate there.
Epochs and start offsets only grow along the list. The file is written whenever an epoch is assigned, but becomes
durable together with the records (`PartitionLog.flush`): an entry lost in a crash is found again in the batches.
"""

from bisect import bisect_right
from typing import NamedTuple

from moldau.log.checkpoints import LEADER_EPOCH, read_epochs, write_epochs
from moldau.log.flush import Changes
from moldau.seams import Disk

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochEndOffset(NamedTuple):
    epoch: int
    end_offset: int


class EpochCache:
    __slots__ = ("_disk", "_folder", "_held", "_starts", "_stored", "changes", "latest")

    def __init__(self, disk: Disk, folder: str, stored: list[tuple[int, int]] | None = None) -> None:
        self._disk = disk
        self._folder = folder
        self._held = False
        self._stored = stored  # what the file says, or None if there is none
        self._starts = list(stored or ())
        self.latest = self._starts[-1][0] if self._starts else UNDEFINED_EPOCH
        self.changes = Changes(durable=True)

    @property
    def dirty(self) -> bool:
        """Whether the file says something that a power loss may take."""
        return not self.changes.are_durable

    @classmethod
    def load(cls, disk: Disk, folder: str) -> "EpochCache":
        """Raises CorruptCheckpoint; then the epochs must be read from the batches."""
        return cls(disk, folder, read_epochs(disk, f"{folder}/{LEADER_EPOCH}"))

    @property
    def path(self) -> str:
        return f"{self._folder}/{LEADER_EPOCH}"

    def moved(self, folder: str) -> None:
        self._folder = folder

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), oldest first."""
        return list(self._starts)

    def hold(self) -> None:
        """Keep changes in memory until `write_held`: opening a log makes up its mind in several steps."""
        self._held = True

    def write_held(self, *, flushed: bool) -> None:
        """Write what was held back, if the file says something else. `flushed`: what it said before is durable."""
        self._held = False
        is_other = self._starts != (self._stored or [])
        self.changes = Changes(durable=not is_other and (flushed or not self._starts))
        if is_other:
            self.write()

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` begins at `start_offset`, unless it is known already. Entries it contradicts are wrong,
        because the batch in hand is newer: they go."""
        starts = self._starts
        if epoch == self.latest and start_offset >= starts[-1][1]:
            return
        while starts and (starts[-1][0] >= epoch or starts[-1][1] >= start_offset):
            starts.pop()
        starts.append((epoch, start_offset))
        self._changed()

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that begin at or after `end_offset`."""
        before = len(self._starts)
        while self._starts and self._starts[-1][1] >= end_offset:
            self._starts.pop()
        if len(self._starts) != before:
            self._changed()

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that ended before `start_offset`; the one containing it now begins there."""
        covered = bisect_right(self._starts, start_offset, key=lambda entry: entry[1])
        if covered == 0 or (covered == 1 and self._starts[0][1] == start_offset):
            return
        self._starts[:covered] = [(self._starts[covered - 1][0], start_offset)]
        self._changed()

    def replace(self, entries: list[tuple[int, int]]) -> None:
        """Take over the entries of another cache, which has the same log."""
        self._starts = list(entries)
        self._changed()

    def clear(self) -> None:
        self._starts.clear()
        self._changed()

    def _changed(self) -> None:
        self.latest = self._starts[-1][0] if self._starts else UNDEFINED_EPOCH
        self.changes.add()
        if not self._held:
            self.write()

    def write(self) -> None:
        write_epochs(self._disk, self.path, self._starts, flush=False)
        self._stored = list(self._starts)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEndOffset:
        """The largest epoch at or below the asked one, and where it ends; undefined if nothing can be said."""
        if epoch == UNDEFINED_EPOCH or not self._starts or epoch > self.latest:
            return EpochEndOffset(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
        if epoch == self.latest:
            return EpochEndOffset(epoch, log_end_offset)
        higher = bisect_right(self._starts, epoch, key=lambda entry: entry[0])
        if higher == 0:  # older than anything we have: the follower restarts at our first offset
            return EpochEndOffset(epoch, self._starts[0][1])
        return EpochEndOffset(self._starts[higher - 1][0], self._starts[higher][1])

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch an offset was written in, or UNDEFINED_EPOCH."""
        index = bisect_right(self._starts, offset, key=lambda entry: entry[1])
        return self._starts[index - 1][0] if index else UNDEFINED_EPOCH
