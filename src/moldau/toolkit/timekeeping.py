"""The toolkit's time: a clock that can also call back. Tests bring one that stands still until it is told.

Delays, back-offs, commit intervals and circuit breakers ask this and nothing else, so that an hour of retries takes a
test no time. What waits for the network (polls, acknowledgements) does not: the broker's time is real.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Protocol

from moldau.seams import Clock, SystemClock


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class Time(Clock, Protocol):
    def call_at(self, monotonic_ms: float, callback: Callable[[], None]) -> Cancellable:
        """Call on the running loop, not before that time."""


class SystemTime(SystemClock):
    """The time of the machine."""

    def call_at(self, monotonic_ms: float, callback: Callable[[], None]) -> Cancellable:
        delay_s = max(0.0, monotonic_ms - self.monotonic_ms()) / 1_000
        return asyncio.get_running_loop().call_later(delay_s, callback)


class VirtualTime:
    """Time that moves only when `advance` is called."""

    def __init__(self, wall_ms: int | None = None) -> None:
        self._wall_ms = SystemClock().wall_ms() if wall_ms is None else wall_ms
        self._elapsed_ms = 0.0
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._cancelled: set[int] = set()

    def wall_ms(self) -> int:
        return self._wall_ms + round(self._elapsed_ms)

    def monotonic_ms(self) -> float:
        return self._elapsed_ms

    def call_at(self, monotonic_ms: float, callback: Callable[[], None]) -> Cancellable:
        if monotonic_ms <= self._elapsed_ms:
            return asyncio.get_running_loop().call_soon(callback)
        number = next(self._numbers)
        heapq.heappush(self._waiting, (monotonic_ms, number, callback))
        return _Timer(self._cancelled, number)

    def next_ms(self) -> float | None:
        """When somebody wants to be called next."""
        while self._waiting and self._waiting[0][1] in self._cancelled:
            self._cancelled.discard(heapq.heappop(self._waiting)[1])
        return self._waiting[0][0] if self._waiting else None

    def advance(self, milliseconds: float) -> None:
        """Move on, calling back on the way everyone whose time has come, in order."""
        end = self._elapsed_ms + milliseconds
        while (due := self.next_ms()) is not None and due <= end:
            _, _, callback = heapq.heappop(self._waiting)
            self._elapsed_ms = max(self._elapsed_ms, due)
            callback()
        self._elapsed_ms = end


class _Timer:
    __slots__ = ("_cancelled", "_number")

    def __init__(self, cancelled: set[int], number: int) -> None:
        self._cancelled = cancelled
        self._number = number

    def cancel(self) -> None:
        self._cancelled.add(self._number)


async def sleep(time: Time, milliseconds: float) -> None:
    """Sleep in that time."""
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    timer = time.call_at(time.monotonic_ms() + milliseconds, wake)
    try:
        await woken
    finally:
        timer.cancel()
