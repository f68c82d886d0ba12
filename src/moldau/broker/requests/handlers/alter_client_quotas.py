"""AlterClientQuotas (key 49), versions 0-1. Sets and removes quotas of users, clients and addresses.

Each entity gets all of its changes or none; `validate_only` changes nothing. What is set is obeyed by every broker once
it knows of it (`broker/quotas`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.controller.quotas import alter_client_quotas
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController


async def handle(
    broker: HasController, _call: Call, request: m.AlterClientQuotasRequest
) -> m.AlterClientQuotasResponse:
    return await broker.controller.submit(alter_client_quotas, request)
