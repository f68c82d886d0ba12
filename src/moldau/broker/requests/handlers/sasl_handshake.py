"""SaslHandshake (key 17), versions 0-1. The client chooses a mechanism; after version 0, tokens follow as they are.

On a listener without SASL, and at any other wrong moment, it is answered ILLEGAL_SASL_STATE. A mechanism that the
listener does not have ends the connection; the answer says which ones it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.broker.requests.authentication import refuse_login
from moldau.security.sasl.authenticator import IllegalSaslState, UnsupportedMechanism
from moldau.security.sasl.mechanism import AuthenticationFailed
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.requests.authentication import Needs


def handle(broker: Needs, call: Call, request: m.SaslHandshakeRequest) -> m.SaslHandshakeResponse | None:
    sasl = call.session.sasl
    if sasl is None:
        return m.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    try:
        sasl.handshake(request.mechanism, is_raw=call.version == 0, now_ms=broker.clock.monotonic_ms())
    except IllegalSaslState:
        return m.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    except UnsupportedMechanism:
        response = m.SaslHandshakeResponse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, sasl.mechanisms)
        detail = f"the listener does not have the mechanism {request.mechanism[:64]}"
        refuse_login(broker, call, response, AuthenticationFailed(detail=detail))
        return None
    return m.SaslHandshakeResponse(ErrorCode.NONE, sasl.mechanisms)
