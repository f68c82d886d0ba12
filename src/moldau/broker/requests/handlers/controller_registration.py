"""ControllerRegistration (key 70), version 0. A controller says where it listens and which features it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController


async def handle(
    broker: HasController, _call: Call, request: m.ControllerRegistrationRequest
) -> m.ControllerRegistrationResponse:
    response: m.ControllerRegistrationResponse = await broker.controller.execute(request)
    return response
