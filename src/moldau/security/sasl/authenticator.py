"""One connection's way through Kafka's SASL handshake, as the server sees it: a state machine without clock or socket.

    HANDSHAKE -> AUTHENTICATE -> COMPLETE, and from there again for re-authentication (KIP-368); FAILED from anywhere.

Invariants
- Who is not COMPLETE, or is proving itself again, gets nothing but the handshake.
- Re-authentication changes neither the principal nor the mechanism.
- A failed connection stays failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from moldau.security.principal import Principal
from moldau.security.sasl.mechanism import AuthenticationFailed, ServerMechanism

_AGAIN_MS_MIN = 1_000  # as in Kafka: nobody keeps a broker busy with logging in


class SaslState(Enum):
    HANDSHAKE = "handshake"
    AUTHENTICATE = "authenticate"
    COMPLETE = "complete"
    FAILED = "failed"


@dataclass(slots=True, frozen=True)
class MechanismOffer:
    """One mechanism of a listener."""

    begin: Callable[[], ServerMechanism]
    max_session_ms: int = 0
    """`connections.max.reauth.ms`; 0 for no limit."""


class IllegalSaslState(Exception):
    """The client asked for something that is not next; it is told ILLEGAL_SASL_STATE."""


class UnsupportedMechanism(Exception):
    """The listener does not offer it."""


@dataclass(slots=True, frozen=True)
class TokenAnswer:
    token: bytes
    session_lifetime_ms: int = 0


class SaslAuthenticator:
    __slots__ = (
        "_again_at_ms",
        "_attempt",
        "_offers",
        "_refusal",
        "expires_at_ms",
        "is_again",
        "is_complete",
        "is_raw",
        "mechanism",
        "principal",
        "state",
    )

    def __init__(self, offers: Mapping[str, MechanismOffer]) -> None:
        self._offers = offers
        self._attempt: ServerMechanism | None = None
        self._refusal: str | None = None
        self._again_at_ms = 0.0
        self.state = SaslState.HANDSHAKE
        self.is_complete = False
        self.is_again = False
        """It was authenticated before, and does it once more."""
        self.is_raw = False
        """Tokens come without a request around them, as after SaslHandshake version 0."""
        self.mechanism = ""
        self.principal: Principal | None = None
        self.expires_at_ms: float | None = None
        """When the session ends unless it is authenticated again, by the monotonic clock."""

    @property
    def mechanisms(self) -> list[str]:
        return list(self._offers)

    def handshake(self, mechanism: str, *, is_raw: bool, now_ms: float) -> None:
        """The client chose a mechanism. Raises UnsupportedMechanism, which is the end, and IllegalSaslState."""
        if self.state is SaslState.COMPLETE:
            if is_raw or now_ms < self._again_at_ms:
                raise IllegalSaslState
            self.is_again = True
        elif self.state is not SaslState.HANDSHAKE:
            raise IllegalSaslState
        offer = self._offers.get(mechanism)
        if offer is None:
            self.fail()
            raise UnsupportedMechanism
        self.is_complete = False
        self.is_raw = is_raw
        self.state = SaslState.AUTHENTICATE
        if self.is_again and mechanism != self.mechanism:
            # The handshake itself is answered; it is the next message that fails.
            self._refusal = (
                f"SASL mechanism '{mechanism}' requested by client is not supported for re-authentication of "
                f"mechanism '{self.mechanism}'"
            )
            return
        self.mechanism = mechanism
        self._attempt = offer.begin()
        self._again_at_ms = now_ms + _AGAIN_MS_MIN

    def authenticate(self, token: bytes, *, now_ms: float, wall_ms: int) -> TokenAnswer:
        """The next token. Raises AuthenticationFailed, which is the end, and IllegalSaslState."""
        if self.state is not SaslState.AUTHENTICATE:
            raise IllegalSaslState
        attempt, self._attempt = self._attempt, None
        self.state = SaslState.FAILED  # unless the following says otherwise
        if self._refusal is not None or attempt is None:
            raise AuthenticationFailed(self._refusal)
        step = attempt.step(token, wall_ms)
        if step.identity is None:
            self._attempt = attempt
            self.state = SaslState.AUTHENTICATE
            return TokenAnswer(step.answer)
        before, after = self.principal, step.identity.principal
        if before is not None and before != after:
            raise AuthenticationFailed(
                "Cannot change principals during re-authentication from "
                f"{before.type}.{before.name}: {after.type}.{after.name}"
            )
        self.principal = after
        self.state = SaslState.COMPLETE
        self.is_complete = True
        return TokenAnswer(step.answer, self._session_lifetime_ms(step.identity.expires_at_ms, now_ms, wall_ms))

    def fail(self) -> None:
        self.state = SaslState.FAILED
        self.is_complete = False
        self._attempt = None

    def failure_text(self, error: AuthenticationFailed) -> str:
        """What the client is told."""
        what = "re-authentication" if self.is_again else "authentication"
        return (
            error.message
            or f"Authentication failed during {what} due to invalid credentials with SASL mechanism {self.mechanism}"
        )

    def _session_lifetime_ms(self, credential_until_ms: int | None, now_ms: float, wall_ms: int) -> int:
        limits = []
        if (longest := self._offers[self.mechanism].max_session_ms) > 0:
            limits.append(longest)
        if credential_until_ms is not None:
            limits.append(credential_until_ms - wall_ms)
        if not limits:
            self.expires_at_ms = None
            return 0
        lifetime_ms = max(0, min(limits))
        self.expires_at_ms = now_ms + lifetime_ms
        return lifetime_ms
