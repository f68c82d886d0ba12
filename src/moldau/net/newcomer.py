"""A connection to a TLS listener until its handshake is done: next to nothing is held for it, and not for long.

Whoever connects and says nothing costs a socket and a timer. What it says is kept as it comes until the first record is
whole (a ClientHello, 16 KiB at most); only then OpenSSL is asked, whose state takes fifty, and only if not too many
are at it (`moldau.net.handshakes`).

Invariant: it ends once, as a `ServerConnection` or closed, and never later than `max_handshake_ms`.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Protocol

from moldau.net.tls import TlsChannel

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from moldau.net.channel import Channel
    from moldau.net.handshakes import Handshakes
    from moldau.net.parts import Host, TakesIn

    class Needs(TakesIn, Protocol):
        """What of the reactor this file may touch."""

        @property
        def handshakes(self) -> Handshakes: ...
        @property
        def newcomers(self) -> MutableMapping[int, Newcomer]: ...

        def start_connection(
            self, listener: Host, channel: Channel, peer: tuple[str, int], tls_peer_name: str | None
        ) -> None: ...

        def left(self, address: str) -> None: ...


_HEADER_BYTES = 5  # of a record: its kind, a version, the length of what follows
_RECORD_BYTES_MAX = _HEADER_BYTES + 16 * 1024
_HANDSHAKE = 22


class Newcomer:
    __slots__ = (
        "_channel",
        "_fd",
        "_has_turn",
        "_hello",
        "_is_greeted",
        "_is_writer_armed",
        "_listener",
        "_peer",
        "_reactor",
        "_socket",
        "_watchdog",
        "id",
        "is_over",
        "since_ms",
    )

    def __init__(self, reactor: Needs, listener: Host, sock: socket.socket, peer: tuple[str, int]) -> None:
        self.id = reactor.new_id()
        self.since_ms = reactor.now_ms()
        self._reactor = reactor
        self._listener = listener
        self._socket = sock
        self._fd = sock.fileno()
        self._peer = peer
        self._channel: TlsChannel | None = None
        self._hello = b""
        self._is_greeted = False  # the hello is whole
        self._has_turn = False
        self.is_over = False
        self._is_writer_armed = False
        settings = reactor.settings
        longest_ms = min(settings.max_stall_ms, settings.max_handshake_ms)
        self._watchdog = reactor.wheel.add(self.since_ms + longest_ms, self._give_up)
        reactor.loop.add_reader(self._fd, self._on_ready)

    def close(self, reason: str) -> None:
        """No handler has heard of it: none is told why it ends."""
        self._end(linger=False)

    def _on_ready(self) -> None:
        """Not at once: computing takes far longer than noticing."""
        if not self._has_turn:
            self._has_turn = True
            self._reactor.loop.remove_reader(self._fd)  # else the loop would tell of it again and again
            self._reactor.handshakes.turns.add(self.go_on)

    def go_on(self) -> bool:
        self._has_turn = False
        if self.is_over:
            return False
        try:
            if self._channel is None:
                if not self._is_greeted:
                    self._hear()
                    self._is_greeted = True
                    if not self._reactor.handshakes.begin(self):
                        return False
                self._channel = self._secured()
            self._channel.handshake()
        except BlockingIOError:
            self._wait()
        except OSError:
            self._listener.counters.tls_failures += 1
            self._end(linger=True)  # the peer should get the alert that tells it why
        else:
            self._become_connection(self._channel)
        return False

    def _hear(self) -> None:
        """The first record. Raises BlockingIOError until it is whole."""
        scratch = self._reactor.memory.scratch
        received = self._socket.recv_into(scratch, _RECORD_BYTES_MAX - len(self._hello))
        if not received:
            raise ConnectionAbortedError("the peer has left")
        self._hello += bytes(scratch[:received])
        if _is_unfinished(self._hello):
            raise BlockingIOError

    def _secured(self) -> TlsChannel:
        context, scratch = self._listener.tls, self._reactor.memory.scratch
        assert context is not None
        hello, self._hello = self._hello, b""
        return TlsChannel(self._socket, context, scratch, server_side=True, received=hello)

    def _wait(self) -> None:
        loop = self._reactor.loop
        loop.add_reader(self._fd, self._on_ready)
        if self._channel is not None and self._channel.has_unsent:
            self._is_writer_armed = True
            loop.add_writer(self._fd, self._on_ready)
        elif self._is_writer_armed:
            self._is_writer_armed = False
            loop.remove_writer(self._fd)

    def _become_connection(self, channel: TlsChannel) -> None:
        self._listener.counters.tls_handshakes += 1
        self._let_go()
        self._reactor.start_connection(self._listener, channel, self._peer, channel.peer_name)

    def _give_up(self) -> None:
        self._listener.counters.stalled_closed += 1
        self._end(linger=False)

    def _end(self, *, linger: bool) -> None:
        if self.is_over:
            return
        self._let_go()
        if linger and self._channel is not None:
            self._reactor.linger(self._channel)
        else:
            self._socket.close()
        self._listener.counters.connections_open -= 1
        self._listener.counters.connections_closed += 1
        self._reactor.left(self._peer[0])

    def _let_go(self) -> None:
        self.is_over = True
        self._hello = b""
        self._watchdog.cancel()
        self._reactor.loop.remove_reader(self._fd)
        if self._is_writer_armed:
            self._reactor.loop.remove_writer(self._fd)
        del self._reactor.newcomers[self.id]
        del self._listener.strangers[self.id]
        self._reactor.handshakes.ended(self)


def _is_unfinished(hello: bytes) -> bool:
    """More of it is to come. What is no ClientHello goes to OpenSSL as it is, which says so to the peer."""
    if hello[0] != _HANDSHAKE:
        return False
    need = _HEADER_BYTES + int.from_bytes(hello[3:_HEADER_BYTES], "big")
    return len(hello) < _HEADER_BYTES or len(hello) < need <= _RECORD_BYTES_MAX
