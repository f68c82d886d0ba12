"""AllocateProducerIds (key 67), version 0. A block of a thousand producer ids for one broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.requests.calls import Call


async def handle(broker: Broker, _call: Call, request: m.AllocateProducerIdsRequest) -> m.AllocateProducerIdsResponse:
    response: m.AllocateProducerIdsResponse = await broker.controller.execute(request)
    return response
