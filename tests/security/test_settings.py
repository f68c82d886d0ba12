"""JAAS lines, mapping rules and TLS settings: what is read, what is refused, and that no secret is told."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificate

from moldau.broker.config import InvalidConfig, load_broker_config
from moldau.broker.config.listener_security import jaas_entry, tls_settings
from moldau.security.audit import BURST, Audit
from moldau.security.certificates import Certified, issue, new_authority
from moldau.security.jaas import parse_jaas
from moldau.security.principal import Principal
from moldau.security.principal_mapping import NoMatchingRule, PrincipalMapping
from moldau.security.tls import TlsSettings, TlsTrouble, client_context, server_context


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('a.b.PlainLoginModule required username="n" password="p";', {"username": "n", "password": "p"}),
        ("M REQUIRED username=n password='p;=q' ;", {"username": "n", "password": "p;=q"}),
        ('M required\n  user_a = "x\\"y\\\\z"\n;', {"user_a": 'x"y\\z'}),
        ("M required;", {}),
    ],
)
def test_jaas(text: str, options: dict[str, str]) -> None:
    assert parse_jaas(text).options == options


@pytest.mark.parametrize(
    "text",
    [
        *("", "M", "M required", "M maybe;", 'M required password="sesame;', "M required password;"),
        *("M required =sesame;", 'M required password="sesame"; M required;', "M required password==sesame;"),
        "; required ;",
    ],
)
def test_what_is_no_jaas_is_refused(text: str) -> None:
    with pytest.raises(ValueError) as failure:
        parse_jaas(text)
    assert "sesame" not in str(failure.value)


@pytest.mark.parametrize(
    ("rules", "name", "mapped"),
    [
        ("DEFAULT", "CN=kafka,OU=x", "CN=kafka,OU=x"),
        (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=svc,OU=ServiceUsers,O=Org", "svc"),
        (
            r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
            "CN=Ad,OU=Min,O=o,L=l,ST=s,C=c",
            "ad@min",
        ),
        (r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT", "cn=kaFka1,ou=x", "KAFKA1"),
        (r"RULE:^CN=nobody$/x/ , RULE:^CN=(\w+)$/$1-$9/", "CN=a", "a-$9"),
        (r"RULE:^CN=(\w+)$/a\/b$1/", "CN=x", "a/bx"),
    ],
)
def test_mapping_rules(rules: str, name: str, mapped: str) -> None:
    assert PrincipalMapping(rules).name_of(name) == mapped


def test_a_name_that_no_rule_fits_has_no_principal() -> None:
    with pytest.raises(NoMatchingRule):
        PrincipalMapping("RULE:^CN=a$/b/").name_of("CN=c")


@pytest.mark.parametrize("rules", ["default", "RULE:a", "RULE:a/b", "RULE:(/b/", "RULE:^CN=a$/b/,nonsense"])
def test_rules_that_are_none_are_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"rule|pattern"):
        PrincipalMapping(rules)


@pytest.fixture(scope="module")
def authority() -> Certified:
    return new_authority()


@pytest.fixture(scope="module")
def node(authority: Certified) -> Certified:
    return issue(authority, "node", ("localhost",))


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """In memory; the client's side of it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return sides[0]


def test_pem_in_a_file_in_texts_and_pkcs12_are_the_same(tmp_path: Path, authority: Certified, node: Certified) -> None:
    key = load_pem_private_key(node.key.encode(), None)
    certificate = load_pem_x509_certificate(node.certificate.encode())
    assert hasattr(key, "private_bytes")
    store = pkcs12.serialize_key_and_certificates(b"n", key, certificate, None, BestAvailableEncryption(b"sesame"))  # type: ignore[arg-type]  # a key of ours
    (tmp_path / "node.p12").write_bytes(store)
    (tmp_path / "ca.pem").write_text(authority.certificate)
    trust = TlsSettings(trust_store_location=str(tmp_path / "ca.pem"))
    for settings in (
        TlsSettings(key_store_type="PEM", key_store_location=str(node.write(tmp_path / "node.pem"))),
        TlsSettings(key_store_location=str(tmp_path / "node.pem")),
        TlsSettings(key=node.key, certificate_chain=node.certificate),
        TlsSettings(
            key_store_type="PKCS12", key_store_location=str(tmp_path / "node.p12"), key_store_password="sesame"
        ),
    ):
        assert shake_hands(server_context(settings), client_context(trust)).version() == "TLSv1.3"
    wrong = TlsSettings(
        key_store_type="PKCS12", key_store_location=str(tmp_path / "node.p12"), key_store_password="open"
    )
    with pytest.raises(TlsTrouble, match="check its password") as failure:
        server_context(wrong)
    assert "open" not in str(failure.value).replace("opened", "")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "needs a key"),
        ({"key_store_location": "/nowhere.pem"}, "cannot be read"),
        ({"key_store_type": "JKS", "key_store_location": "{pem}"}, "convert it"),
        ({"key": "-----BEGIN nonsense"}, "certificate.chain"),
        ({"key": "sesame", "certificate_chain": "x"}, "no key with its certificates"),
        ({"key_store_location": "{pem}", "protocols": ("TLSv1.1",)}, "TLSv1.2 and TLSv1.3"),
        ({"key_store_location": "{pem}", "cipher_suites": ("TLS_RSA_WITH_RC4_128_MD5",)}, "not safe"),
        ({"key_store_location": "{pem}", "client_auth": "required", "trusted_certificates": "x"}, "must be PEM"),
    ],
)
def test_tls_settings_that_do_not_do(settings: dict[str, Any], told: str, tmp_path: Path, node: Certified) -> None:
    pem = str(node.write(tmp_path / "node.pem"))
    given: dict[str, Any] = dict(settings)
    if given.get("key_store_location") == "{pem}":
        given["key_store_location"] = pem
    with pytest.raises(TlsTrouble, match=told) as failure:
        server_context(TlsSettings(**given))
    assert "sesame" not in str(failure.value)


def test_cipher_suites_have_java_names(tmp_path: Path, authority: Certified, node: Certified) -> None:
    trust = client_context(TlsSettings(trusted_certificates=authority.certificate))
    suites = ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",)
    settings = TlsSettings(key=node.key, certificate_chain=node.certificate, cipher_suites=suites)
    met = shake_hands(server_context(settings), trust)
    assert met.cipher() == ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.2", 256)


def secured_config(**more: str) -> dict[str, str]:
    return {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "inter.broker.listener.name": "SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "ssl.key.password": "sesame",
        "ssl.keystore.key": "sesame",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": 'PlainLoginModule required user_a="sesame";',
    } | more


def test_a_config_shows_no_secret() -> None:
    config = load_broker_config(secured_config())
    assert "sesame" not in repr(config)
    assert "sesame" not in repr(tls_settings(config, "SASL_SSL"))
    assert "sesame" not in repr(jaas_entry(config, "SASL_SSL", "PLAIN"))
    with pytest.raises(InvalidConfig) as failure:
        load_broker_config(secured_config(**{"listener.name.sasl_ssl.plain.sasl.jas.config": 'x="sesame"; password'}))
    assert "sesame" not in str(failure.value)


def test_the_audit_log_cannot_be_forged_or_flooded(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    audit = Audit(lambda: now[0])
    caplog.set_level(logging.INFO, "moldau.audit")
    evil = 'x\n{"event": "authentication", "outcome": "ok"}\r\x1b[2J"' + "y" * 1000
    audit.authentication_failed(evil, address="1.2.3.4", listener="L", mechanism="PLAIN", reason="r")
    line = caplog.messages[0]
    assert line.isprintable()
    assert len(line) < 600
    for _ in range(5_000):
        audit.authentication_failed("x", address="1.2.3.4", listener="L", mechanism="PLAIN", reason="r")
    assert len(caplog.messages) == BURST
    audit.authenticated(Principal.user("a"), address="1.2.3.4", listener="L", mechanism="PLAIN")  # its own measure
    assert len(caplog.messages) == BURST + 1
    now[0] = 100.0
    audit.authentication_failed("x", address="1.2.3.4", listener="L", mechanism="PLAIN", reason="r")
    assert f'"suppressed_before": {5_001 - int(BURST)}' in caplog.messages[-1]
