"""What those who share a reactor may touch of it, and of each other. Each file adds what only it needs (`Needs`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, MutableMapping
    from ssl import SSLContext

    from moldau.net.buffers import ReadMemory
    from moldau.net.channel import Channel
    from moldau.net.settings import NetCounters, NetSettings
    from moldau.seams.clock import Clock
    from moldau.seams.network import FrameHandler
    from moldau.timers.wheel import TimingWheel


class HasLoop(Protocol):
    """Where sockets and timers are watched."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def wheel(self) -> TimingWheel: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def now_ms(self) -> Callable[[], float]: ...


class HasMemory(Protocol):
    @property
    def memory(self) -> ReadMemory: ...


class HasSettings(Protocol):
    @property
    def settings(self) -> NetSettings: ...


class TakesIn(HasLoop, HasMemory, HasSettings, Protocol):
    """Whoever came in by a listener belongs to it, and leaves it."""

    def new_id(self) -> int: ...

    def linger(self, channel: Channel) -> None:
        """Close, once the peer has had the chance to read our last bytes."""


class Guest(Protocol):
    """Who came in, and may have to make room."""

    @property
    def since_ms(self) -> float: ...

    def close(self, reason: str) -> None: ...


class Host(Protocol):
    """The listener by which somebody came in."""

    @property
    def name(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def tls(self) -> SSLContext | None: ...
    @property
    def handler(self) -> FrameHandler: ...
    @property
    def counters(self) -> NetCounters: ...
    @property
    def strangers(self) -> MutableMapping[int, Guest]:
        """Who has not proved yet who it is, in the order they came."""
