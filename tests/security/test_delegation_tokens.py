"""Delegation tokens: made by who has proved who it is, used instead of a password, and over when they should be."""

from __future__ import annotations

import base64
from functools import partial
from typing import Any, cast

import pytest

from moldau.client.connection import Connection
from moldau.client.sasl import AuthenticationFailed
from moldau.client.settings import parse_client_settings
from moldau.controller.context import ControllerContext, ControllerResult
from moldau.controller.delegation_tokens import (
    TokenRules,
    create_delegation_token,
    expire_delegation_token,
    expired_token_records,
    renew_delegation_token,
    token_hmac,
)
from moldau.controller.fold import apply
from moldau.controller.image import EMPTY_IMAGE, ClusterImage
from moldau.seams.randomness import SeededRandom
from moldau.testing import Broker
from moldau.testing.ports import free_ports
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.security.secured import Secured

HOUR = 3_600_000
CONTEXT = cast("ControllerContext", type("Context", (), {"random": SeededRandom(7)}))


def rules(who: str = "User:alice", now_ms: int = 0, secret: str | None = "s") -> TokenRules:
    return TokenRules(secret, 10 * HOUR, 2 * HOUR, who, now_ms)


def after(image: ClusterImage, result: ControllerResult[Any]) -> ClusterImage:
    return apply(image, result.records, offset=image.offset + len(result.records), epoch=1)


def create(**fields: Any) -> tuple[ClusterImage, m.CreateDelegationTokenResponse]:
    request = m.CreateDelegationTokenRequest(**({"max_lifetime_ms": -1} | fields))
    result = create_delegation_token(EMPTY_IMAGE, request, CONTEXT, rules=rules())
    return after(EMPTY_IMAGE, result), result.response


def test_a_token_lives_as_long_as_settings_and_request_say() -> None:
    _, token = create()
    assert (token.expiry_timestamp_ms, token.max_timestamp_ms) == (2 * HOUR, 10 * HOUR)
    assert token.hmac == token_hmac("s", token.token_id)
    _, short = create(max_lifetime_ms=HOUR)
    assert (short.expiry_timestamp_ms, short.max_timestamp_ms) == (HOUR, HOUR)


def test_without_a_key_there_are_no_tokens() -> None:
    request = m.CreateDelegationTokenRequest(max_lifetime_ms=-1)
    result = create_delegation_token(EMPTY_IMAGE, request, CONTEXT, rules=rules(secret=None))
    assert result.response.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert not result.records


def test_owner_and_renewers_renew_up_to_the_end_and_nobody_else_does() -> None:
    renewer = m.CreateDelegationTokenRequest.CreatableRenewers("User", "bob")
    image, token = create(renewers=[renewer])
    renew = partial(renew_delegation_token, image, m.RenewDelegationTokenRequest(token.hmac, -1), CONTEXT)
    assert renew(rules=rules("User:bob", HOUR)).response.expiry_timestamp_ms == 3 * HOUR
    assert renew(rules=rules("User:eve", HOUR)).response.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert renew(rules=rules(now_ms=3 * HOUR)).response.error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
    unknown = m.RenewDelegationTokenRequest(b"x", -1)
    result = renew_delegation_token(image, unknown, CONTEXT, rules=rules())
    assert result.response.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    image = after(image, renew(rules=rules(now_ms=HOUR)))
    late = renew_delegation_token(
        image, m.RenewDelegationTokenRequest(token.hmac, 50 * HOUR), CONTEXT, rules=rules(now_ms=2 * HOUR)
    )
    assert late.response.expiry_timestamp_ms == 4 * HOUR  # the settings' period, not the client's


def test_a_token_expires_when_told_at_once_or_later_and_is_swept() -> None:
    image, token = create()
    later = m.ExpireDelegationTokenRequest(token.hmac, HOUR)
    result = expire_delegation_token(image, later, CONTEXT, rules=rules())
    assert result.response.expiry_timestamp_ms == HOUR
    shortened = after(image, result)
    assert not expired_token_records(shortened, HOUR)
    assert len(expired_token_records(shortened, HOUR + 1)) == 1
    now = m.ExpireDelegationTokenRequest(token.hmac, -1)
    assert not after(image, expire_delegation_token(image, now, CONTEXT, rules=rules())).delegation_tokens
    mismatch = expire_delegation_token(image, now, CONTEXT, rules=rules("User:eve"))
    assert mismatch.response.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


def token_jaas(token: m.CreateDelegationTokenResponse, **wrong: str) -> dict[str, str]:
    password = wrong.get("password", base64.b64encode(token.hmac).decode())
    line = f'ScramLoginModule required username="{token.token_id}" password="{password}" tokenauth="true";'
    return {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": line}


def test_a_token_is_as_good_as_a_password_until_it_is_expired(secured: Secured) -> None:
    ask = m.CreateDelegationTokenRequest(max_lifetime_ms=HOUR)
    with secured.connection("SASL_PLAINTEXT", "SCRAM-SHA-512") as alice:
        token = alice.call(ask, m.CreateDelegationTokenResponse)
        assert (token.error_code, token.principal_name) == (0, "alice")
        found = alice.call(m.DescribeDelegationTokenRequest(owners=None), m.DescribeDelegationTokenResponse)
        assert [each.hmac for each in found.tokens if each.token_id == token.token_id] == [token.hmac]
        with secured.connection("SASL_PLAINTEXT", **token_jaas(token)) as connection:
            assert connection.call(m.MetadataRequest(topics=[]), m.MetadataResponse).brokers
            refused = connection.call(ask, m.CreateDelegationTokenResponse)
            assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            assert refused.principal_name == "alice"  # whom the token speaks for
        with pytest.raises(AuthenticationFailed):
            secured.connection("SASL_PLAINTEXT", **token_jaas(token, password="x"))
        with pytest.raises(AuthenticationFailed):  # a token's id is no user
            secured.connection(
                "SASL_PLAINTEXT",
                **{**token_jaas(token), "sasl.username": token.token_id, "sasl.jaas.config": "", "sasl.password": "x"},
            )
        gone = m.ExpireDelegationTokenRequest(token.hmac, -1)
        assert alice.call(gone, m.ExpireDelegationTokenResponse).error_code == 0
        with pytest.raises(AuthenticationFailed):
            secured.connection("SASL_PLAINTEXT", **token_jaas(token))


@pytest.mark.parametrize("listener", ["PLAINTEXT", "ONEWAY"])
def test_nobody_anonymous_gets_a_token(secured: Secured, listener: str) -> None:
    with secured.connection(listener) as connection:
        for request, answer in (
            (m.CreateDelegationTokenRequest(max_lifetime_ms=-1), m.CreateDelegationTokenResponse),
            (m.RenewDelegationTokenRequest(b"x", -1), m.RenewDelegationTokenResponse),
            (m.ExpireDelegationTokenRequest(b"x", -1), m.ExpireDelegationTokenResponse),
            (m.DescribeDelegationTokenRequest(owners=None), m.DescribeDelegationTokenResponse),
        ):
            refused: Any = connection.call(cast("Any", request), cast("Any", answer))
            assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_a_controller_gives_nobody_the_token_of_another(protocol: str) -> None:
    """Brokers forward what they have looked at; a client that asks a controller itself has not been looked at."""
    (port,) = free_ports(1)
    plain = 'PlainLoginModule required username="node" password="n" user_node="n" user_eve="e";'
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}",
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:{protocol}",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": plain,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:node;User:ANONYMOUS",
        "delegation.token.secret.key": "the key of tokens",
    }
    login = {"bootstrap.servers": f"127.0.0.1:{port}", "security.protocol": protocol}
    if protocol != "PLAINTEXT":
        login |= {"sasl.mechanism": "PLAIN", "sasl.username": "eve", "sasl.password": "e"}
    ask = m.CreateDelegationTokenRequest("User", "node", max_lifetime_ms=-1)
    with Broker(settings), Connection("127.0.0.1", port, parse_client_settings(login)) as connection:
        refused = connection.call(ask, m.CreateDelegationTokenResponse)
    expected = {
        "PLAINTEXT": ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        "SASL_PLAINTEXT": ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
    assert refused.error_code == expected[protocol]
    assert not refused.hmac
