"""Settings of a small cluster that is secure from its first moment, for `moldau cluster --secure` and for tests.

Clients log in with SCRAM-SHA-512 over TLS; brokers do so among themselves, as user `node`; controllers and whoever asks
them show certificates. Nobody may do anything except `admin`, who may do everything, until ACLs say otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

MECHANISM = "SCRAM-SHA-512"
CLIENTS, CONTROLLERS = "SASL_SSL", "CONTROLLER"
NODE_USER, ADMIN_USER = "node", "admin"
_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(slots=True, frozen=True)
class SecureFiles:
    """Where the certificates are, and what the nodes log in with."""

    trusted: Path
    node: Path
    node_password: str = field(repr=False)


def secure_settings(files: SecureFiles) -> dict[str, str]:
    """To be put over those of a plain cluster, whose client listener is called `SASL_SSL`."""
    return {
        "listener.security.protocol.map": f"{CLIENTS}:SASL_SSL,{CONTROLLERS}:SSL",
        "inter.broker.listener.name": CLIENTS,
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        f"listener.name.{CLIENTS.lower()}.{MECHANISM.lower()}.sasl.jaas.config": jaas(NODE_USER, files.node_password),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(files.node),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files.trusted),
        f"listener.name.{CONTROLLERS.lower()}.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+)$/$1/,DEFAULT",
        "authorizer.class.name": _AUTHORIZER,
        "super.users": f"User:{NODE_USER};User:{ADMIN_USER}",
    }


def client_properties(user: str, password: str, trusted: Path) -> dict[str, str]:
    """What a client of such a cluster needs, by the names of Java's clients."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        "sasl.jaas.config": jaas(user, password),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(trusted),
    }


def jaas(user: str, password: str) -> str:
    return f"{_SCRAM_MODULE} required username={_quoted(user)} password={_quoted(password)};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
