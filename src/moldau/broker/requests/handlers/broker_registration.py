"""BrokerRegistration (key 62), versions 0-4. A broker begins an incarnation; its record's offset is its epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController


async def handle(
    broker: HasController, _call: Call, request: m.BrokerRegistrationRequest
) -> m.BrokerRegistrationResponse:
    response: m.BrokerRegistrationResponse = await broker.controller.execute(request)
    return response
