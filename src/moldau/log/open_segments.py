"""A bound on open files: the segments that hold descriptors and mappings now.

Ten thousand partitions may be on disk; only the ones in use are open. A segment joins when it opens its file and may
be told to let go at any later moment when another one wants in: the first in line that was not used since it was last
passed over (the clock algorithm). Belongs to the thread that owns the logs, like the segments themselves.
"""

import resource
from collections import deque
from typing import Protocol

DESCRIPTORS_PER_SEGMENT = 4  # the log, two indexes, a transaction index
_RESERVED_DESCRIPTORS = 512  # for sockets and everything else, if the limit is small
_RESERVED_FOR_ALL_ELSE = 128  # connections to other nodes, checkpoints, what threads read, the spare of the disk
_MAX_SEGMENTS = 4096
_WANTED = (1_048_576, 65_536, 10_240, 1_024)  # the third is macOS' OPEN_MAX


class Closeable(Protocol):
    recently_used: bool

    def release(self) -> None: ...


def raise_descriptor_limit() -> None:
    """As many descriptors as this user may have: every connection and every open segment needs some. macOS begins with
    256, calls the most there may be unlimited, and refuses to give that: there it is the largest number it takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    most = 2**63 if hard == resource.RLIM_INFINITY else hard
    for wanted in (hard, *(each for each in _WANTED if soft < each < most)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            continue
        return


def default_capacity() -> int:
    """Half of the process's descriptors, at most."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(16, min(_MAX_SEGMENTS, max(soft // 2, soft - _RESERVED_DESCRIPTORS) // DESCRIPTORS_PER_SEGMENT))


def sockets_max(capacity: int) -> int:
    """How many sockets leave the descriptors that so many open segments, and what is opened beside them, may need."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return 2**31 - 1
    return max(16, soft - capacity * DESCRIPTORS_PER_SEGMENT - min(_RESERVED_FOR_ALL_ELSE, soft // 8))


class OpenSegments:
    __slots__ = ("_line", "capacity")

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = default_capacity() if capacity is None else capacity
        self._line: deque[Closeable] = deque()

    def __len__(self) -> int:
        return len(self._line)

    def opened(self, segment: Closeable) -> None:
        line = self._line
        while len(line) >= self.capacity:
            candidate = line.popleft()
            if candidate.recently_used:
                candidate.recently_used = False
                line.append(candidate)
            else:
                candidate.release()
        segment.recently_used = True
        line.append(segment)

    def closed(self, segment: Closeable) -> None:
        """The segment let go by itself: it is removed or closed for good."""
        if segment in self._line:
            self._line.remove(segment)
