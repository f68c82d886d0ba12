"""AssignReplicasToDirs (key 73), version 0. A broker says in which of its log dirs its replicas lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController


async def handle(
    broker: HasController, _call: Call, request: m.AssignReplicasToDirsRequest
) -> m.AssignReplicasToDirsResponse:
    response: m.AssignReplicasToDirsResponse = await broker.controller.execute(request)
    return response
