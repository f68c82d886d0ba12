"""AlterPartition (key 56), versions 2-3. A partition's leader says who is in sync; it counts when committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController


async def handle(broker: HasController, _call: Call, request: m.AlterPartitionRequest) -> m.AlterPartitionResponse:
    response: m.AlterPartitionResponse = await broker.controller.execute(request)
    return response
