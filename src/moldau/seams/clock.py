"""Time. Wall-clock milliseconds go into records and files; monotonic milliseconds drive timeouts.

The two are never mixed: a wall clock may jump, and a timeout must not.
"""

from time import monotonic_ns, time_ns
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since the epoch, as Kafka's timestamps have them."""

    def monotonic_ms(self) -> float:
        """Milliseconds that only ever grow, from an arbitrary start."""


class SystemClock:
    def wall_ms(self) -> int:
        return time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return monotonic_ns() / 1_000_000
