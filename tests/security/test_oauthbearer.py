"""OAUTHBEARER: which tokens are believed, and stock clients that bring one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import jwt
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from moldau.security.bearer_tokens import InvalidToken, KeysUnavailable, TokenRules, TokenVerifier, check_key_url
from moldau.security.sasl.mechanism import AuthenticationFailed
from moldau.security.sasl.oauthbearer import OAuthBearerServer
from moldau.toolkit.lag import LagMonitor
from tests.security.secured import Secured
from tests.security.tokens import Issuer

RULES = TokenRules(audiences=("rivers", "lakes"), issuer="tests")


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture
def verifier(issuer: Issuer) -> TokenVerifier:
    verifier = TokenVerifier(RULES)
    verifier.load(issuer.key_set("key-1"))
    return verifier


def now_ms() -> int:
    return int(time.time() * 1000)


def test_a_good_token_names_its_user_and_its_end(issuer: Issuer, verifier: TokenVerifier) -> None:
    bearer = verifier.verify(issuer.token(exp=2_000_000_000), now_ms())
    assert (bearer.name, bearer.expires_at_ms) == ("olga", 2_000_000_000_000)


def forged_with_the_public_key(issuer: Issuer) -> str:
    """A signature with a secret everybody knows: the public key, taken for a password."""
    from base64 import urlsafe_b64encode
    from hmac import digest

    public = issuer.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    parts = [b'{"alg":"HS256","kid":"key-1"}', b'{"sub":"eve","iat":1,"exp":9999999999,"aud":"rivers","iss":"tests"}']
    signed = b".".join(urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    return (signed + b"." + urlsafe_b64encode(digest(public, signed, "sha256")).rstrip(b"=")).decode()


BAD: dict[str, Callable[[Issuer], str]] = {
    "expired": lambda issuer: issuer.token(exp=int(time.time()) - 60),
    "not yet": lambda issuer: issuer.token(nbf=int(time.time()) + 600),
    "audience": lambda issuer: issuer.token(aud="seas"),
    "no audience": lambda issuer: issuer.token(aud=None),
    "issuer": lambda issuer: issuer.token(iss="somebody"),
    "no subject": lambda issuer: issuer.token(sub=None),
    "empty subject": lambda issuer: issuer.token(sub=""),
    "no expiry": lambda issuer: issuer.token(exp=None),
    "another key": lambda issuer: issuer.token(key_id="key-2"),
    "unsigned": lambda issuer: jwt.encode({"sub": "eve", "iat": 1, "exp": 9999999999}, "", "none"),
    "public key as secret": forged_with_the_public_key,
    "cut": lambda issuer: issuer.token()[:-4],
    "long": lambda issuer: "a" * 70_000,
    "nothing": lambda issuer: "..",
    "scope": lambda issuer: issuer.token(scope=7),
    "never ends": lambda issuer: issuer.token(exp=float("inf")),
    "ends at no time": lambda issuer: issuer.token(exp=float("nan")),
    "ends beyond all clocks": lambda issuer: issuer.token(exp=10**400),
    "ends when it is true": lambda issuer: issuer.token(exp=True),
    "begins at no time": lambda issuer: issuer.token(nbf=float("nan")),
    "issued at no time": lambda issuer: issuer.token(iat=float("-inf")),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_token_is_refused(issuer: Issuer, verifier: TokenVerifier, kind: str) -> None:
    with pytest.raises(InvalidToken):
        verifier.verify(BAD[kind](issuer), now_ms())


def test_an_unknown_key_is_worth_asking_for(issuer: Issuer, verifier: TokenVerifier) -> None:
    token = issuer.token(key_id="key-2")
    with pytest.raises(InvalidToken):
        verifier.verify(token, now_ms())
    assert verifier.wants_keys
    with pytest.raises(KeysUnavailable):
        verifier.load(b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}')
    assert verifier.verify(issuer.token(), now_ms()).name == "olga"  # the former keys stayed
    verifier.load(issuer.key_set("key-2"))
    assert verifier.verify(token, now_ms()).name == "olga"


@pytest.mark.parametrize("url", ["http://host/keys", "file://host/keys", "/keys", "ftp://host/keys", "https://"])
def test_keys_come_from_https_or_files_only(url: str) -> None:
    with pytest.raises(ValueError, match="https"):
        check_key_url(url)


def test_the_client_is_told_nothing_about_its_token(issuer: Issuer, verifier: TokenVerifier) -> None:
    server = OAuthBearerServer(verifier)
    step = server.step(f"n,,\x01auth=Bearer {issuer.token(iss='x')}\x01\x01".encode(), now_ms())
    assert step.identity is None
    assert step.answer == b'{"status":"invalid_token"}'
    with pytest.raises(AuthenticationFailed, match="invalid_token"):
        server.step(b"\x01", now_ms())


@pytest.mark.parametrize(
    "message", [b"", b"\x01", b"n,,", b"n,,\x01auth=Basic abc\x01\x01", b"n,,\x01host=x\x01\x01", b"\xff" * 100]
)
def test_what_is_no_message_is_refused(verifier: TokenVerifier, message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        OAuthBearerServer(verifier).step(message, now_ms())


def test_a_message_longer_than_any_token_is_not_read(issuer: Issuer, verifier: TokenVerifier) -> None:
    """Reading half a megabyte takes a fifth of a second of everybody's time, and this client is nobody yet."""
    more = "a=b\x01" * 20_000
    with pytest.raises(AuthenticationFailed) as refused:
        OAuthBearerServer(verifier).step(f"n,,\x01{more}auth=Bearer {issuer.token()}\x01\x01".encode(), now_ms())
    assert "too long" in refused.value.detail


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_librdkafka(secured: Secured, protocol: str) -> None:
    def token(_: str) -> tuple[str, float]:
        return secured.issuer.token(), time.time() + 300

    settings = secured.confluent(protocol) | {"sasl.mechanisms": "OAUTHBEARER", "oauth_cb": token}
    admin = AdminClient(settings)
    admin.poll(0)  # it asks for the token here
    assert admin.list_topics(timeout=10).brokers


def test_the_toolkits_lag_monitor(secured: Secured) -> None:
    """Its own client logs in with the tokens that confluent-kafka's would have used."""

    def token(_: str) -> tuple[str, float]:
        return secured.issuer.token(), time.time() + 300

    settings = secured.confluent("SASL_SSL") | {"sasl.mechanisms": "OAUTHBEARER", "oauth_cb": token}
    assert LagMonitor(settings, ["nobody"]).measure() == []


def test_librdkafka_with_a_bad_token(secured: Secured) -> None:
    errors: list[KafkaError] = []

    def token(_: str) -> tuple[str, float]:
        return secured.issuer.token(iss="x"), time.time() + 300

    settings = secured.confluent("SASL_PLAINTEXT") | {"sasl.mechanisms": "OAUTHBEARER", "oauth_cb": token}
    producer = Producer(settings | {"error_cb": errors.append, "log_level": 0})
    deadline = time.monotonic() + 10
    while not errors:
        assert time.monotonic() < deadline
        producer.poll(0.1)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    assert "invalid_token" in errors[0].str()


def test_kafka_python(secured: Secured) -> None:
    class Provider(AbstractTokenProvider):  # type: ignore[misc]  # it has no types
        def token(self) -> str:
            return secured.issuer.token()

    producer = KafkaProducer(
        bootstrap_servers=secured.address("SASL_SSL"),
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Provider(),
        ssl_cafile=secured.ca_file,
    )
    try:
        producer.send(secured.new_topic(), b"hello").get(10)
    finally:
        producer.close()


def test_aiokafka(secured: Secured) -> None:
    class Provider(AioTokenProvider):  # type: ignore[misc]  # it has no types
        async def token(self) -> str:
            return secured.issuer.token()

    async def go() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=secured.address("SASL_PLAINTEXT"),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=Provider(),
        ) as producer:
            assert producer.client.cluster.brokers()

    asyncio.run(go())
