"""Work that leaves the loop. `run` may be called on any thread, `finish` on the loop when it is done.

A job that works on a log belongs to one incarnation of it and asks in `finish` whether that is over (see
`incarnation.Incarnation`). The jobs below belong to a dir: files to be removed have names that nobody will use again,
and a checkpoint is never overwritten by an older one.

The node does `await to_thread(job.run)` and then `job.finish()`; tests call both in a row.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from moldau.log.checkpoints import TopicPartition, write_offsets
from moldau.seams import Disk


class Job(Protocol):
    def run(self) -> None:
        """Any thread. Keeps errors for `finish`."""

    def finish(self) -> object:
        """The loop."""


class RemoveJob:
    """Remove files and folders: slow if they are large."""

    __slots__ = ("_disk", "_error", "_files", "_folders", "_on_error")

    def __init__(self, disk: Disk, files: list[str], folders: list[str], on_error: Callable[[OSError], None]) -> None:
        self._disk = disk
        self._files = files
        self._folders = folders
        self._on_error = on_error
        self._error: OSError | None = None

    def run(self) -> None:
        try:
            for path in self._files:
                self._disk.remove(path)
            for path in self._folders:
                self._disk.remove_tree(path)
        except FileNotFoundError:
            pass  # the topic was deleted meanwhile, and its folder renamed
        except OSError as error:
            self._error = error

    def finish(self) -> None:
        if self._error is not None:
            self._on_error(self._error)


class CheckpointFile:
    """An offset checkpoint that several threads write: newer values are never overwritten by older ones.

    It knows of which partitions the file may speak, now or when those have written who took their turn: a superset,
    which an up-to-date write makes exact again. See `LogDir.forget`.
    """

    __slots__ = ("_disk", "_issued", "_lock", "_may_hold", "_path", "_written")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._lock = threading.Lock()
        self._issued = 0
        self._written = 0
        self._may_hold: set[TopicPartition] = set()

    def next_turn(self, keys: Iterable[TopicPartition]) -> int:
        """On the loop, when the values of these partitions are taken."""
        self._issued += 1
        self._may_hold.update(keys)
        return self._issued

    def found(self, keys: Iterable[TopicPartition]) -> None:
        """The file was read, and speaks of these."""
        self._may_hold.update(keys)

    def may_hold(self, key: TopicPartition) -> bool:
        return key in self._may_hold

    def finished(self, turn: int, keys: Iterable[TopicPartition]) -> None:
        """On the loop: the values of this turn are written, or newer ones."""
        if turn == self._issued:
            self._may_hold = set(keys)

    def write(self, turn: int, offsets: Mapping[TopicPartition, int]) -> None:
        with self._lock:
            if turn > self._written:
                write_offsets(self._disk, self._path, offsets)
                self._written = turn


class CheckpointJob:
    """Write an offset checkpoint with the values of when the job was made."""

    __slots__ = ("_error", "_file", "_offsets", "_on_error", "_turn")

    def __init__(
        self, file: CheckpointFile, offsets: Mapping[TopicPartition, int], on_error: Callable[[OSError], None]
    ) -> None:
        self._file = file
        self._turn = file.next_turn(offsets)
        self._offsets = dict(offsets)
        self._on_error = on_error
        self._error: OSError | None = None

    def run(self) -> None:
        try:
            self._file.write(self._turn, self._offsets)
        except OSError as error:
            self._error = error

    def finish(self) -> None:
        if self._error is not None:
            self._on_error(self._error)
        else:
            self._file.finished(self._turn, self._offsets)
