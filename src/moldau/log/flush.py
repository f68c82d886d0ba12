"""Flushing off the loop: one fsync serves every append that came before it (group commit).

A `FlushJob` notes on the loop what is to be flushed, does so in `run` on any thread, and `finish` tells the log, back
on the loop. Appends in the meantime are not counted; the next job has them.
"""

from typing import NamedTuple, Protocol

from moldau.log.context import LogContext
from moldau.log.errors import OutOfDescriptors, StorageError
from moldau.log.incarnation import Incarnation
from moldau.seams.disk import is_shortage


class Changes:
    """A count of changes, and how many of them are known to be durable."""

    __slots__ = ("_durable", "count")

    def __init__(self, *, durable: bool) -> None:
        self.count = 1
        self._durable = int(durable)

    @property
    def are_durable(self) -> bool:
        return self._durable == self.count

    def add(self) -> None:
        self.count += 1

    def flushed(self, count: int) -> None:
        """A flush that began when there were `count` of them is over."""
        self._durable = max(self._durable, count)


class FlushTicket(NamedTuple):
    """What a flush has to do, and what will be flushed then. See `durability` for the counts."""

    files: list[str]
    folders: list[str]
    end_offset: int
    active_base_offset: int
    incarnation: Incarnation
    names: int
    folder: int
    epochs: int


class FlushableLog(Protocol):
    """What of a `PartitionLog` a flush uses."""

    context: LogContext

    @property
    def folder(self) -> str: ...

    def fail(self, error: OSError) -> StorageError: ...

    def begin_flush(self, *, everything: bool) -> FlushTicket: ...

    def end_flush(self, ticket: FlushTicket) -> None: ...


class FlushJob:
    """Make everything that is in the log now survive a power loss."""

    __slots__ = ("_clock", "_disk", "_ticket", "_took_ms", "error", "log")

    def __init__(self, log: FlushableLog, *, everything: bool = False) -> None:
        self.log = log
        self._disk = log.context.disk
        self._clock = log.context.clock
        self._took_ms = -1.0
        self._ticket = log.begin_flush(everything=everything)
        self.error: OSError | None = None

    @property
    def end_offset(self) -> int | None:
        """What will be flushed, or None if nothing can be said."""
        return self._ticket.end_offset if self.error is None else None

    def run(self, but: str = "") -> None:
        """Any thread. Files that are gone meanwhile were replaced by durable ones, or their records deleted.

        `but` is a folder that the caller flushes itself."""
        began_ms = self._clock.monotonic_ms()
        try:
            for path in self._ticket.files:
                self._disk.flush_file(path)
            for path in self._ticket.folders:
                if path != but:
                    self._disk.flush_dir(path)
        except OSError as error:
            self.error = error
        self._took_ms = self._clock.monotonic_ms() - began_ms

    def finish(self) -> None:
        """The log's own thread."""
        if self._took_ms >= 0:
            self.log.context.flush_times.observe(self._took_ms / 1000)
        if self.error is None:
            self.log.end_flush(self._ticket)
        elif is_shortage(self.error):  # all of it is left to the next flush
            raise OutOfDescriptors(f"{self.log.folder} is not flushed: {self.error}; raise the limit on open files")
        elif self._ticket.incarnation.is_disk_error(self.error):
            raise self.log.fail(self.error) from self.error

    def run_and_finish(self) -> None:
        self.run()
        self.finish()
