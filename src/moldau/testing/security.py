"""A secure broker inside a test: `Broker(security=Security())`, and what its clients need to get in.

    with Broker(security=Security(users={"alice": "secret"})) as broker:
        producer = Producer(broker.client_settings("alice"))

Certificates are made on the spot, which needs `pip install 'moldau[security]'`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.broker.config import BrokerConfig
    from moldau.seams import Disk

_PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@dataclass(slots=True, frozen=True)
class Security:
    """How clients of a test's broker get in. With SSL, each user has a certificate instead of a password."""

    protocol: str = "SASL_SSL"
    mechanism: str = "SCRAM-SHA-512"
    users: Mapping[str, str] = field(default_factory=lambda: {"alice": "alice-secret"}, repr=False)

    def __post_init__(self) -> None:
        if self.protocol not in _PROTOCOLS:
            raise ValueError(f"protocol {self.protocol!r}: there are {', '.join(_PROTOCOLS)}")
        if self.mechanism not in _MECHANISMS:
            raise ValueError(f"mechanism {self.mechanism!r}: there are {', '.join(_MECHANISMS)}")
        if not self.users:
            raise ValueError("users is empty: nobody could get in")

    @property
    def uses_tls(self) -> bool:
        """Whether clients talk TLS."""
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether they log in with a name and a password."""
        return self.protocol.startswith("SASL")


class Secrets:
    """The certificates and settings of one broker."""

    def __init__(self, security: Security, folder: Path) -> None:
        self._security = security
        self._folder = folder
        if security.uses_tls:
            from moldau.security.certificates import issue, new_authority

            folder.mkdir(parents=True, exist_ok=True)
            authority = new_authority()
            self.trusted = folder / "ca.pem"
            self.trusted.write_text(authority.certificate)
            issue(authority, "broker", ("localhost", "127.0.0.1")).write(folder / "broker.pem")
            if not security.uses_sasl:
                for user in security.users:
                    issue(authority, user).write(folder / f"user-{user}.pem")

    def settings(self) -> dict[str, str]:
        """server.properties of the broker; its listener is named after the protocol."""
        security = self._security
        name = security.protocol.lower()
        settings: dict[str, str] = {}
        if security.uses_tls:
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self._folder / "broker.pem"),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.trusted),
                "ssl.client.auth": "none" if security.uses_sasl else "required",
                "ssl.principal.mapping.rules": "RULE:^CN=([^,]+)$/$1/,DEFAULT",
            }
        if security.uses_sasl:
            settings["sasl.enabled.mechanisms"] = security.mechanism
            settings["sasl.mechanism.inter.broker.protocol"] = security.mechanism
            if security.mechanism == "PLAIN":
                users = " ".join(f"user_{user}={_quoted(secret)}" for user, secret in security.users.items())
                settings[f"listener.name.{name}.plain.sasl.jaas.config"] = f"{_PLAIN_MODULE} required {users};"
        return settings

    def format(self, config: BrokerConfig, disk: Disk) -> None:
        """SCRAM's users are in the metadata from the beginning."""
        from moldau.log.checkpoints import read_meta_properties

        security = self._security
        folder = config.log_dirs[0]
        is_known = disk.exists(folder) and read_meta_properties(disk, folder) is not None
        if not security.uses_sasl or security.mechanism == "PLAIN" or is_known:
            return
        from moldau.broker.node.identity import format_cluster
        from moldau.seams import SystemRandom
        from moldau.security.first_users import first_user

        users = [first_user(security.mechanism, name, password) for name, password in security.users.items()]
        format_cluster(config, None, users, disk, SystemRandom())

    def client_settings(self, user: str | None) -> dict[str, str]:
        """As confluent-kafka takes them; of the first user if none is named."""
        security = self._security
        name = user if user is not None else next(iter(security.users))
        if name not in security.users:
            raise KeyError(f"{name} is none of the broker's users: {', '.join(security.users)}")
        settings = {"security.protocol": security.protocol}
        if security.uses_tls:
            settings["ssl.ca.location"] = str(self.trusted)
        if security.uses_sasl:
            settings |= {
                "sasl.mechanisms": security.mechanism,
                "sasl.username": name,
                "sasl.password": security.users[name],
            }
        else:
            own = str(self._folder / f"user-{name}.pem")
            settings |= {"ssl.certificate.location": own, "ssl.key.location": own}
        return settings


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
