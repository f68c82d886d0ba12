"""UnregisterBroker (key 64), version 0. An administrator takes a broker that will not come back out of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.requests.calls import Call


async def handle(broker: Broker, _call: Call, request: m.UnregisterBrokerRequest) -> m.UnregisterBrokerResponse:
    response: m.UnregisterBrokerResponse = await broker.controller.execute(request)
    return response
