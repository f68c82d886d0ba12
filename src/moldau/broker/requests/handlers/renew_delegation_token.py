"""RenewDelegationToken (key 39), versions 1-2. Tokens are for connections that are authenticated, and none is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call


def handle(_broker: object, _call: Call, _request: m.RenewDelegationTokenRequest) -> m.RenewDelegationTokenResponse:
    return m.RenewDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=-1
    )
