"""SaslHandshake (key 17), versions 0-1. No listener authenticates, so it always comes at the wrong moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call


def handle(_broker: object, _call: Call, _request: m.SaslHandshakeRequest) -> m.SaslHandshakeResponse:
    return m.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
