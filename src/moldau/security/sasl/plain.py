"""PLAIN (RFC 4616): user and password in one message, as they are. For TLS listeners.

Users and passwords are those of the listener's `sasl.jaas.config`. An unknown user takes as long as a wrong password.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from moldau.security.principal import Principal
from moldau.security.sasl.mechanism import AuthenticationFailed, Identity, Step

_NOBODY = "\0"  # no password can contain it


class PlainServer:
    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords

    def step(self, token: bytes, now_ms: int) -> Step:
        del now_ms
        parts = token.decode("utf-8", "replace").split("\0", 3)
        if len(parts) != 3:
            raise AuthenticationFailed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, user, password = parts
        if not user:
            raise AuthenticationFailed("Authentication failed: username not specified")
        if not password:
            raise AuthenticationFailed("Authentication failed: password not specified", user=user)
        expected = self._passwords.get(user, _NOBODY)
        if not hmac.compare_digest(_digest(password), _digest(expected)):
            raise AuthenticationFailed("Authentication failed: Invalid username or password", user=user)
        if authorization_id not in ("", user):
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from username", user=user
            )
        return Step(b"", Identity(Principal.user(user)))


def _digest(password: str) -> bytes:
    """Of one length for all passwords: comparing tells nothing about it either."""
    return hmac.digest(b"moldau", password.encode("utf-8", "surrogatepass"), "sha256")
