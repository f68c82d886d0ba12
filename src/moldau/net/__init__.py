"""Frames over sockets: an own reactor on the event loop, connections, TLS, zero-copy responses.

No Kafka messages here. Read `connection.py` first: what happens between a readable socket and an answered request;
then `inbound.py` and `outbound.py`, the two halves of it.
"""

from moldau.net.client import FrameClient
from moldau.net.connection import ServerConnection
from moldau.net.listener import Listener
from moldau.net.loop import LoopKind, LoopTimers, new_event_loop
from moldau.net.network import RealNetwork
from moldau.net.reactor import Reactor
from moldau.net.settings import UNLIMITED, ConnectionLimits, ListenerLimits, NetCounters, NetSettings

__all__ = [
    "UNLIMITED",
    "ConnectionLimits",
    "FrameClient",
    "Listener",
    "ListenerLimits",
    "LoopKind",
    "LoopTimers",
    "NetCounters",
    "NetSettings",
    "Reactor",
    "RealNetwork",
    "ServerConnection",
    "new_event_loop",
]
