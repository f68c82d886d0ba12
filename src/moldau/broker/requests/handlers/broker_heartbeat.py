"""BrokerHeartbeat (key 63), versions 0-2. A broker is alive, has read so far, or wants to go; it is told its state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController


async def handle(broker: HasController, _call: Call, request: m.BrokerHeartbeatRequest) -> m.BrokerHeartbeatResponse:
    response: m.BrokerHeartbeatResponse = await broker.controller.execute(request)
    return response
