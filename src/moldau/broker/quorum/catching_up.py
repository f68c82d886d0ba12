"""Whether a node that started has caught up with the quorum, and who waits for that.

Caught up is who has applied what a leader has committed in its own epoch. That includes everything this node ever acted
upon: it heard of that from leaders of this epoch or of earlier ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)
_PATIENCE_SECONDS = 10.0


class CatchingUp:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self.is_over = False
        self._up_to: int | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._refusal: Exception | None = None

    async def wait(self, explain: Callable[[], str]) -> None:
        """While it takes long, the log says so again and again, with what `explain` knows."""
        if self._refusal is not None:
            raise self._refusal
        if not self.is_over:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            seconds = _PATIENCE_SECONDS
            while not (await asyncio.wait((waiter,), timeout=_PATIENCE_SECONDS))[0]:
                _log.warning("waiting for the quorum for %.0f s: %s", seconds, explain())
                seconds += _PATIENCE_SECONDS
            await waiter

    def applied(self, offset: int, leader_high_watermark: int | None) -> None:
        """So far this node has come. What a leader has committed counts as it was when it was first told."""
        if self._up_to is None:
            self._up_to = leader_high_watermark
        if self._up_to is not None and offset >= self._up_to:
            self.is_over = True
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()

    def refuse(self, reason: Exception) -> None:
        """It will not: whoever waits is told why."""
        self._refusal = reason
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(reason)
        self._waiters.clear()

    def stop(self) -> None:
        for waiter in self._waiters:
            waiter.cancel()
