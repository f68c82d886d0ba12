"""The real Network: sockets of this machine, on the running event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from moldau.net import client
from moldau.net.listener import Listener
from moldau.net.loop import LoopTimers
from moldau.net.reactor import Reactor
from moldau.net.settings import UNLIMITED, ConnectionLimits, NetSettings
from moldau.seams.clock import Clock, SystemClock
from moldau.seams.network import FrameHandler
from moldau.timers.wheel import TimingWheel

if TYPE_CHECKING:
    from ssl import SSLContext


class RealNetwork:
    """See `moldau.seams.network.Network`. Created on the loop it is to use.

    Timeouts run on `wheel`, which its owner drives; without one, on an own wheel that this loop drives.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        settings: NetSettings | None = None,
        limits: ConnectionLimits | None = None,
        wheel: TimingWheel | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        clock = clock or SystemClock()
        self._timers = LoopTimers(loop, clock) if wheel is None else None
        self.wheel = self._timers.wheel if self._timers is not None else cast("TimingWheel", wheel)
        self._clients: dict[client.FrameClient, None] = {}
        self.reactor = Reactor(loop, clock, self.wheel, settings, limits)

    async def listen(
        self,
        host: str,
        port: int,
        handler: FrameHandler,
        *,
        name: str,
        tls: SSLContext | None = None,
        is_protected: bool = False,
        max_connections: int = UNLIMITED,
    ) -> Listener:
        return self.reactor.listen(
            host, port, handler, name=name, tls=tls, is_protected=is_protected, max_connections=max_connections
        )

    async def connect(
        self, host: str, port: int, *, tls: SSLContext | None = None, timeout_ms: float = 30_000
    ) -> client.FrameClient:
        self._clients = {each: None for each in self._clients if not each.is_closed}
        connection = await client.connect(self.reactor, host, port, tls=tls, timeout_ms=timeout_ms)
        self._clients[connection] = None
        return connection

    async def stop(self, drain_ms: float) -> None:
        await self.reactor.stop(drain_ms)
        for each in self._clients:
            each.close_now("we stop")
        self._clients.clear()
        if self._timers is not None:
            self._timers.close()
