"""AllocateProducerIds (key 67), version 0. A block of a thousand producer ids for one broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController


async def handle(
    broker: HasController, _call: Call, request: m.AllocateProducerIdsRequest
) -> m.AllocateProducerIdsResponse:
    response: m.AllocateProducerIdsResponse = await broker.controller.execute(request)
    return response
