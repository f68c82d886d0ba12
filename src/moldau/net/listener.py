"""Accepting connections, within the limits.

A full node does not turn connections away: it stops accepting, and they wait in the kernel's backlog until one closes
(`max.connections`) or the second is over (`max.connection.creation.rate`). One address with too many connections is
turned away at once (`max.connections.per.ip`), since it would only fill the backlog for the others.

Strangers, who have not proved yet who they are, do not keep others out: on a full node the one that came first makes
room for the next, once it has had its second.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from moldau.net.settings import NetCounters
from moldau.seams.network import FrameHandler
from moldau.timers.wheel import TimerHandle

if TYPE_CHECKING:
    from collections.abc import Callable
    from ssl import SSLContext

    from moldau.net.gate import Gate
    from moldau.net.parts import Guest, HasLoop, HasSettings

    class Needs(HasLoop, HasSettings, Protocol):
        """What of the reactor this file may touch."""

        @property
        def gate(self) -> Gate: ...
        @property
        def listeners(self) -> list[Listener]: ...

        def welcome(self, listener: Listener, sock: socket.socket, peer: tuple[str, int]) -> None: ...
        def hold(self, sock: socket.socket, deadline_ms: float, close: Callable[[], None]) -> None: ...
        def quietest(self, *, unless_listener: Listener) -> Guest | None: ...
        def oldest_stranger(self, *, of: Listener | None = None) -> Guest | None: ...
        def warn_of_shortage(self, listener: str, reason: str) -> None: ...


_log = logging.getLogger(__name__)
_ACCEPTS_PER_TURN = 64
_RETRY_MS = 100
_HELD_MAX = 500
_STRANGERS_MS_MIN = 1000.0
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """See `moldau.seams.network.Listener`.

    `is_protected` (the listener brokers use among themselves): it accepts even when `max.connections` is reached, and
    the connection of another listener that was quiet longest makes room. `tls` may be replaced to renew certificates.
    """

    __slots__ = (
        "_is_accepting",
        "_is_closed",
        "_reactor",
        "_retry",
        "_socket",
        "counters",
        "handler",
        "host",
        "is_protected",
        "max_connections",
        "name",
        "port",
        "strangers",
        "tls",
    )

    def __init__(
        self,
        reactor: Needs,
        sock: socket.socket,
        handler: FrameHandler,
        *,
        name: str,
        tls: SSLContext | None,
        is_protected: bool,
        max_connections: int,
    ) -> None:
        self.name = name
        self.handler = handler
        self.counters = NetCounters()
        self.tls = tls
        self.is_protected = is_protected or name == reactor.gate.limits.protected_listener
        self.max_connections = max_connections
        self.strangers: OrderedDict[int, Guest] = OrderedDict()  # in the order they came
        bound_to: tuple[str, int] = sock.getsockname()[:2]
        self.host, self.port = bound_to
        self._reactor = reactor
        self._socket = sock
        self._retry: TimerHandle | None = None
        self._is_accepting = False
        self._is_closed = False
        self.resume()

    def renew_tls(self, context: SSLContext) -> None:
        self.tls = context

    async def close(self) -> None:
        self.close_now()

    def close_now(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._pause()
            self._socket.close()
            self._reactor.listeners.remove(self)

    def resume(self) -> None:
        """Room was made, or may have been: accept again."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if not self._is_accepting and not self._is_closed:
            self._is_accepting = True
            self._reactor.loop.add_reader(self._socket.fileno(), self._on_acceptable)

    def _pause(self, until_ms: float | None = None) -> None:
        """Accept nothing until then, or until a connection closes."""
        if self._is_accepting:
            self._is_accepting = False
            self._reactor.loop.remove_reader(self._socket.fileno())
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if until_ms is not None:
            self._retry = self._reactor.wheel.add(until_ms, self.resume)

    def _on_acceptable(self) -> None:
        reactor = self._reactor
        for _ in range(_ACCEPTS_PER_TURN):
            if not self._is_accepting:
                return
            now_ms = reactor.clock.monotonic_ms()
            if not self._has_room():
                room_ms = self._room_at_ms()
                if room_ms is None or room_ms > now_ms:
                    if reactor.gate.is_out_of_sockets:
                        count = reactor.gate.open_connections
                        reactor.warn_of_shortage(
                            self.name, f"{count} are open, and the files need the other descriptors"
                        )
                    self._pause(room_ms)
                    return
            allowed_ms = reactor.gate.next_creation_ms(self.name, now_ms)
            if allowed_ms > now_ms:
                self._pause(allowed_ms)
                return
            try:
                sock, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self.counters.accept_errors += 1
                if error.errno in _OUT_OF_RESOURCES:
                    reactor.warn_of_shortage(self.name, str(error))
                    self._pause(now_ms + _RETRY_MS)
                    return
                continue  # the peer gave up while it waited
            self._admit(sock, _numeric(address[0]), address[1], now_ms)

    def _has_room(self) -> bool:
        if self._is_full:
            return False
        reactor = self._reactor
        return not reactor.gate.is_full or (self.is_protected and reactor.quietest(unless_listener=self) is not None)

    @property
    def _is_full(self) -> bool:
        most = min(self.max_connections, self._reactor.gate.max_connections_of(self.name))
        return self.counters.connections_open >= most

    def _stranger_in_the_way(self) -> Guest | None:
        return self._reactor.oldest_stranger(of=self if self._is_full else None)

    def _room_at_ms(self) -> float | None:
        """When a stranger has been here long enough to make room; None if there is none."""
        stranger = self._stranger_in_the_way()
        return None if stranger is None else stranger.since_ms + _STRANGERS_MS_MIN

    def _make_room(self, now_ms: float) -> None:
        """For the one that was just accepted."""
        reactor = self._reactor
        stranger = self._stranger_in_the_way()
        if stranger is not None and now_ms >= stranger.since_ms + _STRANGERS_MS_MIN:
            self.counters.strangers_closed += 1
            stranger.close("room was needed, and it had not proved who it is")
        elif self.is_protected:
            quietest = reactor.quietest(unless_listener=self)
            if quietest is not None:
                quietest.close("room was needed for another broker (max.connections)")

    def _close_later(self, sock: socket.socket, deadline_ms: float) -> None:
        """Who is turned away at once comes again at once. Held are a few: not by this shall descriptors run out."""
        gate = self._reactor.gate
        if gate.held >= _HELD_MAX or gate.is_out_of_sockets:
            sock.close()
            return
        gate.held += 1
        gate.lingering += 1

        def close() -> None:
            gate.held -= 1
            gate.lingering -= 1
            sock.close()

        self._reactor.hold(sock, deadline_ms, close)

    def _admit(self, sock: socket.socket, host: str, port: int, now_ms: float) -> None:
        reactor = self._reactor
        reactor.gate.created(self.name, now_ms)
        needs_room = self._is_full or reactor.gate.is_full
        connected = reactor.gate.limits.connected
        if connected is not None and (waits_ms := connected(host, now_ms)) > 0:
            self.counters.connections_rejected += 1
            self._close_later(sock, now_ms + waits_ms)
            return
        if not reactor.gate.admit(host):
            self.counters.connections_rejected += 1
            sock.close()
            return
        if needs_room:
            self._make_room(now_ms)
        settings = reactor.settings
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if settings.send_buffer_bytes >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer_bytes)
        except OSError:  # reset already
            reactor.gate.left(host)
            self.counters.accept_errors += 1
            sock.close()
            return
        self.counters.connections_accepted += 1
        self.counters.connections_open += 1
        reactor.welcome(self, sock, (host, port))


def bind(host: str, port: int, *, backlog: int, receive_buffer_bytes: int) -> socket.socket:
    """A listening socket; an empty host means every address of the machine. OSErrors say which address failed."""
    if host:
        # As bytes: for text, Python would load its tables of international names, for milliseconds.
        name = host.encode("ascii") if host.isascii() else host
        family, _, _, _, address = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    elif socket.has_dualstack_ipv6():
        family, address = socket.AF_INET6, ("::", port)
    else:
        family, address = socket.AF_INET, ("0.0.0.0", port)  # noqa: S104 - every address is what was asked for
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and not host:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if receive_buffer_bytes >= 0:  # before listening: it decides the window accepted connections start with
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(backlog)
    except OSError as error:
        with contextlib.suppress(OSError):
            sock.close()
        raise OSError(error.errno, f"cannot listen on {host or '*'}:{port}: {error.strerror}") from error
    return sock


def _numeric(host: str) -> str:
    """One spelling per address: IPv4 clients of a dual-stack socket look like IPv6 ones."""
    return host.removeprefix("::ffff:").partition("%")[0]
