"""The real Network: sockets of this machine, on the running event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

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

    `wheel` is driven by this loop: the owner's own timers (purgatories) may share it.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        settings: NetSettings | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        clock = clock or SystemClock()
        self._timers = LoopTimers(loop, clock)
        self._clients: set[client.FrameClient] = set()
        self.reactor = Reactor(loop, clock, self._timers.wheel, settings, limits)

    @property
    def wheel(self) -> TimingWheel:
        return self._timers.wheel

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
        self._clients = {each for each in self._clients if not each.is_closed}
        connection = await client.connect(self.reactor, host, port, tls=tls, timeout_ms=timeout_ms)
        self._clients.add(connection)
        return connection

    async def stop(self, drain_ms: float) -> None:
        await self.reactor.stop(drain_ms)
        for each in self._clients:
            each.close_now("we stop")
        self._clients.clear()
        self._timers.close()
