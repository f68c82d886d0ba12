"""Memory for reading, shared by all connections of a loop, so that an idle connection owns no buffer at all.

Small frames are read into one shared buffer and handled in place. Only a frame too large for it gets memory of its own,
from a small pool, growing with the bytes that really arrive: announcing 100 MB costs the announcer, not us.
"""

from collections import deque
from collections.abc import Callable

SHARED_BYTES = 128 * 1024
_SMALLEST_BYTES = 256 * 1024
_LARGEST_KEPT_BYTES = 4 * 1024 * 1024
_KEPT_BYTES_MAX = 16 * 1024 * 1024


class ReadMemory:
    """The shared buffer, the pool of large ones, and the budget for frames that need them.

    As in Kafka, a frame is admitted while anything of the budget is left, and charged at its full announced size; so
    the budget may be exceeded by one frame, and an admitted frame never waits for another one.
    """

    __slots__ = ("_free", "_free_bytes", "_limit_bytes", "_waiting", "reserved_bytes", "scratch", "shared")

    def __init__(self, limit_bytes: int = -1) -> None:
        self.shared = memoryview(bytearray(SHARED_BYTES))
        self.scratch = memoryview(bytearray(SHARED_BYTES))  # ciphertext, and bytes to be thrown away
        self.reserved_bytes = 0
        self._limit_bytes = limit_bytes
        self._waiting: deque[Callable[[], None]] = deque()
        self._free: dict[int, list[bytearray]] = {}
        self._free_bytes = 0

    def reserve(self, frame_bytes: int) -> bool:
        """Charge a frame to the budget. False: there is nothing left; `wait` for some."""
        if 0 <= self._limit_bytes <= self.reserved_bytes:
            return False
        self.reserved_bytes += frame_bytes
        return True

    def release(self, frame_bytes: int) -> None:
        self.reserved_bytes -= frame_bytes
        if self._waiting:
            # Wake all: those that find the budget used up again go back to the end of a queue as long as before.
            waiting, self._waiting = self._waiting, deque()
            for wake in waiting:
                wake()

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake` once when some of the budget is given back."""
        self._waiting.append(wake)

    def take(self, at_least_bytes: int) -> bytearray:
        """A buffer of at least that size, with arbitrary content."""
        size = _SMALLEST_BYTES
        while size < at_least_bytes:
            size *= 2
        kept = self._free.get(size)
        if kept:
            self._free_bytes -= size
            return kept.pop()
        return bytearray(size)

    def give_back(self, buffer: bytearray) -> None:
        size = len(buffer)
        if size <= _LARGEST_KEPT_BYTES and self._free_bytes + size <= _KEPT_BYTES_MAX:
            self._free.setdefault(size, []).append(buffer)
            self._free_bytes += size
