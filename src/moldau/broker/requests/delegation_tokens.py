"""What the four APIs of delegation tokens share: who may use them at all, and the settings of tokens.

Tokens are for clients that have proved who they are, and not with a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.controller.delegation_tokens import TokenRules
from moldau.security.principal import ANONYMOUS

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAudit, HasConfig, HasTime
    from moldau.broker.requests.forwarding import Needs as ForwardingNeeds

    class SettingsNeeds(HasConfig, HasTime, Protocol):
        """What the settings of tokens rest on."""

    class Needs(ForwardingNeeds, HasAudit, Protocol):
        """What the handlers may touch."""


def is_allowed(call: Call) -> bool:
    """Whether this connection may ask about tokens. A forwarded one was looked at by the broker it came to."""
    session = call.session
    if session.principal.token_authenticated:
        return False
    if session.is_forwarded:
        return True
    if session.security_protocol == "PLAINTEXT":
        return False
    return session.security_protocol != "SSL" or session.principal != ANONYMOUS


def rules_for(broker: SettingsNeeds, call: Call) -> TokenRules:
    config = broker.config
    return TokenRules(
        secret=config.get_str_or_none("delegation.token.secret.key"),
        max_lifetime_ms=config.get_int("delegation.token.max.lifetime.ms"),
        renew_ms=config.get_int("delegation.token.expiry.time.ms"),
        requester=str(call.principal),
        now_ms=broker.clock.wall_ms(),
    )
