"""One timer that is moved about: for whoever always knows when it wants to be woken next, or that it does not.

Invariant: an action that fails before it has said when it wants to be woken next is woken again, a little later. What
is done from time to time (sessions that end, leaders that are balanced) must not stop for good after one mistake.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from moldau.timers.wheel import TimerHandle, TimingWheel

_log = logging.getLogger(__name__)

RETRY_MS = 500


class WakeUp:
    """Calls `action` once at the time it was last set to."""

    __slots__ = ("_action", "_timer", "_wheel")

    def __init__(self, wheel: TimingWheel, action: Callable[[], None]) -> None:
        self._wheel = wheel
        self._action = action
        self._timer: TimerHandle | None = None

    @property
    def is_set(self) -> bool:
        return self._timer is not None

    def at(self, deadline_ms: float | None) -> None:
        """None: not at all."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            self._timer = self._wheel.add(deadline_ms, self._fire)

    def _fire(self) -> None:
        self._timer = None
        try:
            self._action()
        except Exception:
            _log.exception("what was due failed; it is tried again in %d ms", RETRY_MS)
            if self._timer is None:
                self.at(self._wheel.now_ms + RETRY_MS)
