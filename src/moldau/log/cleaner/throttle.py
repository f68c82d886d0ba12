"""Holds the cleaner back to a number of bytes per second, read and written together.

The limit is asked for at every turn, and a wait is never longer than a second: a new one counts at once, even for a
cleaning under way. All cleaner threads share one throttle.
"""

import sys
import threading
from collections.abc import Callable

from moldau.seams import Clock

UNLIMITED_BYTES_PER_SECOND = sys.float_info.max  # Kafka's default
_WAIT_S_MIN = 0.01  # a shorter one is owed until it is worth the switch of threads
_WAIT_S_MAX = 1.0


class Throttle:
    __slots__ = ("_bytes_per_second", "_clock", "_debt_bytes", "_lock", "_since_ms", "_wait")

    def __init__(
        self,
        bytes_per_second: Callable[[], float],
        clock: Clock,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._wait = wait or threading.Event().wait
        self._lock = threading.Lock()
        self._debt_bytes = 0.0
        self._since_ms = clock.monotonic_ms()

    def spend(self, size: int) -> None:
        """Note bytes that were read or written, and wait until they are paid for."""
        if self._bytes_per_second() >= UNLIMITED_BYTES_PER_SECOND:
            return
        with self._lock:
            self._debt_bytes += size
        while (due_s := self._due_s()) > _WAIT_S_MIN:
            self._wait(min(due_s, _WAIT_S_MAX))

    def _due_s(self) -> float:
        """How long the debt takes at the present limit. What time has paid is struck off; old thrift is no credit."""
        limit = max(1.0, self._bytes_per_second())
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            self._debt_bytes = max(0.0, self._debt_bytes - limit * (now_ms - self._since_ms) / 1000)
            self._since_ms = now_ms
            return self._debt_bytes / limit
