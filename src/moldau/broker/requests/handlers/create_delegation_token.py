"""CreateDelegationToken (key 38), versions 1-3. Tokens are for connections that are authenticated, and none is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call


_NEVER = -1
_OWNERS = 3  # from this version on, a token may be asked for in somebody else's name


def handle(_broker: object, call: Call, request: m.CreateDelegationTokenRequest) -> m.CreateDelegationTokenResponse:
    kind, name = call.principal.type, call.principal.name
    owner = kind, name
    if call.version >= _OWNERS and request.owner_principal_name:
        owner = request.owner_principal_type or "", request.owner_principal_name
    return m.CreateDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        principal_type=owner[0],
        principal_name=owner[1],
        token_requester_principal_type=kind,
        token_requester_principal_name=name,
        issue_timestamp_ms=_NEVER,
        expiry_timestamp_ms=_NEVER,
        max_timestamp_ms=_NEVER,
    )
