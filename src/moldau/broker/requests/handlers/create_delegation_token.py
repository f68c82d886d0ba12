"""CreateDelegationToken (key 38), versions 1-3. A token for the client, or from version 3 on for somebody else.

The broker looks whether the connection may ask, the active controller makes the token. Who connects to a controller is
looked at there: only what came in an Envelope has been looked at before.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from moldau.broker.requests.access import may
from moldau.broker.requests.delegation_tokens import is_allowed, rules_for
from moldau.broker.requests.forwarding import carry_out_rest
from moldau.controller.acls import AclResource, Operation
from moldau.controller.delegation_tokens import create_delegation_token, created_nothing
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.requests.delegation_tokens import Needs


async def handle(broker: Needs, call: Call, request: m.CreateDelegationTokenRequest) -> m.CreateDelegationTokenResponse:
    async def submit() -> m.CreateDelegationTokenResponse:
        command = partial(create_delegation_token, rules=rules_for(broker, call))
        return await broker.controller.submit(command, request)

    requester = str(call.principal)
    owner = requester
    if request.owner_principal_name:
        owner = f"{request.owner_principal_type or ''}:{request.owner_principal_name}"
    if not is_allowed(call):
        return created_nothing(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, owner, requester)
    if owner != requester and not may(broker, call, Operation.CREATE_TOKENS, AclResource.USER)(owner):
        return created_nothing(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, owner, requester)
    if broker.is_controller_listener(call.connection.listener_name):
        return await submit()
    response = cast("m.CreateDelegationTokenResponse", await carry_out_rest(broker, call, submit, request))
    if not response.error_code:
        target = f"token {response.token_id} of {owner}"
        address = call.session.client_address
        broker.audit.changed(call.principal, address=address, api=call.api.name, target=target)
    return response
