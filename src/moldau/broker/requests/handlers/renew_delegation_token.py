"""RenewDelegationToken (key 39), versions 1-2. By the owner of the token, or one of its renewers.

The broker looks whether the connection may ask, the active controller decides.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from moldau.broker.requests.delegation_tokens import is_allowed, rules_for
from moldau.broker.requests.forwarding import carry_out_rest
from moldau.controller.delegation_tokens import NEVER, renew_delegation_token
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.requests.delegation_tokens import Needs


async def handle(broker: Needs, call: Call, request: m.RenewDelegationTokenRequest) -> m.RenewDelegationTokenResponse:
    async def submit() -> m.RenewDelegationTokenResponse:
        command = partial(renew_delegation_token, rules=rules_for(broker, call))
        return await broker.controller.submit(command, request)

    if not is_allowed(call):
        code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        return m.RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=NEVER)
    if broker.is_controller_listener(call.connection.listener_name):
        return await submit()
    response = cast("m.RenewDelegationTokenResponse", await carry_out_rest(broker, call, submit, request))
    if not response.error_code:
        address = call.session.client_address
        broker.audit.changed(call.principal, address=address, api=call.api.name, target="token")
    return response
