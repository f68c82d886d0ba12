"""When the interpreter looks for garbage that refers to itself, which counting references does not free.

Young objects are looked at as ever, a few thousand at a time. A look at all of them stops everybody for about 0.1 us
each, and the interpreter takes one whenever their number has grown by a quarter: while a request of a million elements
is read, that is several times, up to a quarter of a second. So the looks at all are timed here. They wait while there
are too many objects to be quick about it: what a large request made is gone again in a few seconds, without any look.
What is still there after a minute has come to stay (partitions, members of groups): it is looked at once more and then
no longer, but for one thorough look every hour.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from typing import Protocol

_LOOK_SECONDS = 1.0
_NEVER = 1_000_000_000
_DUE_AFTER = 10  # collections of the middle generation, as the interpreter has it
_QUICK_BLOCKS = 150_000  # about 15 ms
_STAYS_AFTER_MS = 60_000
_THOROUGH_AFTER_MS = 3_600_000


class _Gc(Protocol):
    """The functions of the module that are used here."""

    def collect(self) -> int: ...
    def freeze(self) -> None: ...
    def unfreeze(self) -> None: ...
    def get_count(self) -> tuple[int, int, int]: ...


class Collector:
    def __init__(
        self, now_ms: float, *, collector: _Gc = gc, count_blocks: Callable[[], int] = sys.getallocatedblocks
    ) -> None:
        """Whatever exists now stays for the life of the process."""
        self._gc = collector
        self._count_blocks = count_blocks
        self._thorough_ms = now_ms
        self._large_since_ms: float | None = None
        self._frozen_blocks = 0
        self._freeze()

    def look(self, now_ms: float) -> None:
        """Called from time to time."""
        if now_ms - self._thorough_ms >= _THOROUGH_AFTER_MS:
            self._thorough_ms = now_ms
            self._gc.unfreeze()
            self._collect_and_freeze()
            return
        is_large = self._count_blocks() - self._frozen_blocks > _QUICK_BLOCKS
        if not is_large:
            self._large_since_ms = None
        elif self._large_since_ms is None:
            self._large_since_ms = now_ms
        if self._gc.get_count()[2] < _DUE_AFTER:
            return
        if self._large_since_ms is None:
            self._gc.collect()
        elif now_ms - self._large_since_ms >= _STAYS_AFTER_MS:
            self._collect_and_freeze()

    def _collect_and_freeze(self) -> None:
        self._gc.collect()
        self._freeze()

    def _freeze(self) -> None:
        self._gc.freeze()
        self._frozen_blocks = self._count_blocks()
        self._large_since_ms = None


async def collect_in_time(loop: asyncio.AbstractEventLoop) -> None:
    """For the life of a process that is a broker and nothing else."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    collector = Collector(loop.time() * 1000)
    gc.enable()
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        collector.look(loop.time() * 1000)
