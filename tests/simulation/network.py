"""The network of a simulated world: whole frames between named hosts, late, lost, or never.

A connection keeps its order, as TCP does; different connections overtake each other. Trouble is per direction between
two hosts: a *cut* swallows everything silently (both ends go on believing in the connection until they give up), a
*reset* ends it at once, whether or not the other side has handled what was sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from moldau.seams import Random
from moldau.seams.network import Disconnected, FrameHandler, Payload, RequestTimedOut
from tests.simulation.loop import Process, SimHandle, VirtualLoop, current_process

_BUFFERS = (bytes, bytearray, memoryview)


def _joined(payload: Payload) -> bytearray:
    frame = bytearray()
    for piece in payload:
        frame += piece if isinstance(piece, _BUFFERS) else piece.read()
    return frame


class Fabric:
    """All hosts, and how well they hear each other."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.latency_ms = (0.2, 2.0)
        self.extra_ms: dict[tuple[str, str], float] = {}
        self.slow_hosts: dict[str, float] = {}  # milliseconds a host needs before it looks at a frame
        self.cuts: set[tuple[str, str]] = set()
        self.listeners: dict[tuple[str, int], SimListener] = {}
        self.links: dict[int, Link] = {}
        self.frames = 0
        self.dropped = 0
        # By API key, whoever listens in: host asked, request, answer; also of answers that are lost on their way.
        self.taps: dict[int, Callable[[str, bytearray, bytearray], None]] = {}
        self._next_id = 0
        self._next_port = 40_000

    def new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def new_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def delay_s(self, source: str, target: str) -> float:
        low, high = self.latency_ms
        ms = low + (high - low) * self.random.fraction()
        if self.extra_ms:
            ms += self.extra_ms.get((source, target), 0.0)
        return ms / 1000

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self.cuts

    def cut(self, source: str, target: str) -> None:
        self.cuts.add((source, target))

    def heal(self) -> None:
        """Everybody hears everybody again."""
        self.cuts.clear()
        self.extra_ms.clear()
        self.slow_hosts.clear()
        self.end_broken()

    def end_broken(self) -> None:
        """Connections that lost frames are ended: for simplicity, nothing is retransmitted after a cut."""
        for link in list(self.links.values()):
            if link.lost_frames and not {
                (link.client_host, link.server_host),
                (link.server_host, link.client_host),
            }.intersection(self.cuts):
                link.reset("the network lost part of it")

    def reset(self, source: str, target: str) -> None:
        """End every connection between the two."""
        for link in list(self.links.values()):
            if {link.client_host, link.server_host} == {source, target}:
                link.reset("connection reset")

    def host_died(self, host: str) -> None:
        for key in [key for key in self.listeners if key[0] == host]:
            del self.listeners[key]
        for link in list(self.links.values()):
            if host in (link.client_host, link.server_host):
                link.reset("the peer is gone", dead_host=host)


class Link:
    """One connection: two queues of frames, each in order."""

    def __init__(self, fabric: Fabric, client_host: str, server_host: str) -> None:
        self.id = fabric.new_id()
        self.fabric = fabric
        self.client_host, self.server_host = client_host, server_host
        self.is_open = True
        self.lost_frames = False
        self.client: SimClientConnection
        self.server: SimServerConnection
        self._there = (client_host, server_host)
        self._back = (server_host, client_host)
        self._there_ready_s = self._back_ready_s = 0.0  # when the last frame of a direction arrives
        fabric.links[self.id] = self

    def send(self, to_server: bool, frame: bytearray, deliver: Callable[[bytearray], None], receiver: Process) -> None:
        """Hand a frame to the network: `deliver` runs as `receiver` when it arrives, if it does."""
        fabric = self.fabric
        ends = self._there if to_server else self._back
        fabric.frames += 1
        if ends in fabric.cuts:
            fabric.dropped += 1
            self.lost_frames = True
            return
        arrival = fabric.loop.now + fabric.delay_s(*ends)
        if to_server:
            arrival = self._there_ready_s = max(self._there_ready_s, arrival)
        else:
            arrival = self._back_ready_s = max(self._back_ready_s, arrival)
        fabric.loop.call_as(receiver, arrival, self._arrive, ends, deliver, frame)

    def _arrive(self, ends: tuple[str, str], deliver: Callable[[bytearray], None], frame: bytearray) -> None:
        if not self.is_open or self.lost_frames:
            return  # what follows a lost frame is not delivered before it
        if ends in self.fabric.cuts:
            self.fabric.dropped += 1
            self.lost_frames = True
            return
        deliver(frame)

    def reset(self, reason: str, dead_host: str | None = None) -> None:
        if not self.is_open:
            return
        self.is_open = False
        del self.fabric.links[self.id]
        if self.client_host != dead_host:
            self.client.lost(reason)
        if self.server_host != dead_host:
            self.server.lost(reason)


class SimSlot:
    __slots__ = ("_connection", "_request", "closing", "frame", "is_done")

    def __init__(self, connection: SimServerConnection, request: bytearray) -> None:
        self._connection = connection
        self._request = request
        self.frame: bytearray | None = None
        self.is_done = False
        self.closing = False

    def complete(self, payload: Payload) -> None:
        assert not self.is_done, "a slot is completed once"
        self.frame = _joined(payload)
        self.is_done = True
        self._connection.overheard(self._request, self.frame)
        self._connection.flush()

    def complete_nothing(self) -> None:
        assert not self.is_done, "a slot is completed once"
        self.is_done = True
        self._connection.flush()

    def close(self, reason: str) -> None:
        self.is_done = True
        self.closing = True
        self._connection.flush()


class SimServerConnection:
    """See `moldau.seams.network.Connection`."""

    def __init__(
        self, link: Link, handler: FrameHandler, listener_name: str, process: Process, local_port: int
    ) -> None:
        self.context: Any = None
        self.id = link.id
        self.listener_name = listener_name
        self.peer_host = link.client_host
        self.peer_port = link.fabric.new_port()
        self.local_port = local_port
        self.tls_peer_name = None
        self.is_tls = False
        self.is_closed = False
        self.process = process
        self._link = link
        self._handler = handler
        self._inbox: deque[bytearray] = deque()
        self._slots: deque[SimSlot] = deque()
        self._paused = 0
        self._muted_until_s = 0.0
        self._is_scheduled = False

    def frame_arrived(self, frame: bytearray) -> None:
        self._inbox.append(frame)
        if self._link.server_host in self._link.fabric.slow_hosts or len(self._inbox) > 1:
            self._schedule()
        elif not self._is_scheduled:
            self._dispatch()

    def _schedule(self, delay_s: float = 0.0) -> None:
        if not self._is_scheduled and not self.is_closed:
            self._is_scheduled = True
            fabric = self._link.fabric
            delay_s += fabric.slow_hosts.get(self._link.server_host, 0.0) / 1000
            fabric.loop.call_as(self.process, fabric.loop.time() + delay_s, self._dispatch)

    def _dispatch(self) -> None:
        self._is_scheduled = False
        if self.is_closed or self._paused or not self._inbox:
            return
        wait_s = self._muted_until_s - self._link.fabric.loop.now
        if wait_s > 0:
            self._schedule(wait_s)
            return
        frame = self._inbox.popleft()
        slot = SimSlot(self, frame)
        self._slots.append(slot)
        try:
            self._handler.on_frame(self, memoryview(frame), slot)
        except Exception as error:
            self._link.fabric.loop.failures.append(f"on_frame raised {error!r}")
            self.close("the handler failed")
            return
        if self._inbox:
            self._schedule()

    def overheard(self, request: bytearray, answer: bytearray) -> None:
        tap = self._link.fabric.taps.get(request[0] << 8 | request[1])
        if tap is not None:
            tap(self._link.server_host, request, answer)

    def flush(self) -> None:
        while self._slots and self._slots[0].is_done and not self.is_closed:
            slot = self._slots.popleft()
            if slot.closing:
                self.close("asked for")
                return
            if slot.frame is not None:
                self._link.client.expect(self._link, slot.frame)

    def pause_dispatch(self) -> None:
        self._paused += 1

    def hold_memory(self, held_bytes: int) -> None:
        """Frames arrive whole: there is no budget."""

    def resume_dispatch(self) -> None:
        self._paused -= 1
        assert self._paused >= 0
        self._schedule()

    def distrust(self, max_frame_bytes: int) -> None: ...

    def trust(self) -> None: ...

    def mute_until(self, deadline_ms: float) -> None:
        self._muted_until_s = max(self._muted_until_s, deadline_ms / 1000)

    def close(self, reason: str, *, flush: bool = False) -> None:
        if not self.is_closed:
            self._link.reset(reason)

    def lost(self, reason: str) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        loop = self._link.fabric.loop
        loop.call_as(self.process, loop.time(), self._handler.on_disconnect, self, reason)


class SimClientConnection:
    """See `moldau.seams.network.ClientConnection`."""

    def __init__(self, link: Link, process: Process) -> None:
        self._link = link
        self._process = process
        # Who waits for an answer, and the timer that ends the wait.
        self._waiting: deque[tuple[asyncio.Future[memoryview], SimHandle | None]] = deque()
        self.is_closed = False

    def request(self, payload: Payload, *, timeout_ms: float | None = None) -> Awaitable[memoryview]:
        loop = self._link.fabric.loop
        future: asyncio.Future[memoryview] = loop.create_future()
        if self.is_closed:
            future.set_exception(Disconnected("the connection is closed"))
            return future
        timer = None if timeout_ms is None else loop.call_later(timeout_ms / 1000, self._timed_out, future, timeout_ms)
        self._waiting.append((future, timer))
        self.send(payload)
        return future

    def send(self, payload: Payload) -> None:
        if self.is_closed:
            raise Disconnected("the connection is closed")
        frame = _joined(payload)
        server = self._link.server
        self._link.send(True, frame, server.frame_arrived, server.process)

    def expect(self, link: Link, frame: bytearray) -> None:
        """The server answers: the oldest waiting request gets it when it arrives."""
        link.send(False, frame, self._answered, self._process)

    def _answered(self, frame: bytearray) -> None:
        if self._waiting:
            future, timer = self._waiting.popleft()
            if timer is not None:
                timer.cancel()
            if not future.done():
                future.set_result(memoryview(frame))

    def _timed_out(self, future: asyncio.Future[memoryview], timeout_ms: float) -> None:
        if not future.done():
            future.set_exception(RequestTimedOut(f"no response within {timeout_ms} ms"))
            self._link.reset("a request timed out")

    async def close(self) -> None:
        self._link.reset("closed by the client")

    def lost(self, reason: str) -> None:
        self.is_closed = True
        waiting, self._waiting = self._waiting, deque()
        loop = self._link.fabric.loop

        def tell() -> None:
            for future, timer in waiting:
                if timer is not None:
                    timer.cancel()
                if not future.done():
                    future.set_exception(Disconnected(reason))

        loop.call_as(self._process, loop.time(), tell)


class SimListener:
    def __init__(self, fabric: Fabric, host: str, port: int, handler: FrameHandler, name: str) -> None:
        self.host, self.port, self.name = host, port, name
        self.handler = handler
        self.process = current_process.get()
        self._fabric = fabric

    def renew_tls(self, context: object) -> None: ...

    async def close(self) -> None:
        self._fabric.listeners.pop((self.host, self.port), None)


class SimNetwork:
    """What one process sees of the fabric; see `moldau.seams.network.Network`."""

    def __init__(self, fabric: Fabric, host: str) -> None:
        self._fabric = fabric
        self.host = host

    async def listen(
        self, host: str, port: int, handler: FrameHandler, *, name: str, tls: object = None, **_: Any
    ) -> SimListener:
        port = port or self._fabric.new_port()
        key = (self.host, port)
        if key in self._fabric.listeners:
            raise OSError(f"{key} is in use")
        listener = self._fabric.listeners[key] = SimListener(self._fabric, self.host, port, handler, name)
        return listener

    async def connect(
        self, host: str, port: int, *, tls: object = None, timeout_ms: float = 30_000
    ) -> SimClientConnection:
        fabric, here = self._fabric, self.host
        if fabric.is_cut(here, host) or fabric.is_cut(host, here):
            await asyncio.sleep(timeout_ms / 1000)
            raise RequestTimedOut(f"no answer from {host}:{port} within {timeout_ms} ms")
        await asyncio.sleep(fabric.delay_s(here, host) + fabric.delay_s(host, here))
        listener = fabric.listeners.get((host, port))
        if listener is None or fabric.is_cut(here, host):
            raise Disconnected(f"nobody listens on {host}:{port}")
        link = Link(fabric, here, host)
        link.client = SimClientConnection(link, current_process.get())
        link.server = SimServerConnection(link, listener.handler, listener.name, listener.process, listener.port)
        server = link.server
        fabric.loop.call_as(listener.process, fabric.loop.time(), listener.handler.on_connect, server)
        return link.client

    async def stop(self, drain_ms: float) -> None:
        fabric = self._fabric
        for key in [key for key in fabric.listeners if key[0] == self.host]:
            del fabric.listeners[key]
        deadline_s = fabric.loop.time() + drain_ms / 1000
        mine = [link for link in fabric.links.values() if self.host in (link.client_host, link.server_host)]
        while fabric.loop.time() < deadline_s and any(
            link.server._slots for link in mine if link.is_open and link.server_host == self.host
        ):
            await asyncio.sleep(0.01)
        for link in mine:
            link.reset("we stop")
        await asyncio.sleep(0)
