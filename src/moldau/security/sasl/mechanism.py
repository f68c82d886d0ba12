"""What all mechanisms have in common, seen from the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from moldau.security.principal import Principal

PLAIN = "PLAIN"
SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"
OAUTHBEARER = "OAUTHBEARER"
SCRAM = (SCRAM_SHA_256, SCRAM_SHA_512)
MECHANISMS = (PLAIN, *SCRAM, OAUTHBEARER)


class AuthenticationFailed(Exception):
    """The client did not prove who it is.

    The message is for the client, so it says nothing that an attacker wants to know; without one, the client is told
    that its credentials are invalid. `detail` is for the audit log: never a secret.
    """

    def __init__(self, message: str | None = None, *, detail: str = "", user: str = "") -> None:
        super().__init__(message or "invalid credentials")
        self.message = message
        self.detail = detail
        self.user = user


@dataclass(slots=True, frozen=True)
class Identity:
    """Who was proven, and until when the proof is good."""

    principal: Principal
    expires_at_ms: int | None = None
    """Of the wall clock; None for as long as the connection may last."""


@dataclass(slots=True, frozen=True)
class Step:
    """The server's next token; with an identity, also its last."""

    answer: bytes
    identity: Identity | None = None


class ServerMechanism(Protocol):
    """One attempt to log in. Failed once, it is not used again."""

    def step(self, token: bytes, now_ms: int) -> Step:
        """Answer the client's token, at that time of the wall clock. Raises AuthenticationFailed."""
