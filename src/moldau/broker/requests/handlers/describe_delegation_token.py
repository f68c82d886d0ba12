"""DescribeDelegationToken (key 41), versions 1-3. Tokens with their secrets, as Kafka tells them.

Everybody sees those it owns or may renew; others with the permission to describe the token, or its owner's. Without an
authorizer whoever may ask sees all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.access import may
from moldau.broker.requests.delegation_tokens import is_allowed, rules_for
from moldau.controller.acls import AclResource, Operation
from moldau.controller.delegation_tokens import is_expired, token_hmac
from moldau.controller.image import DelegationToken
from moldau.security.principal import Principal
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAuthorizer, HasImage
    from moldau.broker.requests.delegation_tokens import SettingsNeeds

    class Needs(SettingsNeeds, HasAuthorizer, HasImage, Protocol):
        """What this file may touch."""


_Described = m.DescribeDelegationTokenResponse.DescribedDelegationToken
_Renewer = m.DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer


def handle(broker: Needs, call: Call, request: m.DescribeDelegationTokenRequest) -> m.DescribeDelegationTokenResponse:
    if not is_allowed(call):
        return m.DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    rules = rules_for(broker, call)
    if rules.secret is None:
        return m.DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    owners = None
    if request.owners is not None:
        owners = {f"{each.principal_type}:{each.principal_name}" for each in request.owners}
    may_see = may(broker, call, Operation.DESCRIBE, AclResource.DELEGATION_TOKEN, is_filter=True)
    may_see_of = may(broker, call, Operation.DESCRIBE_TOKENS, AclResource.USER, is_filter=True)
    response = m.DescribeDelegationTokenResponse()
    for token in broker.image.delegation_tokens.values():
        concerned = {token.owner, *token.renewers}
        is_wanted = (owners is None or owners & concerned) and not is_expired(token, rules.now_ms)
        if is_wanted and (rules.requester in concerned or may_see(token.token_id) or may_see_of(token.owner)):
            response.tokens.append(_described(token, rules.secret))
    return response


def _described(token: DelegationToken, secret: str) -> _Described:
    owner, requester = Principal.parse(token.owner), Principal.parse(token.requester)
    renewers = [Principal.parse(each) for each in token.renewers]
    return _Described(
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
        issue_timestamp=token.issue_timestamp_ms,
        expiry_timestamp=token.expiration_timestamp_ms,
        max_timestamp=token.max_timestamp_ms,
        token_id=token.token_id,
        hmac=token_hmac(secret, token.token_id),
        renewers=[_Renewer(each.type, each.name) for each in renewers],
    )
