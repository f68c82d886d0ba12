"""The way to the active controller, wherever it is: in this process, or at the end of a connection.

    response = await broker.controller_channel.call(m.AllocateProducerIdsRequest(...))

A request is repeated until the active controller answered it or the time is up, so only requests that may be carried
out twice go this way: all those brokers make of controllers may.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from moldau.controller.errors import NotController
from moldau.seams.network import Disconnected, RequestTimedOut
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.controller.local import LocalController
    from moldau.broker.parts import HasConfig, HasPeers, HasTime
    from moldau.broker.quorum.parts import HasQuorum

    class Needs(HasConfig, HasPeers, HasTime, HasQuorum, Protocol):
        """What this file may touch."""

        @property
        def controller(self) -> LocalController: ...


_RETRY_MS = 50.0
_ATTEMPT_MS = 5_000.0  # a controller that takes longer may be frozen: look for another one
# What keeps a broker alive must not stand behind what takes long.
_LIFECYCLE = (m.BrokerHeartbeatRequest, m.BrokerRegistrationRequest)


class ControllerChannel:
    """Belongs to the event loop."""

    def __init__(self, broker: Needs) -> None:
        self._broker = broker

    async def call(self, request: Message, *, timeout_ms: float | None = None, version: int | None = None) -> Any:
        """The active controller's response; RequestTimedOut if there was none in time (`request.timeout.ms`)."""
        broker = self._broker
        if timeout_ms is None:
            timeout_ms = broker.config.get_int("request.timeout.ms")
        deadline_ms = broker.clock.monotonic_ms() + timeout_ms
        lane = "lifecycle" if isinstance(request, _LIFECYCLE) else "controller"
        while True:
            left_ms = deadline_ms - broker.clock.monotonic_ms()
            if left_ms <= 0:
                raise RequestTimedOut(f"no active controller answered {type(request).__name__} in {timeout_ms:.0f} ms")
            response = await self._attempt(request, min(left_ms, _ATTEMPT_MS), version, lane)
            if response is not None:
                return response
            await self.pause(min(left_ms, _RETRY_MS))

    async def pause(self, timeout_ms: float) -> None:
        """Until the quorum's leader changes, or for so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                await self._broker.controller.leader_changed()

    async def _attempt(self, request: Message, timeout_ms: float, version: int | None, lane: str) -> Any:
        """None if there is nobody to ask, or whoever was asked is not the one."""
        broker = self._broker
        if broker.controller.is_active:
            try:
                return await broker.controller.execute(request)
            except NotController:
                return None
        endpoint = broker.metadata_log.leader_endpoint()
        if endpoint is None:
            return None
        try:
            response = await broker.controller_channels.call(
                *endpoint, request, timeout_ms=timeout_ms, version=version, lane=lane
            )
        except (Disconnected, RequestTimedOut):
            return None
        return None if getattr(response, "error_code", 0) == ErrorCode.NOT_CONTROLLER else response
