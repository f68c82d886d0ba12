"""Memory for reading, shared by all connections of a loop, so that an idle connection owns no buffer at all.

Small frames are read into one shared buffer and handled in place. Only a frame too large for it gets memory of its own,
from a small pool, growing with the bytes that really arrive: announcing 100 MB costs the announcer, not us. What all
half-received frames hold together has a limit; beyond it one of them goes on and the others wait, so that some frame
is always finished.
"""

import contextlib
import mmap
import sys
from collections import deque
from collections.abc import Callable

SHARED_BYTES = 128 * 1024
UNCHARGED_BYTES = 16 * 1024
"""An unfinished rest of up to this size is nobody's concern."""
DEFAULT_LIMIT_BYTES = 256 * 1024 * 1024
_SMALLEST_BYTES = 8 * 1024
_LARGEST_KEPT_BYTES = 4 * 1024 * 1024
_KEPT_BYTES_MAX = 16 * 1024 * 1024
# Copying a hundred megabytes, or filling as many with zeros, takes longer than others should wait. Linux moves pages
# instead, and gives them when they are first written to.
_CAN_GROW_IN_PLACE = sys.platform == "linux"
LargeBuffer = bytearray | mmap.mmap


class ReadMemory:
    """The shared buffer, the pool of large ones, and the budget for half-received frames.

    Kafka charges a frame at its announced size; here what it holds counts, which is at most a small multiple of what
    has arrived. The budget may be exceeded by one frame.
    """

    __slots__ = (
        "_exceeding",
        "_free",
        "_free_bytes",
        "_limit_bytes",
        "_waiting",
        "reserved_bytes",
        "scratch",
        "shared",
    )

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.shared = memoryview(bytearray(SHARED_BYTES))
        self.scratch = memoryview(bytearray(SHARED_BYTES))  # ciphertext, and bytes to be thrown away
        self.reserved_bytes = 0
        self._limit_bytes = limit_bytes
        self._exceeding: object | None = None
        self._waiting: deque[Callable[[], None]] = deque()
        self._free: dict[int, list[bytearray]] = {}
        self._free_bytes = 0

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def reserve(self, owner: object, more_bytes: int) -> bool:
        """Charge what a frame needs beyond what it has. False: nothing is left, and another frame exceeds the budget
        already; `wait` for some."""
        if self.reserved_bytes + more_bytes > self._limit_bytes:
            if self._exceeding is not None and self._exceeding is not owner:
                return False
            self._exceeding = owner
        self.reserved_bytes += more_bytes
        return True

    def release(self, owner: object | None, held_bytes: int) -> None:
        self.reserved_bytes -= held_bytes
        if owner is not None and self._exceeding is owner:
            self._exceeding = None
        if self._waiting:
            # Wake all: those that find the budget used up again go back to the end of a queue as long as before.
            waiting, self._waiting = self._waiting, deque()
            for wake in waiting:
                wake()

    def hold(self, held_bytes: int) -> None:
        """Charge what has been read already, whatever the budget; a negative number gives it back."""
        if held_bytes < 0:
            self.release(None, -held_bytes)
        else:
            self.reserved_bytes += held_bytes

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake` once when some of the budget is given back."""
        self._waiting.append(wake)

    def size_of(self, at_least_bytes: int) -> int:
        """How large the buffer is that `take` gives for it."""
        return max(_SMALLEST_BYTES, 1 << (at_least_bytes - 1).bit_length())

    def take(self, at_least_bytes: int) -> LargeBuffer:
        """A buffer of at least that size, with arbitrary content."""
        size = self.size_of(at_least_bytes)
        if _CAN_GROW_IN_PLACE and size > _LARGEST_KEPT_BYTES:
            return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        kept = self._free.get(size)
        if kept:
            self._free_bytes -= size
            return kept.pop()
        return bytearray(size)

    def grow(self, buffer: LargeBuffer, used_bytes: int, at_least_bytes: int) -> LargeBuffer:
        """A buffer of at least that size that begins with the first `used_bytes` of this one, which is given back. No
        view of it may be left."""
        if isinstance(buffer, mmap.mmap):
            buffer.resize(self.size_of(at_least_bytes))
            return buffer
        grown = self.take(at_least_bytes)
        with memoryview(grown) as view:
            view[:used_bytes] = memoryview(buffer)[:used_bytes]
        self.give_back(buffer)
        return grown

    def give_back(self, buffer: LargeBuffer) -> None:
        if isinstance(buffer, mmap.mmap):
            with contextlib.suppress(BufferError):  # somebody kept a view of it: it goes with that
                buffer.close()
            return
        size = len(buffer)
        if size <= _LARGEST_KEPT_BYTES and self._free_bytes + size <= _KEPT_BYTES_MAX:
            self._free.setdefault(size, []).append(buffer)
            self._free_bytes += size
