"""UnregisterBroker (key 64), version 0. An administrator takes a broker that will not come back out of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController


async def handle(broker: HasController, _call: Call, request: m.UnregisterBrokerRequest) -> m.UnregisterBrokerResponse:
    response: m.UnregisterBrokerResponse = await broker.controller.execute(request)
    return response
