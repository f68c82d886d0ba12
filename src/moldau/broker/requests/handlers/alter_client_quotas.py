"""AlterClientQuotas (key 49), versions 0-1. Sets and removes quotas of users, clients and addresses.

Each entity gets all of its changes or none; `validate_only` changes nothing. What is set is obeyed by every broker once
it knows of it (`broker/quotas`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.controller.quotas import alter_client_quotas
from moldau.timers.turns import Slices
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController
    from moldau.broker.parts import HasAudit, HasTurns

    class Needs(HasAudit, HasController, HasTurns, Protocol):
        """What this file may touch."""


_PER_SLICE = 100


async def handle(broker: Needs, call: Call, request: m.AlterClientQuotasRequest) -> m.AlterClientQuotasResponse:
    response = await broker.controller.submit(alter_client_quotas, request)
    if broker.audit.notes_changes and not request.validate_only:
        await broker.in_turns(_note(broker, call, request, response))
    return response


def _note(
    broker: Needs, call: Call, request: m.AlterClientQuotasRequest, response: m.AlterClientQuotasResponse
) -> Slices[None]:
    for number, (asked, entry) in enumerate(zip(request.entries, response.entries, strict=True), 1):
        if entry.error_code == ErrorCode.NONE:
            who = " ".join(f"{part.entity_type}={part.entity_name or '<default>'}" for part in asked.entity)
            what = " ".join(f"{op.key}={'removed' if op.remove else op.value}" for op in asked.ops)
            address = call.session.client_address
            broker.audit.changed(call.principal, address=address, api=call.api.name, target=f"{who} {what}")
        if number % _PER_SLICE == 0:
            yield
