"""Long work in turns: it is cut into slices, and all of it together gets a bounded part of each turn of the loop.

Whoever else uses the loop waits for one such part at most, however much work there is and whoever sent it.

Work is a generator that yields where it can be interrupted, about once a millisecond. Slices are taken in rotation, so
that short work is not behind long work. A clock that stands still (the simulator's) interrupts nothing: one
slice of each per turn, always in the same order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from sys import getrefcount
from typing import Any, TypeVar

T = TypeVar("T")
PART_MS = 5.0
"""How much of a turn is given to such work; a slice begun before is finished after."""
_FREED_PER_SLICE = 1_000
Slices = Generator[None, None, T]


def at_once(work: Slices[T]) -> T:
    """The result of work that is known to be short."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


def others_of(kept: list[Any]) -> int:
    """How many refer to what `kept` has, beside it. Asked like this and not of a local: from Python 3.14 on, a call may
    or may not have a reference of its own to a local it is given, and what somebody needs would be let go."""
    return getrefcount(kept[0]) - 2  # that of `kept`, and that of the call


def let_go(*lists: list[Any]) -> Slices[None]:
    """Free what long lists hold, piece by piece. At one go that would be one step of the interpreter, and nobody else
    has a turn within one, on whatever thread it is."""
    for each in lists:
        while each:
            del each[-_FREED_PER_SLICE:]
            yield


class Turns:
    """Belongs to one loop."""

    __slots__ = ("_is_scheduled", "_loop", "_now_ms", "_sleepers", "_steps", "longest_ms")

    def __init__(self, loop: asyncio.AbstractEventLoop, now_ms: Callable[[], float]) -> None:
        self._loop = loop
        self._now_ms = now_ms
        self._steps: deque[Callable[[], bool]] = deque()
        self._sleepers: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False
        self.longest_ms = 0.0
        """The longest part a turn had to give, for those who watch."""

    def __len__(self) -> int:
        """How much work is waiting for its next slice."""
        return len(self._steps)

    def add(self, step: Callable[[], bool]) -> None:
        """Call `step`, in turns, until it says that nothing is left (False). It must not raise: the loop reports it,
        and the step is not called again."""
        self._steps.append(step)
        self._schedule()

    def run(self, work: Slices[T]) -> T | asyncio.Future[T]:
        """The result, if one slice was enough, else its future. Cancelling the future ends the work."""
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        future: asyncio.Future[T] = self._loop.create_future()

        def step() -> bool:
            if future.done():  # nobody waits for it any more
                work.close()
                return False
            try:
                next(work)
            except StopIteration as done:
                future.set_result(done.value)
                return False
            except Exception as error:
                future.set_exception(error)
                return False
            return True

        self.add(step)
        return future

    def next_turn(self) -> asyncio.Future[None]:
        """For work that is a coroutine: done when its turn has come. One of them has it per turn of the loop."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self._sleepers.append(turn)
        self._schedule()
        return turn

    def _schedule(self) -> None:
        if (self._steps or self._sleepers) and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._part)

    def _part(self) -> None:
        self._is_scheduled = False
        while self._sleepers:
            sleeper = self._sleepers.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
                break
        started_ms = self._now_ms()
        used_ms = 0.0
        try:
            for _ in range(len(self._steps)):
                step = self._steps.popleft()
                if step():
                    self._steps.append(step)
                used_ms = self._now_ms() - started_ms
                if used_ms >= PART_MS:
                    break
        finally:  # a step that raised must not stop the others
            self.longest_ms = max(self.longest_ms, used_ms)
            self._schedule()
