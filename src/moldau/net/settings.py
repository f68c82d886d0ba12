"""What can be set about sockets, with Kafka's key where there is one, and what is counted about them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

UNLIMITED = 2**31 - 1


@dataclass(slots=True, frozen=True)
class NetSettings:
    """Fixed for the life of a reactor."""

    max_frame_bytes: int = 104_857_600
    """`socket.request.max.bytes`: a longer frame closes the connection."""
    max_in_flight: int = 100
    """Requests of one connection taken and not yet answered; more wait in the socket."""
    max_idle_ms: float = 600_000
    """`connections.max.idle.ms`: close a connection on which nothing is in flight and nothing came."""
    max_stall_ms: float = 600_000
    """Close a connection whose half-sent request or half-read response does not get done."""
    max_handshake_ms: float = 30_000
    """Close a connection whose TLS handshake does not get done: nobody knows yet who that is."""
    max_silence_ms: float = 30_000
    """Close a connection that began a request and then sent nothing more of it for so long: whoever sends it has given
    up by then, since `request.timeout.ms` of clients is the same."""
    queued_max_bytes: int = -1
    """`queued.max.request.bytes`: memory for frames being read, all connections together; -1 for a limit of our own."""
    send_buffer_bytes: int = -1
    """`socket.send.buffer.bytes`; -1 leaves it to the operating system."""
    receive_buffer_bytes: int = -1
    """`socket.receive.buffer.bytes`; -1 leaves it to the operating system."""
    backlog: int = 4096
    """`socket.listen.backlog.size`."""
    poison_frames: bool = False
    """For tests: overwrite each frame after `on_frame`, so that a handler that kept a view of it is found out."""


@dataclass(slots=True, frozen=True)
class ListenerLimits:
    """Of one listener, beside those of the node."""

    max_connections: int = UNLIMITED
    max_creation_rate: int = UNLIMITED


@dataclass(slots=True)
class ConnectionLimits:
    """May be changed while running: Kafka's keys for them are dynamic."""

    max_connections: int = UNLIMITED
    """`max.connections`: beyond it no connection is accepted until one closes; they wait in the backlog."""
    max_sockets: int = UNLIMITED
    """The same for what the limit on open files leaves, beside the files: a connection must not cost a log its own."""
    max_per_address: int = UNLIMITED
    """`max.connections.per.ip`: beyond it a connection is closed at once."""
    per_address_overrides: Mapping[str, int] = field(default_factory=dict)
    """`max.connections.per.ip.overrides`, by numeric address."""
    max_creation_rate: int = UNLIMITED
    """`max.connection.creation.rate`: connections accepted per second."""
    per_listener: Mapping[str, ListenerLimits] = field(default_factory=dict)
    """By name, those with limits of their own (`listener.name.<listener>.`)."""
    protected_listener: str | None = None
    """That of the other brokers: it is not kept waiting by `max.connections`, nor by the creation rate of all."""
    connected: Callable[[str, float], float] | None = None
    """Asked for each connection, with its address and the time: 0 if it may stay; otherwise its address came too fast
    (quota `connection_creation_rate`), and it is closed after so many milliseconds."""


@dataclass(slots=True)
class NetCounters:
    """Totals since the start, per listener. `connections_open` is the only one that falls."""

    connections_open: int = 0
    connections_accepted: int = 0
    connections_closed: int = 0
    connections_rejected: int = 0
    idle_closed: int = 0
    stalled_closed: int = 0
    strangers_closed: int = 0
    bad_frames: int = 0
    tls_handshakes: int = 0
    tls_failures: int = 0
    accept_errors: int = 0
    handler_errors: int = 0
    mutes: int = 0
    cold_reads: int = 0
    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
