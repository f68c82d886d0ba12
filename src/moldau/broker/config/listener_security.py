"""What the settings say about the security of one listener: TLS, and the users and credentials of SASL.

Invariant: what is raised names the setting and what to do, never a password.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from moldau.broker.config.errors import InvalidConfig
from moldau.security.bearer_tokens import TokenRules, check_key_url
from moldau.security.jaas import JaasEntry, parse_jaas
from moldau.security.sasl.client import Credentials
from moldau.security.sasl.mechanism import OAUTHBEARER, PLAIN, SCRAM
from moldau.security.tls import TlsSettings

if TYPE_CHECKING:
    from moldau.broker.config.broker import BrokerConfig

_MODULES = {PLAIN: "PlainLoginModule", OAUTHBEARER: "OAuthBearerLoginModule"} | dict.fromkeys(SCRAM, "ScramLoginModule")
_JAAS = "sasl.jaas.config"


def tls_settings(config: BrokerConfig, listener: str) -> TlsSettings:
    def text(key: str) -> str | None:
        value = config.for_listener(listener, key)
        return str(value) if value is not None else None

    def kind(key: str) -> str | None:
        """The default is Java's; a file says better what it is."""
        is_set = key in config.texts or f"listener.name.{listener.lower()}.{key}" in config.texts
        return text(key) if is_set else None

    def several(key: str) -> tuple[str, ...]:
        value = config.for_listener(listener, key)
        return value if isinstance(value, tuple) else ()

    return TlsSettings(
        key_store_type=kind("ssl.keystore.type"),
        key_store_location=text("ssl.keystore.location"),
        key_store_password=text("ssl.keystore.password"),
        certificate_chain=text("ssl.keystore.certificate.chain"),
        key=text("ssl.keystore.key"),
        key_password=text("ssl.key.password"),
        trust_store_type=kind("ssl.truststore.type"),
        trust_store_location=text("ssl.truststore.location"),
        trust_store_password=text("ssl.truststore.password"),
        trusted_certificates=text("ssl.truststore.certificates"),
        client_auth=text("ssl.client.auth") or "none",
        protocols=several("ssl.enabled.protocols"),
        cipher_suites=several("ssl.cipher.suites"),
        checks_host_names=(text("ssl.endpoint.identification.algorithm") or "").lower() == "https",
    )


def jaas_key(config: BrokerConfig, listener: str, mechanism: str) -> str:
    """The name under which the JAAS line of a listener's mechanism was given, or should be."""
    prefix = f"listener.name.{listener.lower()}."
    names = (f"{prefix}{mechanism.lower()}.{_JAAS}", f"{prefix}{_JAAS}", _JAAS)
    return next((name for name in names if name in config.texts), names[0])


def jaas_entry(config: BrokerConfig, listener: str, mechanism: str) -> JaasEntry | None:
    """None if there is none. Raises InvalidConfig."""
    text = config.for_listener(listener, _JAAS, mechanism)
    if not text:
        return None
    key = jaas_key(config, listener, mechanism)
    try:
        entry = parse_jaas(str(text))
    except ValueError as error:
        raise InvalidConfig(f"Cannot read {key}: {error}", key) from None
    if entry.module != _MODULES[mechanism]:
        raise InvalidConfig(f"{key} has the login module {entry.module}: {mechanism} needs {_MODULES[mechanism]}", key)
    return entry


def enabled_mechanisms(config: BrokerConfig, listener: str) -> tuple[str, ...]:
    enabled = config.for_listener(listener, "sasl.enabled.mechanisms")
    assert isinstance(enabled, tuple)
    return enabled


def own_credentials(config: BrokerConfig, listener: str, mechanism: str) -> Credentials:
    """What this node logs in with where others listen under that name. Raises InvalidConfig."""
    entry = jaas_entry(config, listener, mechanism)
    key = jaas_key(config, listener, mechanism)
    if entry is None or entry.username is None or entry.password is None:
        raise InvalidConfig(f"{key} must say username and password: nodes log in with them at each other", key)
    return Credentials(mechanism, entry.username, entry.password)


def own_token_file(config: BrokerConfig, listener: str) -> str:
    """Where the token is that this node logs in with by OAUTHBEARER. Raises InvalidConfig."""
    key = "sasl.oauthbearer.token.endpoint.url"
    jaas_entry(config, listener, OAUTHBEARER)  # what it says is not needed; that it is for something else is a mistake
    url = config.for_listener(listener, key, OAUTHBEARER)
    parts = urlsplit(str(url or ""))
    if parts.scheme != "file" or parts.netloc or not parts.path:
        raise InvalidConfig(
            f"{key} must name a file (file:///…) with the token that nodes log in with at each other, renewed by "
            "whoever gets tokens on this machine: nodes ask no provider themselves",
            key,
        )
    return unquote(parts.path)


def plain_users(config: BrokerConfig, listener: str) -> dict[str, str]:
    """Who may log in with PLAIN. Raises InvalidConfig if nobody may."""
    entry = jaas_entry(config, listener, PLAIN)
    if entry is None or not entry.users:
        key = jaas_key(config, listener, PLAIN)
        raise InvalidConfig(f'{key} must name the users of PLAIN, as user_NAME="PASSWORD"', key)
    return entry.users


def bearer_rules(config: BrokerConfig, listener: str) -> tuple[str, TokenRules]:
    """Where the keys of OAUTHBEARER's tokens are, and what tokens must say. Raises InvalidConfig."""

    def value(name: str) -> Any:
        return config.for_listener(listener, f"sasl.oauthbearer.{name}", OAUTHBEARER)

    key = "sasl.oauthbearer.jwks.endpoint.url"
    url = value("jwks.endpoint.url")
    if not url:
        raise InvalidConfig(f"{key} must say where the keys are that OAUTHBEARER's tokens are signed with", key)
    try:
        check_key_url(url)
    except ValueError as error:
        raise InvalidConfig.for_value(key, url, str(error)) from None
    return url, TokenRules(
        audiences=value("expected.audience"),
        issuer=value("expected.issuer"),
        subject_claim=value("sub.claim.name"),
        scope_claim=value("scope.claim.name"),
        clock_skew_seconds=value("clock.skew.seconds"),
    )
