"""ExpireDelegationToken (key 40), versions 1-2. By the owner of the token, or one of its renewers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.broker.requests.delegation_tokens import change_end
from moldau.controller.delegation_tokens import expire_delegation_token
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.requests.delegation_tokens import Needs


async def handle(broker: Needs, call: Call, request: m.ExpireDelegationTokenRequest) -> m.ExpireDelegationTokenResponse:
    return await change_end(broker, call, request, expire_delegation_token, m.ExpireDelegationTokenResponse)
