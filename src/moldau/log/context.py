"""What every log of a node shares: the seams, the bound on open files, and whom to tell when something happens."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from moldau.log.open_segments import OpenSegments
from moldau.metrics.histogram import Histogram
from moldau.seams import Clock, Disk, Random, RealDisk, SystemClock, SystemRandom


class TruncatedLog(Protocol):
    """What those are told of a log who keep notes about it."""

    log_end_offset: int

    @property
    def log_dir(self) -> str: ...

    @property
    def topic_partition(self) -> tuple[str, int]: ...


def _ignore_failure(log_dir: str, error: OSError) -> None:
    """Without a manager there is nobody to take the dir offline; the log itself is."""


def _do_not_check() -> None:
    """What is held back is there for this."""


def _ignore_truncation(log: TruncatedLog) -> None:
    """Without a manager there is no checkpoint to lower."""


@dataclass(slots=True)
class LogContext:
    """What all logs of a node share."""

    disk: Disk = field(default_factory=RealDisk)
    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=SystemRandom)
    open_segments: OpenSegments = field(default_factory=OpenSegments)
    # How long flushes took, in seconds, for those who watch.
    flush_times: Histogram = field(default_factory=Histogram)
    # A disk failed under this log dir.
    on_failure: Callable[[str, OSError], None] = _ignore_failure
    # The log is about to be truncated below its recovery point, which must be lowered on disk first: after a crash,
    # records rewritten there would be taken for flushed ones.
    before_truncation: Callable[[TruncatedLog], None] = _ignore_truncation
    # The log was truncated.
    after_truncation: Callable[[TruncatedLog], None] = _ignore_truncation
    # OSError if what comes next may find no descriptor left.
    check_descriptors: Callable[[], None] = field(init=False)

    def __post_init__(self) -> None:
        self.check_descriptors = self.disk.check_descriptors

    def use_held_back(self) -> None:
        """For a log without which the node is nothing: it may use the descriptors that are held back for files."""
        self.check_descriptors = _do_not_check
