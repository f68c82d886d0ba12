"""SaslAuthenticate (key 36), versions 0-2. No listener authenticates, so it always comes at the wrong moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call


_MESSAGE = "this listener does not use SASL: connect with security.protocol=PLAINTEXT, or SSL if it has TLS"


def handle(_broker: object, _call: Call, _request: m.SaslAuthenticateRequest) -> m.SaslAuthenticateResponse:
    return m.SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_MESSAGE)
