"""What a node tells others to reach it by: clients by `advertised.listeners`, other nodes by its controller's listener.

Invariant: nobody is told an address that means "every interface". One that was given is told as it is; else the host
of `listeners`; where that is none or a wildcard, a controller is where `controller.quorum.voters` says it is, and
everything else at the machine's own name, as in Apache Kafka.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.broker.config import BrokerConfig
    from moldau.broker.config.endpoints import Endpoint

_log = logging.getLogger(__name__)
_WILDCARDS = (None, "", "0.0.0.0", "::")  # noqa: S104 - never told to anybody, which is what this is for


def needs_own_name(config: BrokerConfig) -> bool:
    """Whether something is told by the machine's own name; finding it out may take a name server's time."""
    of_nodes = (each for each in config.advertised_controller_listeners if _voter_host(config, each) is None)
    return any(each.host in _WILDCARDS for each in (*config.advertised_listeners, *of_nodes))


def own_name() -> str:
    """The name others know this machine by, or localhost where nobody knows one. Blocks."""
    name = socket.getfqdn()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        _log.warning(
            "this machine calls itself %s, and no name server knows it: others are told localhost. "
            "Say in advertised.listeners where they reach it",
            name,
        )
        return "localhost"
    return name


def told_to_clients(config: BrokerConfig, ports: Mapping[str, int], name: str) -> list[Endpoint]:
    """The advertised listeners, with the ports that were bound."""
    return [_told(each, ports, name) for each in config.advertised_listeners]


def told_to_nodes(config: BrokerConfig, ports: Mapping[str, int], name: str) -> list[Endpoint]:
    """Where this node's controller is reached."""
    return [_told(each, ports, _voter_host(config, each) or name) for each in config.advertised_controller_listeners]


def _voter_host(config: BrokerConfig, endpoint: Endpoint) -> str | None:
    """Where `controller.quorum.voters` says this node is: by the first of the controllers' listeners."""
    if endpoint.listener != config.controller_listener_names[0]:
        return None
    return next((each.host for each in config.voters if each.id == config.node_id), None)


def _told(endpoint: Endpoint, ports: Mapping[str, int], name: str) -> Endpoint:
    host = name if endpoint.host in _WILDCARDS else endpoint.host
    return endpoint._replace(host=host, port=endpoint.port or ports[endpoint.listener])
