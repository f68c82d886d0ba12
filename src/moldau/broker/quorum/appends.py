"""What this node appended to the metadata log as its leader and a majority does not have yet, and who waits for it.

Invariant: everybody who waits is told once: that it is committed, or that nobody knows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from moldau.broker.quorum.prepared import PreparedAppend


class PendingAppend(NamedTuple):
    """Records that belong together, and whom to tell."""

    last_offset: int
    prepared: PreparedAppend
    done: asyncio.Future[None]


class QuorumAppends:
    """Belongs to the event loop."""

    __slots__ = ("_control", "_pending")

    def __init__(self) -> None:
        self._pending: deque[PendingAppend] = deque()
        # Control records that somebody waits for: their offset, and whom to tell.
        self._control: list[tuple[int, asyncio.Future[None]]] = []

    def add(self, last_offset: int, prepared: PreparedAppend) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append(PendingAppend(last_offset, prepared, done))
        return done

    def add_control(self, offset: int) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._control.append((offset, done))
        return done

    def newest(self) -> asyncio.Future[None] | None:
        """Of the records that were appended last, if a majority does not have them yet."""
        return self._pending[-1].done if self._pending else None

    def take_committed(self, offset: int) -> Iterator[PendingAppend]:
        """Those below, in order; telling those who wait is left to the caller, who acts on them first."""
        while self._pending and self._pending[0].last_offset < offset:
            yield self._pending.popleft()

    def finish_control(self, offset: int) -> None:
        """Control records below are committed."""
        for _, done in [each for each in self._control if each[0] < offset]:
            if not done.done():
                done.set_result(None)
        self._control = [each for each in self._control if each[0] >= offset]

    def fail(self, error: Exception) -> None:
        """Whether any of it will be committed is not known here."""
        waiting = [done for _, done in self._control] + [each.done for each in self._pending]
        self._control.clear()
        self._pending.clear()
        for done in waiting:
            if not done.done():
                done.set_exception(error)
                done.exception()  # nobody may be waiting any more
