"""The event loop: uvloop where it is there, plain asyncio elsewhere, and the timing wheel on top of it."""

from __future__ import annotations

import asyncio
from typing import Literal

from moldau.seams.clock import Clock
from moldau.timers.wheel import TimingWheel

LoopKind = Literal["auto", "uvloop", "asyncio"]


def new_event_loop(kind: LoopKind = "auto") -> asyncio.AbstractEventLoop:
    """A new loop, set nowhere: run it with `loop.run_until_complete`, or give it to `asyncio.Runner`."""
    if kind != "asyncio":
        try:
            import uvloop
        except ImportError:
            if kind == "uvloop":
                raise
        else:
            loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
            return loop
    return asyncio.new_event_loop()


class LoopTimers:
    """Advances a wheel from a loop: sleeps until its next bucket, and wakes for nothing else."""

    __slots__ = ("_armed_ms", "_clock", "_is_advancing", "_loop", "_wakeup", "wheel")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self.wheel = TimingWheel(clock.monotonic_ms())
        self.wheel.on_earlier_deadline = self._rearm
        self._wakeup: asyncio.TimerHandle | None = None
        self._armed_ms = 0
        self._is_advancing = False

    def close(self) -> None:
        self.wheel.on_earlier_deadline = None
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None

    def _rearm(self) -> None:
        if self._is_advancing:
            return
        deadline_ms = self.wheel.next_deadline_ms()
        if self._wakeup is not None:
            if deadline_ms is not None and self._armed_ms <= deadline_ms:
                return  # it wakes early enough, and looks again then
            self._wakeup.cancel()
            self._wakeup = None
        if deadline_ms is not None:
            self._armed_ms = deadline_ms
            delay_ms = max(0.0, deadline_ms - self._clock.monotonic_ms())
            self._wakeup = self._loop.call_later(delay_ms / 1000, self._wake)

    def _wake(self) -> None:
        self._wakeup = None
        self._is_advancing = True
        try:
            self.wheel.advance(self._clock.monotonic_ms())
        finally:  # a callback that raises is reported by the loop; the others must still run
            self._is_advancing = False
            self._rearm()
