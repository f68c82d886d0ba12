"""The client's end of a connection: requests out, responses back in order, pipelined.

Responses carry no name the transport knows: they are matched by order alone. So a request that times out ends the
connection, as in Kafka's own client: a late answer would otherwise be taken for the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from typing import TYPE_CHECKING, Protocol

from moldau.net.channel import Channel, PlainChannel
from moldau.net.inbound import BadFrame, FrameReader
from moldau.net.outbound import FrameWriter, RegionTooShort
from moldau.net.settings import UNLIMITED
from moldau.seams.network import Disconnected, Payload, RequestTimedOut
from moldau.timers.wheel import TimerHandle

if TYPE_CHECKING:
    from ssl import SSLContext

    from moldau.net.parts import HasLoop, HasMemory
    from moldau.net.tls import TlsChannel

    class Needs(HasLoop, HasMemory, Protocol):
        """What of the reactor this file may touch."""


_IN_FLIGHT_MAX = 1000
_QUEUED_BYTES_MAX = 256 * 1024 * 1024


class FrameClient:
    """See `moldau.seams.network.ClientConnection`."""

    __slots__ = (
        "_channel",
        "_close_reason",
        "_is_write_blocked",
        "_loop",
        "_reactor",
        "_reader",
        "_waiting",
        "_writer",
        "peer",
    )

    def __init__(self, reactor: Needs, channel: Channel, peer: str) -> None:
        self.peer = peer
        self._reactor = reactor
        self._loop = reactor.loop
        self._channel = channel
        # What limits requests is there to guard this node from its clients. A response is what the node asked for.
        self._reader = FrameReader(reactor.memory, UNLIMITED, is_charged=False)
        self._writer = FrameWriter()
        self._waiting: deque[tuple[asyncio.Future[memoryview], TimerHandle | None]] = deque()
        self._is_write_blocked = False
        self._close_reason: str | None = None
        self._loop.add_reader(channel.fileno(), self._on_readable)
        if channel.has_unread:
            self._loop.call_soon(self._on_readable)

    @property
    def is_closed(self) -> bool:
        return self._close_reason is not None

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    def request(self, payload: Payload, *, timeout_ms: float | None = None) -> asyncio.Future[memoryview]:
        """Send now, in call order. The awaited response belongs to the caller.

        Cancelling the wait does not unsend: the response is read and dropped.
        """
        self._push(payload)
        future: asyncio.Future[memoryview] = self._loop.create_future()
        timer = None
        if timeout_ms is not None:
            deadline_ms = self._reactor.clock.monotonic_ms() + timeout_ms
            timer = self._reactor.wheel.add(deadline_ms, lambda: self._time_out(timeout_ms))
        self._waiting.append((future, timer))
        self._flush()
        return future

    def send(self, payload: Payload) -> None:
        """Send a request that has no response."""
        self._push(payload)
        self._flush()

    async def close(self) -> None:
        self.close_now("closed by us")

    def close_now(self, reason: str, error: OSError | None = None) -> None:
        if self._close_reason is not None:
            return
        self._close_reason = reason
        fd = self._channel.fileno()
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)
        self._reader.discard()
        self._writer.clear()
        self._channel.end_sending()
        self._channel.close()
        waiting, self._waiting = self._waiting, deque()
        for future, timer in waiting:
            if timer is not None:
                timer.cancel()
            if not future.done():
                future.set_exception(error or Disconnected(f"the connection to {self.peer} is gone: {reason}"))
                error = None  # only the oldest request timed out; the others were merely behind it

    def take(self, frame: memoryview) -> bool:
        """One response from the reader."""
        if not self._waiting:
            raise BadFrame("a response came that nobody asked for")
        future, timer = self._waiting.popleft()
        if timer is not None:
            timer.cancel()
        if not future.done():
            future.set_result(frame if self._reader.detach() else memoryview(bytearray(frame)))
        return True

    def _push(self, payload: Payload) -> None:
        if self._close_reason is not None:
            raise Disconnected(f"the connection to {self.peer} is gone: {self._close_reason}")
        if len(self._waiting) >= _IN_FLIGHT_MAX or self._writer.queued_bytes > _QUEUED_BYTES_MAX:
            raise RuntimeError(f"too much is in flight to {self.peer}: await responses before sending more")
        self._writer.push(payload)

    def _time_out(self, timeout_ms: float) -> None:
        reason = f"no response from {self.peer} within {timeout_ms:.0f} ms"
        self.close_now(reason, RequestTimedOut(reason))

    def _on_readable(self) -> None:
        if self._close_reason is not None:
            return
        try:
            received = self._reader.receive(self._channel, self, 0.0)
        except BlockingIOError:
            pass
        except (OSError, BadFrame) as error:
            self.close_now(f"reading failed: {error}")
            return
        else:
            if received == 0:
                self.close_now("the peer closed it")
                return
        if self._channel.has_unsent:
            self._flush()
        if self._channel.has_unread:
            self._loop.call_soon(self._on_readable)

    def _flush(self) -> None:
        if self._close_reason is not None or self._is_write_blocked:
            return
        self._on_writable()

    def _on_writable(self) -> None:
        try:
            is_drained = self._writer.flush(self._channel)
            while self._writer.cold_region() is not None:  # rare in requests: wait for the disk
                is_drained = self._writer.flush(self._channel)
        except (OSError, RegionTooShort) as error:
            self.close_now(f"writing failed: {error}")
            return
        if is_drained == self._is_write_blocked:  # it changed
            self._is_write_blocked = not is_drained
            if is_drained:
                self._loop.remove_writer(self._channel.fileno())
            else:
                self._loop.add_writer(self._channel.fileno(), self._on_writable)


async def connect(
    reactor: Needs, host: str, port: int, *, tls: SSLContext | None = None, timeout_ms: float = 30_000
) -> FrameClient:
    """Connect, and shake hands if `tls` is given. Raises Disconnected or RequestTimedOut, saying who was not there."""
    peer = f"{host}:{port}"
    loop = reactor.loop
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            sock = await _open_socket(loop, host, port)
            try:
                channel: Channel = PlainChannel(sock)
                if tls is not None:
                    from moldau.net.tls import TlsChannel

                    scratch = reactor.memory.scratch
                    channel = secured = TlsChannel(sock, tls, scratch, server_side=False, server_hostname=host)
                    await _shake_hands(loop, secured)
            except BaseException:
                sock.close()
                raise
    except TimeoutError as error:
        raise RequestTimedOut(f"{peer} did not take the connection within {timeout_ms:.0f} ms") from error
    except OSError as error:
        raise Disconnected(f"cannot connect to {peer}: {error}") from error
    return FrameClient(reactor, channel, peer)


async def _open_socket(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """The first of the host's addresses that answers."""
    failure: OSError | None = None
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure or OSError(f"{host} has no address")


async def _shake_hands(loop: asyncio.AbstractEventLoop, channel: TlsChannel) -> None:
    fd = channel.fileno()
    done: asyncio.Future[None] = loop.create_future()

    def step() -> None:
        if done.done():
            return
        try:
            channel.handshake()
        except BlockingIOError:
            if channel.has_unsent:
                loop.add_writer(fd, step)
            else:
                loop.remove_writer(fd)
        except OSError as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    loop.add_reader(fd, step)
    try:
        step()
        await done
    finally:
        with contextlib.suppress(OSError):
            loop.remove_reader(fd)
            loop.remove_writer(fd)
