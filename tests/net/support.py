"""A server on virtual time and peers that speak raw bytes, for the tests of this room."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from moldau.net import ConnectionLimits, Listener, NetSettings, Reactor
from moldau.seams.network import Connection, ResponseSlot
from moldau.timers import TimingWheel

if TYPE_CHECKING:
    from ssl import SSLContext

OnFrame = Callable[[Connection, memoryview, ResponseSlot], None]


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def echo(_: Connection, payload: memoryview, slot: ResponseSlot) -> None:
    slot.complete([bytes(payload)])


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; the timeout of the test ends a wait for nothing."""
    while not condition():
        await asyncio.sleep(0.001)


class ManualClock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000.0

    def wall_ms(self) -> int:
        return int(self.now_ms)

    def monotonic_ms(self) -> float:
        return self.now_ms


class Recorder:
    """A handler that remembers everything and answers as told."""

    def __init__(self, on_frame: OnFrame = echo) -> None:
        self.act = on_frame
        self.welcome: Callable[[Connection], None] = lambda _: None
        self.connections: list[Connection] = []
        self.frames: list[bytes] = []
        self.slots: list[ResponseSlot] = []
        self.ends: list[tuple[int, str]] = []
        self.is_inside = False

    def on_connect(self, connection: Connection) -> None:
        assert not self.is_inside
        self.connections.append(connection)
        self.welcome(connection)

    def on_frame(self, connection: Connection, frame: memoryview, slot: ResponseSlot) -> None:
        assert not self.is_inside, "the handler was re-entered"
        assert not frame.readonly
        self.is_inside = True
        try:
            self.frames.append(bytes(frame))
            self.slots.append(slot)
            self.act(connection, frame, slot)
        finally:
            self.is_inside = False

    def on_disconnect(self, connection: Connection, reason: str) -> None:
        assert not self.is_inside
        assert connection.is_closed
        self.ends.append((connection.id, reason))

    @property
    def reasons(self) -> list[str]:
        return [reason for _, reason in self.ends]


def park(_: Connection, __: memoryview, ___: ResponseSlot) -> None:
    """Leave the slot to the test."""


class World:
    """One reactor on virtual time with one listener."""

    def __init__(
        self,
        on_frame: OnFrame = echo,
        *,
        tls: SSLContext | None = None,
        limits: ConnectionLimits | None = None,
        **settings: Any,
    ) -> None:
        self.clock = ManualClock()
        self.wheel = TimingWheel(self.clock.now_ms)
        settings.setdefault("poison_frames", True)
        self.reactor = Reactor(
            asyncio.get_running_loop(), self.clock, self.wheel, NetSettings(**settings), limits or ConnectionLimits()
        )
        self.handler = Recorder(on_frame)
        self.listener: Listener = self.reactor.listen("127.0.0.1", 0, self.handler, name="TEST", tls=tls)
        self.counters = self.listener.counters
        self._peers: list[Peer] = []

    def pass_time(self, ms: float) -> None:
        self.clock.now_ms += ms
        self.wheel.advance(self.clock.now_ms)

    async def peer(
        self, *, port: int | None = None, source: str = "127.0.0.1", receive_buffer_bytes: int | None = None
    ) -> Peer:
        peer = await Peer.connect(port or self.listener.port, source, receive_buffer_bytes)
        self._peers.append(peer)
        return peer

    async def __aenter__(self) -> World:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        for peer in self._peers:
            peer.close()
        stopped = asyncio.ensure_future(self.reactor.stop(0))
        while not stopped.done():
            await asyncio.sleep(0)
            self.pass_time(2000)
        await stopped
        if kind is None:
            self.check_nothing_is_left()

    def check_nothing_is_left(self) -> None:
        assert not self.reactor.connections
        assert not self.reactor.newcomers
        assert not self.listener.strangers
        assert self.reactor.gate.open_connections == self.reactor.gate.address_count == 0
        assert self.reactor.memory.reserved_bytes == 0
        assert self.counters.connections_open == 0
        assert self.counters.connections_accepted == self.counters.connections_closed
        assert len(self.wheel) == 0
        # Every on_connect was followed by exactly one on_disconnect.
        assert sorted(id_ for id_, _ in self.handler.ends) == sorted(c.id for c in self.handler.connections)


class Peer:
    """The other side: a bare socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(cls, port: int, source: str, receive_buffer_bytes: int | None = None) -> Peer:
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        try:
            sock.bind((source, 0))
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.sock, data)

    async def read(self, length: int) -> bytes:
        parts = []
        while length:
            data = await self._loop.sock_recv(self.sock, min(length, 1 << 20))
            if not data:
                raise EOFError
            parts.append(data)
            length -= len(data)
        return b"".join(parts)

    async def read_frame(self) -> bytes:
        (length,) = struct.unpack(">i", await self.read(4))
        return await self.read(length)

    async def read_frames(self, count: int) -> list[bytes]:
        return [await self.read_frame() for _ in range(count)]

    async def is_ended(self) -> bool:
        """Wait for something to come; True if it is the end of the stream."""
        try:
            return await self._loop.sock_recv(self.sock, 1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.sock.close()

    def vanish(self) -> None:
        """Close with a reset instead of a goodbye."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
