"""TLS handshakes under way: computed in turns, and only so many at a time, since each holds what OpenSSL needs for it.

Whoever wants one while there are that many waits in line, with nothing but its hello. The line moves when a handshake
ends, and at the latest when the oldest has had its second: a crowd that stops halfway keeps nobody waiting for long.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from moldau.timers.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.timers.wheel import TimerHandle, TimingWheel

UNDER_WAY_MAX = 1000  # about 50 MiB
_MS_MIN = 1000.0


class Newcomer(Protocol):
    """Who wants a handshake."""

    def go_on(self) -> bool:
        """Its turn has come."""

    def close(self, reason: str) -> None: ...


class Handshakes:
    """Belongs to one reactor."""

    def __init__(self, turns: Turns, wheel: TimingWheel, now_ms: Callable[[], float]) -> None:
        self.turns = turns
        self._wheel = wheel
        self._now_ms = now_ms
        self._under_way: OrderedDict[Newcomer, float] = OrderedDict()  # since when, in the order they began
        self._line: OrderedDict[Newcomer, None] = OrderedDict()
        self._timer: TimerHandle | None = None

    @property
    def has_waiting(self) -> bool:
        return bool(self._line)

    def begin(self, newcomer: Newcomer) -> bool:
        """Whether it may begin now. Otherwise it is called when it may."""
        if len(self._under_way) < UNDER_WAY_MAX:
            self._under_way[newcomer] = self._now_ms()
            return True
        self._line[newcomer] = None
        self._watch()
        return False

    def ended(self, newcomer: Newcomer) -> None:
        """It is no newcomer any more, whether it had begun or not."""
        self._line.pop(newcomer, None)
        if self._under_way.pop(newcomer, None) is not None and self._line:
            following, _ = self._line.popitem(last=False)
            self._under_way[following] = self._now_ms()
            self.turns.add(following.go_on)
        if not self._line and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self) -> None:
        """As long as somebody waits."""
        if self._line and self._timer is None:
            since_ms = next(iter(self._under_way.values()))
            self._timer = self._wheel.add(since_ms + _MS_MIN, self._hurry)

    def _hurry(self) -> None:
        self._timer = None
        before_ms = self._now_ms() - _MS_MIN
        for newcomer, since_ms in tuple(self._under_way.items()):
            if since_ms > before_ms or not self._line:
                break
            newcomer.close("others wait, and it did not finish its handshake")
        self._watch()
