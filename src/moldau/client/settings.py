"""Settings of a client, by the names Kafka's Java clients give them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from moldau.client.security import Security, SettingError, parse_security


@dataclass(slots=True, frozen=True)
class ClientSettings:
    """What every connection of a client has in common."""

    bootstrap_servers: tuple[tuple[str, int], ...]
    security: Security
    client_id: str
    connect_timeout_s: float
    request_timeout_s: float


def parse_client_settings(kafka: Mapping[str, str], bearer_token: Callable[[], str] | None = None) -> ClientSettings:
    """From Kafka's settings for clients."""
    return ClientSettings(
        bootstrap_servers=parse_addresses(kafka["bootstrap.servers"]),
        security=parse_security(kafka, bearer_token),
        client_id=kafka.get("client.id", "moldau"),
        connect_timeout_s=_seconds(kafka, "socket.connection.setup.timeout.ms", 10_000),
        request_timeout_s=_seconds(kafka, "request.timeout.ms", 30_000),
    )


def parse_addresses(text: str) -> tuple[tuple[str, int], ...]:
    """host:port, several with commas; IPv6 in brackets; a protocol before it is left out, as Java's clients do."""
    found = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        host, colon, port = part.rpartition("://")[2].rpartition(":")
        if not colon or not port.isdigit() or not host:
            raise SettingError("bootstrap.servers", f"has '{part}': write host:port")
        found.append((host.strip("[]"), int(port)))
    return tuple(found)


def _seconds(kafka: Mapping[str, str], name: str, default_ms: int) -> float:
    text = kafka.get(name, str(default_ms)).strip()
    if not text.isdecimal() or int(text) < 1:
        raise SettingError(name, f"is '{text}': write a whole number of at least 1")
    return int(text) / 1000
