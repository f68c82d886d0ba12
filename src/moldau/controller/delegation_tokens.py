"""Delegation tokens (KIP-48): made, renewed and expired by the controller, kept in the metadata without their secret.

A token's secret is the HMAC of its id under `delegation.token.secret.key`, which all nodes share: nobody has to store
it. Times are those of the wall clock, since tokens outlive controllers.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from moldau.controller.context import ControllerContext, ControllerResult
from moldau.controller.image import ClusterImage, DelegationToken
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Message

NEVER = -1
_TIME_MAX = 2**63 - 1
_USER = "User:"
_EXPIRED_PER_ROUND_MAX = 1_000


@dataclass(slots=True, frozen=True)
class TokenRules:
    """What the settings say about tokens, who asks, and when."""

    secret: str | None = field(repr=False)
    max_lifetime_ms: int
    renew_ms: int
    requester: str
    now_ms: int


def token_hmac(secret: str, token_id: str) -> bytes:
    """What its holder proves to have."""
    return hmac.digest(secret.encode(), token_id.encode(), "sha512")


def is_expired(token: DelegationToken, now_ms: int) -> bool:
    return min(token.max_timestamp_ms, token.expiration_timestamp_ms) < now_ms


def create_delegation_token(
    _image: ClusterImage, request: m.CreateDelegationTokenRequest, context: ControllerContext, *, rules: TokenRules
) -> ControllerResult[m.CreateDelegationTokenResponse]:
    owner = rules.requester
    if request.owner_principal_name:
        owner = f"{request.owner_principal_type or ''}:{request.owner_principal_name}"
    if rules.secret is None:
        return ControllerResult(created_nothing(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, owner, rules.requester), [])
    renewers = [f"{each.principal_type}:{each.principal_name}" for each in request.renewers]
    if owner.startswith(":") or any(not each.startswith(_USER) for each in renewers):
        return ControllerResult(created_nothing(ErrorCode.INVALID_PRINCIPAL_TYPE, owner, rules.requester), [])
    lifetime_ms = rules.max_lifetime_ms
    if request.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
    token = DelegationToken(
        token_id=base64.urlsafe_b64encode(context.random.uuid()).decode().rstrip("="),
        owner=owner,
        requester=rules.requester,
        renewers=tuple(renewers),
        issue_timestamp_ms=rules.now_ms,
        max_timestamp_ms=_later(rules.now_ms, lifetime_ms),
        expiration_timestamp_ms=_later(rules.now_ms, min(lifetime_ms, rules.renew_ms)),
    )
    response = created_nothing(ErrorCode.NONE, owner, rules.requester)
    response.issue_timestamp_ms = token.issue_timestamp_ms
    response.expiry_timestamp_ms = token.expiration_timestamp_ms
    response.max_timestamp_ms = token.max_timestamp_ms
    response.token_id = token.token_id
    response.hmac = token_hmac(rules.secret, token.token_id)
    return ControllerResult(response, [_record(token)])


def created_nothing(code: ErrorCode, owner: str, requester: str) -> m.CreateDelegationTokenResponse:
    """The answer without a token, or before it."""
    (owner_type, _, owner_name), (own_type, _, own_name) = owner.partition(":"), requester.partition(":")
    return m.CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner_type,
        principal_name=owner_name,
        token_requester_principal_type=own_type,
        token_requester_principal_name=own_name,
        issue_timestamp_ms=NEVER,
        expiry_timestamp_ms=NEVER,
        max_timestamp_ms=NEVER,
    )


def renew_delegation_token(
    image: ClusterImage, request: m.RenewDelegationTokenRequest, _context: ControllerContext, *, rules: TokenRules
) -> ControllerResult[m.RenewDelegationTokenResponse]:
    found = _find(image, bytes(request.hmac), rules)
    if isinstance(found, DelegationToken) and is_expired(found, rules.now_ms):
        found = ErrorCode.DELEGATION_TOKEN_EXPIRED
    if isinstance(found, DelegationToken) and not _may_change(found, rules):
        found = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    if isinstance(found, ErrorCode):
        return ControllerResult(m.RenewDelegationTokenResponse(error_code=found, expiry_timestamp_ms=NEVER), [])
    period_ms = rules.renew_ms
    if request.renew_period_ms > 0:
        period_ms = min(period_ms, request.renew_period_ms)
    until_ms = min(found.max_timestamp_ms, _later(rules.now_ms, period_ms))
    records = [_record(replace(found, expiration_timestamp_ms=until_ms))]
    return ControllerResult(m.RenewDelegationTokenResponse(expiry_timestamp_ms=until_ms), records)


def expire_delegation_token(
    image: ClusterImage, request: m.ExpireDelegationTokenRequest, _context: ControllerContext, *, rules: TokenRules
) -> ControllerResult[m.ExpireDelegationTokenResponse]:
    """At once, if the period is negative."""
    found = _find(image, bytes(request.hmac), rules)
    if isinstance(found, DelegationToken) and not _may_change(found, rules):
        found = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    at_once = request.expiry_time_period_ms < 0
    if isinstance(found, DelegationToken) and not at_once and is_expired(found, rules.now_ms):
        found = ErrorCode.DELEGATION_TOKEN_EXPIRED
    if isinstance(found, ErrorCode):
        return ControllerResult(m.ExpireDelegationTokenResponse(error_code=found, expiry_timestamp_ms=NEVER), [])
    if at_once:
        records: list[Message] = [m.RemoveDelegationTokenRecord(found.token_id)]
        return ControllerResult(m.ExpireDelegationTokenResponse(expiry_timestamp_ms=rules.now_ms), records)
    until_ms = min(found.max_timestamp_ms, _later(rules.now_ms, request.expiry_time_period_ms))
    records = [_record(replace(found, expiration_timestamp_ms=until_ms))]
    return ControllerResult(m.ExpireDelegationTokenResponse(expiry_timestamp_ms=until_ms), records)


def expired_token_records(image: ClusterImage, now_ms: int) -> list[Message]:
    """Tokens that nobody can use any more, a round's worth."""

    def gone() -> Iterator[Message]:
        for token in image.delegation_tokens.values():
            if is_expired(token, now_ms):
                yield m.RemoveDelegationTokenRecord(token.token_id)

    return [each for each, _ in zip(gone(), range(_EXPIRED_PER_ROUND_MAX), strict=False)]


def _find(image: ClusterImage, secret: bytes, rules: TokenRules) -> DelegationToken | ErrorCode:
    if rules.secret is None:
        return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    for token in image.delegation_tokens.values():
        if hmac.compare_digest(token_hmac(rules.secret, token.token_id), secret):
            return token
    return ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def _may_change(token: DelegationToken, rules: TokenRules) -> bool:
    return rules.requester == token.owner or rules.requester in token.renewers


def _later(now_ms: int, duration_ms: int) -> int:
    return min(_TIME_MAX, now_ms + duration_ms)


def _record(token: DelegationToken) -> Message:
    return m.DelegationTokenRecord(
        owner=token.owner,
        requester=token.requester,
        renewers=list(token.renewers),
        issue_timestamp=token.issue_timestamp_ms,
        max_timestamp=token.max_timestamp_ms,
        expiration_timestamp=token.expiration_timestamp_ms,
        token_id=token.token_id,
    )
