"""One incarnation of a log, and whether it is over.

A log is appended to, deleted, made again under the same name, truncated and moved while jobs work on it off the loop.
Every job takes the incarnation of the log it was made for (`PartitionLog.incarnation`) with it. While it runs it may
ask whether that is over, and give up early; in `finish`, on the loop, it must ask before it changes anything, because
only there nothing can come in between.

Invariant: an incarnation ends, for good, before the first file of its log is truncated, renamed or let go: by
truncation (the log goes on as another incarnation), deletion, a move, a failed dir, or the end of the node. What is
appended, rolled or removed at the start (retention) does not end it. Files of an incarnation that is over may vanish at
any time; that is no fault of the disk.
"""

from moldau.log.errors import IncarnationOver


class Incarnation:
    """Ended on the loop, asked on any thread."""

    __slots__ = ("ended",)

    def __init__(self) -> None:
        self.ended = ""  # why, once it is over

    def __repr__(self) -> str:
        return f"Incarnation({self.ended or 'goes on'})"

    @property
    def is_over(self) -> bool:
        return bool(self.ended)

    def end(self, why: str) -> None:
        self.ended = self.ended or why

    def followed(self, why: str) -> "Incarnation":
        """End this one; the one that comes after it."""
        self.end(why)
        return Incarnation()

    def check(self) -> None:
        if self.ended:
            raise IncarnationOver(f"the log {self.ended} meanwhile")

    def is_disk_error(self, error: BaseException | None) -> bool:
        """Whether an error that a job met is to be taken for the disk's."""
        return isinstance(error, OSError) and not (self.ended and isinstance(error, FileNotFoundError))
