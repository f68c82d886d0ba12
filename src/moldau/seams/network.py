"""Network. Whole frames: a request goes in, its response comes out; bytes on the wire are somebody else's business.

A frame is what stands behind Kafka's 4-byte length. Servers answer through slots, in the order the requests came;
clients send requests and await responses, in order too. `moldau.net.RealNetwork` does this over sockets, the
simulator over queues it may delay, cut and reorder between connections (never within one: TCP does not either).

Everything is called on the one event loop. A handler is never re-entered: `on_disconnect` and the next `on_frame` come
from the loop, not from within `complete`, `close` or `resume_dispatch`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from moldau.seams.disk import FileRegion

if TYPE_CHECKING:
    from ssl import SSLContext  # loading it takes milliseconds, and most nodes never need it

Payload = Sequence[bytes | bytearray | memoryview | FileRegion]
"""One frame in pieces, without its length. Memoryviews are of bytes; nobody changes a piece until it is sent."""


class Disconnected(ConnectionError):
    """The connection is gone; whether the peer handled what was in flight is unknown. Connect again, then retry."""


class RequestTimedOut(TimeoutError):
    """No response in time. The connection was closed, since its responses can no longer be told apart."""


class ResponseSlot(Protocol):
    """The place of one response in the order of its connection. Completed exactly once, now or later, on the loop.

    Completing a slot whose connection has closed meanwhile does nothing.
    """

    def complete(self, payload: Payload) -> None: ...

    def complete_nothing(self) -> None:
        """The request has no response (Produce with acks=0); those behind it may leave."""

    def close(self, reason: str) -> None:
        """Close the connection when this response's turn comes: those before it are still sent."""


class Connection(Protocol):
    """The server's end of a connection."""

    context: Any
    """Whatever the handler keeps per connection (client id, principal, authentication state); None at first."""

    @property
    def id(self) -> int:
        """Unique among the connections of this process."""

    @property
    def listener_name(self) -> str: ...

    @property
    def peer_host(self) -> str: ...

    @property
    def peer_port(self) -> int: ...

    @property
    def local_port(self) -> int: ...

    @property
    def tls_peer_name(self) -> str | None:
        """The subject of the client's certificate as Kafka writes it (CN=…,OU=…), if TLS asked for one and got it."""

    @property
    def is_tls(self) -> bool: ...

    @property
    def is_closed(self) -> bool: ...

    def close(self, reason: str, *, flush: bool = False) -> None:
        """Close. With `flush`, the responses completed so far leave first; unfinished slots are dropped either way."""

    def distrust(self, max_frame_bytes: int) -> None:
        """It has to prove who it is: until `trust`, longer frames close it, and on a full node it makes room."""

    def trust(self) -> None:
        """It has: from the next frame on it may what everybody may."""

    def mute_until(self, deadline_ms: float) -> None:
        """Take no more requests until then (quotas). Responses still leave. A later deadline wins."""

    def pause_dispatch(self) -> None:
        """Take no more requests until `resume_dispatch`: what is under way must not be overtaken."""

    def resume_dispatch(self) -> None:
        """The pause is over; reading goes on when every pause is. Each must be ended exactly once."""

    def hold_memory(self, held_bytes: int) -> None:
        """A request that is carried out later keeps so much of what was read: it counts like a frame under way, and
        large frames of others wait for it. Given back with the negative number, also of a closed connection."""


class FrameHandler(Protocol):
    """What a server does with frames. An exception out of `on_frame` is logged and closes the connection."""

    def on_connect(self, connection: Connection) -> None:
        """The connection is ready for frames (TLS handshake done)."""

    def on_frame(self, connection: Connection, frame: memoryview, slot: ResponseSlot) -> None:
        """One request. `frame` is writable and valid only during the call: keep copies, not views."""

    def on_disconnect(self, connection: Connection, reason: str) -> None:
        """Follows every `on_connect` exactly once."""


class Listener(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int:
        """The port bound, also when 0 was asked for."""

    def renew_tls(self, context: SSLContext) -> None:
        """Connections from now on use these certificates."""

    async def close(self) -> None:
        """Accept no more connections; those open stay."""


class ClientConnection(Protocol):
    """The client's end. Responses come back in the order of the requests."""

    @property
    def is_closed(self) -> bool: ...

    def request(self, payload: Payload, *, timeout_ms: float | None = None) -> Awaitable[memoryview]:
        """Send now, in call order; await the response, which the caller owns. Raises Disconnected, RequestTimedOut."""

    def send(self, payload: Payload) -> None:
        """Send a request that has no response."""

    async def close(self) -> None: ...


class Network(Protocol):
    async def listen(
        self, host: str, port: int, handler: FrameHandler, *, name: str, tls: SSLContext | None = None
    ) -> Listener: ...

    async def connect(
        self, host: str, port: int, *, tls: SSLContext | None = None, timeout_ms: float = 30_000
    ) -> ClientConnection:
        """Raises Disconnected or RequestTimedOut, both OSErrors, when there is nobody."""

    async def stop(self, drain_ms: float) -> None:
        """Accept nothing new, answer what is in flight for up to `drain_ms`, then close every connection."""
