"""SaslAuthenticate (key 36), versions 0-2. One token of the mechanism that SaslHandshake chose, and the answer to it.

A failure is answered after a delay, and ends the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.broker.requests.authentication import logged_in, refuse_login
from moldau.security.sasl.authenticator import IllegalSaslState
from moldau.security.sasl.mechanism import AuthenticationFailed
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.requests.authentication import Needs


_NO_SASL = "this listener does not use SASL: connect with security.protocol=PLAINTEXT, or SSL if it has TLS"
_NOT_NEXT = "SaslAuthenticate request received after successful authentication"


def handle(broker: Needs, call: Call, request: m.SaslAuthenticateRequest) -> m.SaslAuthenticateResponse | None:
    sasl = call.session.sasl
    if sasl is None:
        return m.SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_NO_SASL)
    clock = broker.clock
    try:
        answer = sasl.authenticate(bytes(request.auth_bytes), now_ms=clock.monotonic_ms(), wall_ms=clock.wall_ms())
    except IllegalSaslState:
        return m.SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_NOT_NEXT)
    except AuthenticationFailed as error:
        code, text = ErrorCode.SASL_AUTHENTICATION_FAILED, sasl.failure_text(error)
        refuse_login(broker, call, m.SaslAuthenticateResponse(error_code=code, error_message=text), error)
        return None
    if sasl.is_complete:
        logged_in(broker, call.connection)
    return m.SaslAuthenticateResponse(
        error_message=None, auth_bytes=answer.token, session_lifetime_ms=answer.session_lifetime_ms
    )
