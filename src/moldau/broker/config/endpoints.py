"""Listeners: where a node listens, what it tells others, and how each listener is secured.

Invariant: an `Endpoint` has a known security protocol and a port in range.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from moldau.broker.config.errors import InvalidConfig

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SECURED_PROTOCOLS = frozenset({"SSL", "SASL_PLAINTEXT", "SASL_SSL"})
_URI = r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)"


class Endpoint(NamedTuple):
    listener: str
    security_protocol: str
    host: str | None
    """None listens on all interfaces, and is advertised as the machine's own name."""
    port: int

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL_")

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")


def parse_csv_map(key: str, text: str) -> dict[str, str]:
    """`a:b,c:d` as a dict; the last colon of an entry counts, so that keys may be IPv6 addresses."""
    entries: dict[str, str] = {}
    for entry in re.split(r"\s*,\s*", text.strip()):
        if not entry:
            continue
        name, colon, value = entry.rpartition(":")
        if not colon:
            raise InvalidConfig.for_value(key, text, f"'{entry}' has no colon: write name:value,name:value")
        entries[name.strip()] = value.strip()
    return entries


def parse_protocol_map(
    text: str, controller_listeners: Sequence[str], listeners: Sequence[str], *, explicit: bool
) -> dict[str, str]:
    """The security protocol of each listener name.

    With the default map, and nothing secured anywhere, controllers' listeners are plain text without being named.
    """
    key = "listener.security.protocol.map"
    protocols = {}
    for name, given in parse_csv_map(key, text).items():
        protocol = given.upper()
        if protocol not in SECURITY_PROTOCOLS:
            reason = f"'{given}' is not a security protocol: use one of {', '.join(SECURITY_PROTOCOLS)}"
            raise InvalidConfig.for_value(key, text, reason)
        protocols[name.upper()] = protocol
    names = {*controller_listeners, *(listener.partition(":")[0].upper() for listener in listeners)}
    if not explicit and not names & SECURED_PROTOCOLS:
        for name in controller_listeners:
            protocols[name] = "PLAINTEXT"
    return protocols


def parse_endpoints(
    key: str, listeners: Sequence[str], protocols: Mapping[str, str], *, distinct_ports: bool
) -> tuple[Endpoint, ...]:
    """The endpoints of `listeners` or `advertised.listeners`."""
    endpoints = []
    for text in listeners:
        match = re.fullmatch(_URI, text)
        if match is None:
            raise InvalidConfig.for_value(
                key, text, "A listener is written as NAME://host:port, for example PLAINTEXT://localhost:9092"
            )
        name = match[1].upper()
        port = int(match[3])
        if not 0 <= port <= 65535:
            raise InvalidConfig.for_value(key, text, f"The port {port} is not between 0 and 65535")
        protocol = protocols.get(name)
        if protocol is None:
            raise InvalidConfig.for_value(
                key, text, f"No security protocol defined for listener {name}: add it to listener.security.protocol.map"
            )
        endpoints.append(Endpoint(name, protocol, match[2] or None, port))
    _check_names(key, endpoints, listeners)
    if distinct_ports:
        _check_ports(key, endpoints, listeners)
    return tuple(endpoints)


def _check_names(key: str, endpoints: Sequence[Endpoint], listeners: Sequence[str]) -> None:
    if len({endpoint.listener for endpoint in endpoints}) < len(endpoints):
        raise InvalidConfig.for_value(key, ",".join(listeners), "Each listener must have a different name")


def _check_ports(key: str, endpoints: Sequence[Endpoint], listeners: Sequence[str]) -> None:
    """Ports differ, except that one IPv4 and one IPv6 address may share a port. Port 0 is whatever is free."""
    by_port: dict[int, list[Endpoint]] = {}
    for endpoint in endpoints:
        if endpoint.port:
            by_port.setdefault(endpoint.port, []).append(endpoint)
    for port, sharing in by_port.items():
        versions = sorted(_ip_version(endpoint.host) for endpoint in sharing)
        if len(versions) > 1 and versions != [4, 6]:
            raise InvalidConfig.for_value(
                key,
                ",".join(listeners),
                f"Each listener must have a different port, unless one is IPv4 and the other IPv6: {port}",
            )


def _ip_version(host: str | None) -> int:
    import ipaddress

    try:
        return ipaddress.ip_address(host or "").version
    except ValueError:
        return 0
