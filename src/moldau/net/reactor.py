"""All sockets of one event loop: listeners, their connections, the memory they share, and how they end together."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from moldau.net import cold
from moldau.net.buffers import DEFAULT_LIMIT_BYTES, ReadMemory
from moldau.net.channel import Channel, PlainChannel
from moldau.net.connection import ServerConnection
from moldau.net.gate import Gate
from moldau.net.handshakes import Handshakes
from moldau.net.listener import Listener, bind
from moldau.net.settings import UNLIMITED, ConnectionLimits, NetSettings
from moldau.seams.clock import Clock
from moldau.seams.network import FrameHandler
from moldau.timers.turns import Turns
from moldau.timers.wheel import TimerHandle, TimingWheel

if TYPE_CHECKING:
    from ssl import SSLContext

    from moldau.net.newcomer import Newcomer
    from moldau.net.parts import Guest, Host

_log = logging.getLogger(__name__)
_WARN_AGAIN_MS = 60_000
_WARMERS_MAX = 4  # threads that read cold regions ahead
_RELIEF_MS = 1000
_READING_MS = 8.0  # of a turn of the loop, for connections that have something new
_LINGER_MS = 1000
_LINGER_COUNT_MAX = 1000
_LINGER_BYTES_MAX = 1024 * 1024


class Reactor:
    """Lives on one running loop; nothing of it may be touched from another thread.

    Timeouts go through `wheel`, which its owner advances (`moldau.net.loop.LoopTimers`, or a test by hand).
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        wheel: TimingWheel,
        settings: NetSettings | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.now_ms = clock.monotonic_ms
        self.wheel = wheel
        self.settings = settings or NetSettings()
        queued_bytes = self.settings.queued_max_bytes
        self.memory = ReadMemory(queued_bytes if queued_bytes >= 0 else DEFAULT_LIMIT_BYTES)
        # Whoever has more to do than fits a turn of the loop.
        self.turns = Turns(loop, clock.monotonic_ms)
        self.endings = Turns(loop, clock.monotonic_ms)
        self.handshakes = Handshakes(Turns(loop, clock.monotonic_ms), wheel, clock.monotonic_ms)
        # How many connections were read, and whether in this turn of the loop no more should be.
        self.reads = 0
        self.is_turn_full = False
        self._turn_since_ms: float | None = None
        self._relief: TimerHandle | None = None
        self._warn_again_ms = 0.0
        self.gate = Gate(limits or ConnectionLimits())
        self.listeners: list[Listener] = []
        self.connections: dict[int, ServerConnection] = {}
        self.newcomers: dict[int, Newcomer] = {}
        self.is_stopping = False
        self._ids = itertools.count(1)
        self._lingering: set[_Lingering] = set()
        self._held: dict[socket.socket, tuple[TimerHandle, Callable[[], None]]] = {}
        self._emptied: asyncio.Event | None = None
        self._warmers: ThreadPoolExecutor | None = None

    def listen(
        self,
        host: str,
        port: int,
        handler: FrameHandler,
        *,
        name: str,
        tls: SSLContext | None = None,
        is_protected: bool = False,
        max_connections: int = UNLIMITED,
    ) -> Listener:
        settings = self.settings
        sock = bind(host, port, backlog=settings.backlog, receive_buffer_bytes=settings.receive_buffer_bytes)
        listener = Listener(
            self, sock, handler, name=name, tls=tls, is_protected=is_protected, max_connections=max_connections
        )
        self.listeners.append(listener)
        return listener

    async def stop(self, drain_ms: float) -> None:
        """Accept nothing, answer what is in flight for up to `drain_ms`, then close. Handlers hear of each end."""
        self.is_stopping = True
        self._close_held()
        for listener in tuple(self.listeners):
            listener.close_now()
        for newcomer in tuple(self.newcomers.values()):
            newcomer.close("the server stops")
        for connection in tuple(self.connections.values()):
            connection.stop_reading()
        deadline = self.wheel.add(self.clock.monotonic_ms() + max(0.0, drain_ms), self._stop_now)
        self._emptied = asyncio.Event()
        self._check_emptied()
        await self._emptied.wait()
        deadline.cancel()
        if self._relief is not None:
            self._relief.cancel()
        if self._warmers is not None:
            self._warmers.shutdown(wait=False)
        await asyncio.sleep(0)  # the last `on_disconnect` calls are on their way

    # For listeners and connections

    def new_id(self) -> int:
        return next(self._ids)

    def welcome(self, listener: Listener, sock: socket.socket, peer: tuple[str, int]) -> None:
        if listener.tls is None:
            self.start_connection(listener, PlainChannel(sock), peer, None)
        else:
            from moldau.net.newcomer import Newcomer

            newcomer = Newcomer(self, listener, sock, peer)
            self.newcomers[newcomer.id] = listener.strangers[newcomer.id] = newcomer

    def start_connection(
        self, listener: Host, channel: Channel, peer: tuple[str, int], tls_peer_name: str | None
    ) -> None:
        connection = ServerConnection(self, listener, channel, peer, tls_peer_name)
        self.connections[connection.id] = connection
        connection.start()

    def hold(self, sock: socket.socket, deadline_ms: float, close: Callable[[], None]) -> None:
        """Keep a socket that nobody reads until then; `close` is called once, at the latest when all is stopped."""

        def end() -> None:
            self._held.pop(sock)
            close()
            for listener in self.listeners:
                listener.resume()

        self._held[sock] = (self.wheel.add(deadline_ms, end), close)

    def _close_held(self) -> None:
        held, self._held = self._held, {}
        for timer, close in held.values():
            timer.cancel()
            close()

    def forget(self, connection: ServerConnection) -> None:
        del self.connections[connection.id]
        self.left(connection.peer_host)

    def left(self, address: str) -> None:
        """A connection of that address is no more, or never became one."""
        self.gate.left(address)
        for listener in self.listeners:
            listener.resume()
        self._check_emptied()

    def fills_turn(self, now_ms: float) -> bool:
        """Asked now and then by who reads: whether enough was read in this turn of the loop. The rest waits in line
        then, so that neither timers nor those who are late in the loop's order wait for all of a crowd."""
        if self._turn_since_ms is None:
            self._turn_since_ms = now_ms
            self.loop.call_soon(self._next_turn)
        elif now_ms - self._turn_since_ms >= _READING_MS:
            self.is_turn_full = True
        return self.is_turn_full

    def _next_turn(self) -> None:
        self._turn_since_ms = None
        self.is_turn_full = False

    def warn_of_shortage(self, listener: str, reason: str) -> None:
        """Connections wait for descriptors: said once in a while, not for each of them."""
        now_ms = self.clock.monotonic_ms()
        if now_ms >= self._warn_again_ms:
            self._warn_again_ms = now_ms + _WARN_AGAIN_MS
            _log.error(
                "connections to listener %s wait: %s; raise the limit on open files (ulimit -n)", listener, reason
            )

    def quietest(self, *, unless_listener: Listener) -> ServerConnection | None:
        """Who could make room on a full node: the connection, not of a protected listener, that was quiet longest."""
        names = {listener.name for listener in self.listeners if listener.is_protected} | {unless_listener.name}
        others = [connection for connection in self.connections.values() if connection.listener_name not in names]
        return min(others, key=lambda connection: connection.last_active_ms, default=None)

    def oldest_stranger(self, *, of: Listener | None = None) -> Guest | None:
        """Who has not proved who it is for the longest time, on all listeners or on one."""
        lines = (listener.strangers for listener in self.listeners if of is None or listener is of)
        first = (next(iter(line.values())) for line in lines if line)
        return min(first, key=lambda stranger: stranger.since_ms, default=None)

    def wait_for_memory(self, wake: Callable[[], None]) -> None:
        """Call `wake` when a half-received frame gave some back. Those that hold it and hardly go on must go."""
        self.memory.wait(wake)
        if self._relief is None:
            self._relief = self.wheel.add(self.clock.monotonic_ms() + _RELIEF_MS, self._relieve)

    def _relieve(self) -> None:
        self._relief = None
        now_ms = self.clock.monotonic_ms()
        for connection in tuple(self.connections.values()):
            connection.close_if_slow(now_ms)
        if self.memory.has_waiting:
            self._relief = self.wheel.add(now_ms + _RELIEF_MS, self._relieve)

    def warm(self, region: tuple[int, int, int], then: Callable[[], None]) -> None:
        """Have a thread bring a piece of a file into memory, and come back."""
        if self._warmers is None:
            self._warmers = ThreadPoolExecutor(_WARMERS_MAX, thread_name_prefix="moldau-warm")
        done = self.loop.run_in_executor(self._warmers, cold.warm, *region)
        done.add_done_callback(lambda _: then())

    def linger(self, channel: Channel) -> None:
        """Close, once the peer has had the chance to read our last bytes.

        A socket closed with unread input resets the connection, and the reset may overtake the last response.
        """
        channel.end_sending()
        if len(self._lingering) < _LINGER_COUNT_MAX:
            self._lingering.add(_Lingering(self, channel))
            self.gate.lingering = len(self._lingering)
        else:
            channel.close()

    def linger_ended(self, lingering: _Lingering) -> None:
        self._lingering.discard(lingering)
        self.gate.lingering = len(self._lingering)
        for listener in self.listeners:
            listener.resume()
        self._check_emptied()

    def _check_emptied(self) -> None:
        if self._emptied is not None and not self.connections and not self.newcomers and not self._lingering:
            self._emptied.set()

    def _stop_now(self) -> None:
        for connection in tuple(self.connections.values()):
            connection.abort("the server stops")
        for lingering in tuple(self._lingering):
            lingering.end()


class _Lingering:
    """A closed connection whose peer has not closed yet: its bytes are thrown away, for a short while."""

    __slots__ = ("_channel", "_fd", "_left_bytes", "_reactor", "_timer")

    def __init__(self, reactor: Reactor, channel: Channel) -> None:
        self._reactor = reactor
        self._channel = channel
        self._fd = channel.fileno()
        self._left_bytes = _LINGER_BYTES_MAX
        self._timer: TimerHandle = reactor.wheel.add(reactor.clock.monotonic_ms() + _LINGER_MS, self.end)
        reactor.loop.add_reader(self._fd, self._on_readable)

    def _on_readable(self) -> None:
        try:
            received = self._channel.discard(self._reactor.memory.shared)
        except BlockingIOError:
            return
        except OSError:
            received = 0
        self._left_bytes -= received
        if received == 0 or self._left_bytes <= 0:
            self.end()

    def end(self) -> None:
        self._timer.cancel()
        self._reactor.loop.remove_reader(self._fd)
        self._channel.close()
        self._reactor.linger_ended(self)
