"""One timer that is moved about: for whoever always knows when it wants to be woken next, or that it does not."""

from __future__ import annotations

from collections.abc import Callable

from moldau.timers.wheel import TimerHandle, TimingWheel


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
        self._action()
