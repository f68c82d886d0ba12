"""Security settings of our own client, by the names of Java's and of librdkafka's, and SASL as it speaks it."""

from collections import deque

import pytest

from moldau.client.sasl import AuthenticationFailed, exchange
from moldau.client.security import SettingError, librdkafka_security, parse_security

SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="a\\"b";'


def test_security_as_java_clients_name_it() -> None:
    assert parse_security({}) == parse_security({"security.protocol": "PLAINTEXT"})
    kafka = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": SCRAM,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.endpoint.identification.algorithm": "",
    }
    found = parse_security(kafka)
    assert (found.tls, found.mechanism, found.username, found.password) == (True, "SCRAM-SHA-512", "ann", 'a"b')
    assert (found.ca_file, found.check_hostname) == ("/ca.pem", False)
    assert 'a"b' not in repr(found)
    assert librdkafka_security(kafka) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "ann",
        "sasl.password": 'a"b',
        "ssl.ca.location": "/ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }


def test_bearer_tokens_are_asked_for_at_each_login() -> None:
    kafka = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "OAUTHBEARER"}
    tokens = iter(["first", "second"])
    found = parse_security(kafka, lambda: next(tokens))
    assert found.mechanism == "OAUTHBEARER"
    assert found.bearer_token is not None
    assert [found.bearer_token(), found.bearer_token()] == ["first", "second"]
    with pytest.raises(SettingError, match="supported are PLAIN"):
        parse_security(kafka)


def test_scram_as_rfc_7677_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_urlsafe", lambda _: "rOprNGfwEbeRWgbNEkqO")
    steps = exchange("SCRAM-SHA-256", "user", "pencil")
    assert next(steps) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    final = steps.send(b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert final == b"c=biws,r=" + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    with pytest.raises(StopIteration):
        steps.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    ("first", "final"),
    [
        (b"e=unknown-user", b""),
        (b"r=another,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", b""),
        (b"r=NONCEmore,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1", b""),
        (b"r=NONCEmore,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", b"e=invalid-proof"),
        (b"r=NONCEmore,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", b"v=AAAA"),
    ],
)
def test_scram_trusts_nobody(monkeypatch: pytest.MonkeyPatch, first: bytes, final: bytes) -> None:
    monkeypatch.setattr("secrets.token_urlsafe", lambda _: "NONCE")
    steps = exchange("SCRAM-SHA-256", "user", "pencil")
    next(steps)
    with pytest.raises(AuthenticationFailed):
        deque(map(steps.send, (first, final)))
