"""A broker with listeners of every kind, its certificates and its users."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from moldau.client.connection import Connection
from moldau.client.settings import parse_client_settings
from moldau.testing import Broker
from tests.net.certificates import Identity, as_pkcs8, make_identity
from tests.security.tokens import Issuer

PASSWORDS = {"alice": "alice's secret", "bob": "bob=secret,with;signs"}
PLAIN_USER, PLAIN_PASSWORD = "carol", 'carol "quoted" secret'
ADMIN_PASSWORD = "node secret"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL")


class Secured:
    """Listeners: PLAINTEXT, SSL (certificates required), ONEWAY (TLS only), SASL_PLAINTEXT and SASL_SSL."""

    def __init__(self, folder: Path, more: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.authority = make_identity([("O", "Vltava"), ("CN", "authority")])
        self.server = make_identity([("CN", "localhost")], self.authority)
        self.client = make_identity([("O", "Vltava"), ("OU", "tests"), ("CN", "Dora")], self.authority)
        self.ca_file = self._write("ca.pem", self.authority.certificate)
        self.server_file = self._write("server.pem", as_pkcs8(self.server) + self.server.certificate)
        self.client_file = self._write("client.pem", as_pkcs8(self.client) + self.client.certificate)
        self.issuer = Issuer(folder)
        self.broker = Broker(self._settings() | dict(more or {}))

    def _settings(self) -> dict[str, str]:
        names = ("PLAINTEXT", "SSL", "ONEWAY", "SASL_PLAINTEXT", "SASL_SSL")
        plain = (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'user_carol="carol \\"quoted\\" secret" user_admin="node secret";'
        )
        settings = {
            "listeners": ",".join(f"{name}://127.0.0.1:0" for name in names),
            "listener.security.protocol.map": ",".join(
                f"{name}:{'SSL' if name == 'ONEWAY' else name}" for name in names
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.server_file,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.ca_file,
            "listener.name.ssl.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+),OU=tests,.*$/$1/L,DEFAULT",
            "sasl.enabled.mechanisms": ",".join((*MECHANISMS, "OAUTHBEARER")),
            "listener.name.sasl_ssl.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": self.issuer.file.as_uri(),
            "sasl.oauthbearer.jwks.endpoint.url": self.issuer.file.as_uri(),
            "sasl.oauthbearer.expected.issuer": "tests",
            "connection.failed.authentication.delay.ms": "20",
            "delegation.token.secret.key": "the key of tokens",
        }
        for protocol in PROTOCOLS:
            settings[f"listener.name.{protocol.lower()}.plain.sasl.jaas.config"] = plain
        return settings

    def _write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def write_server(self, identity: Identity) -> None:
        """Renew the certificate, as an operator would."""
        part = self.folder / "server.part"
        part.write_text(as_pkcs8(identity) + identity.certificate)
        part.replace(self.server_file)

    def address(self, listener: str) -> str:
        host, port = self.broker.node.addresses[listener]
        return f"{host}:{port}"

    def port(self, listener: str) -> int:
        return self.broker.node.addresses[listener][1]

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address("PLAINTEXT")})

    def new_topic(self) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        admin = self.admin()
        for done in admin.create_topics([NewTopic(name, 1)]).values():
            done.result(10)
        return name

    def confluent(self, protocol: str, mechanism: str | None = None, **more: Any) -> dict[str, Any]:
        """Settings of librdkafka for one way in."""
        settings: dict[str, Any] = {"bootstrap.servers": self.address(protocol)}
        settings["security.protocol"] = "SSL" if protocol == "ONEWAY" else protocol
        if settings["security.protocol"].endswith("SSL"):
            settings["ssl.ca.location"] = self.ca_file
        if mechanism is not None:
            user, password = self.credentials(mechanism)
            settings |= {"sasl.mechanisms": mechanism, "sasl.username": user, "sasl.password": password}
        return settings | more

    def connection(self, listener: str, mechanism: str | None = None, **more: str) -> Connection:
        """One of our own, logged in."""
        protocol = "SSL" if listener == "ONEWAY" else listener
        settings = {"bootstrap.servers": self.address(listener), "security.protocol": protocol}
        settings["ssl.truststore.location"] = self.ca_file
        if mechanism is not None:
            user, password = self.credentials(mechanism)
            settings |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
        return Connection("127.0.0.1", self.port(listener), parse_client_settings(settings | more))

    def credentials(self, mechanism: str) -> tuple[str, str]:
        return (PLAIN_USER, PLAIN_PASSWORD) if mechanism == "PLAIN" else ("alice", PASSWORDS["alice"])

    def __enter__(self) -> Self:
        self.broker.start()
        try:
            changes = [
                UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
                for user, password in PASSWORDS.items()
                for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
                if user == "alice" or mechanism is ScramMechanism.SCRAM_SHA_256
            ]
            admin = self.admin()
            for change in changes:
                for done in admin.alter_user_scram_credentials([change]).values():
                    done.result(10)
        except BaseException:
            self.broker.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.stop()
