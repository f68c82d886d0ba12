"""What the four APIs of delegation tokens share: who may use them at all, the settings of tokens, and how a token gets
another end.

Tokens are for clients that have proved who they are, and not with a token.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from moldau.broker.requests.forwarding import carry_out_rest
from moldau.controller.delegation_tokens import NEVER, TokenRules
from moldau.security.principal import ANONYMOUS
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAudit, HasConfig, HasTime
    from moldau.broker.requests.forwarding import Needs as ForwardingNeeds

    class SettingsNeeds(HasConfig, HasTime, Protocol):
        """What the settings of tokens rest on."""

    class Needs(ForwardingNeeds, HasAudit, Protocol):
        """What the handlers may touch."""


Changed = TypeVar("Changed", m.RenewDelegationTokenResponse, m.ExpireDelegationTokenResponse)


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


async def change_end(
    broker: Needs, call: Call, request: Any, decide: Callable[..., Any], answer: type[Changed]
) -> Changed:
    """Renew or expire a token: the broker looks whether the connection may ask, the active controller decides."""

    async def submit() -> Changed:
        changed: Changed = await broker.controller.submit(partial(decide, rules=rules_for(broker, call)), request)
        return changed

    if not is_allowed(call):
        return answer(error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=NEVER)
    if broker.is_controller_listener(call.connection.listener_name):
        return await submit()
    response = cast("Changed", await carry_out_rest(broker, call, submit, request))
    if not response.error_code:
        address = call.session.client_address
        broker.audit.changed(call.principal, address=address, api=call.api.name, target="token")
    return response
