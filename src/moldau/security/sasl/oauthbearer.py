"""OAUTHBEARER (RFC 7628) as a server speaks it: one message with a token.

A token that is not accepted is answered with a short JSON text; the client acknowledges it, and only then is refused.
Nobody is told what was wrong with a token.
"""

from __future__ import annotations

import re
from typing import Protocol

from moldau.security.bearer_tokens import Bearer, InvalidToken
from moldau.security.principal import Principal
from moldau.security.sasl.mechanism import AuthenticationFailed, Identity, Step

MESSAGE_BYTES_MAX = 72 * 1024  # a token of the longest kind, and a little more
_SASL_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_FIRST = re.compile(rf"n,(?:a=({_SASL_NAME}))?,\x01((?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01")
_AUTH = re.compile(r"\w+ +([-_~+/.a-zA-Z0-9]+=*)")
_REFUSAL = b'{"status":"invalid_token"}'
_ACKNOWLEDGED = b"\x01"


class Verifier(Protocol):
    def verify(self, token: str, now_ms: int) -> Bearer:
        """Raises InvalidToken."""


class OAuthBearerServer:
    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._refused: str | None = None

    def step(self, token: bytes, now_ms: int) -> Step:
        if self._refused is not None:
            if token != _ACKNOWLEDGED:
                raise AuthenticationFailed(detail="it went on after its token was refused")
            raise AuthenticationFailed(_REFUSAL.decode(), detail=self._refused)
        if len(token) > MESSAGE_BYTES_MAX:
            raise AuthenticationFailed(detail="the OAUTHBEARER message is too long")
        text = token.decode("utf-8", "replace")
        found = _FIRST.fullmatch(text)
        if found is None:
            raise AuthenticationFailed(detail="the OAUTHBEARER message cannot be read")
        authorization_id, pairs = found.groups()
        fields = dict(pair.partition("=")[::2] for pair in pairs.split("\x01") if pair)
        auth = _AUTH.fullmatch(fields.get("auth", ""))
        if auth is None or not fields["auth"].lower().startswith("bearer "):
            raise AuthenticationFailed(detail="the OAUTHBEARER message holds no bearer token")
        try:
            bearer = self._verifier.verify(auth[1], now_ms)
        except InvalidToken as error:
            self._refused = str(error)
            return Step(_REFUSAL)
        if authorization_id is not None and authorization_id != bearer.name:
            raise AuthenticationFailed(
                f"Authentication failed: Client requested an authorization id ({authorization_id}) that is different "
                f"from the token's principal name ({bearer.name})",
                user=bearer.name,
            )
        return Step(b"", Identity(Principal.user(bearer.name), bearer.expires_at_ms))
