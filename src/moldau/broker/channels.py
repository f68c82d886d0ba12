"""Requests of this node to other nodes: one pipelined connection per peer, connected when first needed.

    response = await channels.call(host, port, m.VoteRequest(...), timeout_ms=2_000)

Requests leave in call order and are answered in it. Because a peer answers in order too, a Fetch that waits for data
would hold up everything behind it: Fetch has a connection of its own per peer, and whoever needs another one names a
`lane`. The peer's versions are asked once per connection, and the newest one both sides know is used. If the peers'
listener wants it, connections are TLS and this node logs in.

Nothing is sent twice: whoever calls decides whether a request may be repeated after Disconnected or RequestTimedOut.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moldau.broker.supervision import begin
from moldau.seams.network import ClientConnection, Disconnected, Network, RequestTimedOut
from moldau.wire import ErrorCode, Message, apis, decode, encode
from moldau.wire import messages as m
from moldau.wire.apis import API_VERSIONS
from moldau.wire.fetch import decode_fetch_response
from moldau.wire.headers import decode_response_header, encode_request_header
from moldau.wire.schema import Versions
from moldau.wire.served import UNSUPPORTED, decode_served

if TYPE_CHECKING:
    from ssl import SSLContext

    from moldau.security.sasl.client import Credentials

_log = logging.getLogger(__name__)
_FETCH = 1
_SESSION_USED = 0.85  # of a session's lifetime; then a new connection is made when nothing is under way
_WAITING_MAX = 500  # per connection: more means that nobody awaits the answers
_KEPT_MAX = 64  # connections; beyond that, closed ones of peers that moved away are forgotten
_BACKOFF_MS_MIN, _BACKOFF_MS_MAX = 50.0, 1_000.0
_CONNECT_TIMEOUT_MS = 10_000.0
_ASK_VERSION = 3  # of ApiVersions: every peer that has raft at all knows it
_SOFTWARE = ("moldau", "0.1")


class UnsupportedVersion(Exception):
    """The peer does not serve the API, or no version of it that this node speaks. It is newer or older by too much."""


@dataclass(slots=True, frozen=True)
class PeerSecurity:
    """How the peers' listener wants to be talked to. Asked for each connection: certificates are renewed."""

    tls: Callable[[], SSLContext] | None = None
    credentials: Callable[[], Credentials] | None = None


class Channels:
    """Belongs to the event loop. Lanes never share a connection."""

    def __init__(self, network: Network, client_id: str, *, security: PeerSecurity | None = None) -> None:
        self._network = network
        self._client_id = client_id
        self._security = security or PeerSecurity()
        self._channels: dict[tuple[str, int, str], _Channel] = {}
        self._is_closed = False

    async def call(
        self,
        host: str,
        port: int,
        request: Message,
        *,
        timeout_ms: float = 30_000,
        version: int | None = None,
        lane: str | None = None,
    ) -> Any:
        """The response (for Fetch, a `FetchedFrame`). Raises Disconnected, RequestTimedOut or UnsupportedVersion.

        `timeout_ms` covers the connection and the answer. A request that timed out ends its connection, and with it
        whatever else was in flight there.
        """
        if lane is None:
            lane = "fetch" if request.number == _FETCH else ""
        channel = self._channel((host, port, lane))
        if channel.waiting >= _WAITING_MAX:
            raise Disconnected(f"{_WAITING_MAX} requests to {host}:{port} are waiting already: it does not keep up")
        channel.waiting += 1
        try:
            connection = channel.open_connection()
            if connection is None:
                loop = asyncio.get_running_loop()
                deadline = loop.time() + timeout_ms / 1000
                connection = await channel.connection(timeout_ms)
                timeout_ms = max(1.0, (deadline - loop.time()) * 1000)
            return await channel.ask(connection, request, timeout_ms, version)
        finally:
            channel.waiting -= 1

    def drop(self, host: str, port: int) -> None:
        """Whoever was there is gone, as far as the cluster knows: who waits for it gets Disconnected at once.

        The next call connects anew.
        """
        for where, channel in self._channels.items():
            if where[:2] == (host, port):
                channel.drop()

    async def close(self) -> None:
        """Whoever waits gets Disconnected."""
        self._is_closed = True
        channels, self._channels = list(self._channels.values()), {}
        for each in channels:
            await each.close()

    def _channel(self, key: tuple[str, int, str]) -> _Channel:
        if self._is_closed:
            raise Disconnected("this node stops")
        found = self._channels.get(key)
        if found is None:
            if len(self._channels) >= _KEPT_MAX:
                self._channels = {where: each for where, each in self._channels.items() if each.is_in_use}
            found = self._channels[key] = _Channel(self._network, self._client_id, key[0], key[1], self._security)
        return found


class _Channel:
    """One peer, one lane: at most one connection at a time."""

    def __init__(self, network: Network, client_id: str, host: str, port: int, security: PeerSecurity) -> None:
        self._network = network
        self._client_id = client_id
        self._host = host
        self._port = port
        self._security = security
        self._session_until: float | None = None  # of the loop's time
        self._is_refused = False
        self._connection: ClientConnection | None = None
        self._connecting: asyncio.Task[ClientConnection] | None = None
        self._versions: Mapping[int, Versions] = {}
        self._correlation_id = 0
        self._failures = 0
        self._not_before = 0.0  # of the loop's time
        self._dropping: asyncio.Task[None] | None = None
        self.waiting = 0

    @property
    def is_in_use(self) -> bool:
        return self.waiting > 0 or (self._connection is not None and not self._connection.is_closed)

    def open_connection(self) -> ClientConnection | None:
        """The connection there is."""
        connection = self._connection
        if connection is None or connection.is_closed:
            return None
        if self._session_until is not None and self.waiting <= 1 and self._loop_time() >= self._session_until:
            self.drop()  # only the caller needs it, and the peer would end it soon
            return None
        return connection

    def _loop_time(self) -> float:
        return asyncio.get_running_loop().time()

    async def connection(self, timeout_ms: float) -> ClientConnection:
        """The connection there is, or a new one; several who ask meanwhile share the attempt."""
        if (there := self.open_connection()) is not None:
            return there
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(self._connect_ended)
        attempt = self._connecting
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await asyncio.shield(attempt)
        except RequestTimedOut:
            raise
        except TimeoutError as error:
            raise RequestTimedOut(
                f"{self._host}:{self._port} did not take the connection within {timeout_ms:.0f} ms"
            ) from error
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not attempt.cancelled() or (caller is not None and caller.cancelling()):
                raise  # the caller was cancelled, perhaps in the very moment in which the attempt ended
            raise Disconnected("this node stops") from None

    def _connect_ended(self, task: asyncio.Task[ClientConnection]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # whoever waited has it

    async def _connect(self) -> ClientConnection:
        loop = asyncio.get_running_loop()
        if (pause := self._not_before - loop.time()) > 0:
            await asyncio.sleep(pause)
        connection: ClientConnection | None = None
        try:
            tls = None if self._security.tls is None else self._security.tls()
            connection = await self._network.connect(self._host, self._port, tls=tls, timeout_ms=_CONNECT_TIMEOUT_MS)
            await self._learn_versions(connection)
            if self._security.credentials is not None:
                await self._log_in(connection, self._security.credentials)
        except BaseException:
            backoff_ms = min(_BACKOFF_MS_MAX, _BACKOFF_MS_MIN * 2**self._failures)
            self._failures = min(self._failures + 1, 10)
            self._not_before = loop.time() + backoff_ms / 1000
            if connection is not None:
                await connection.close()
            raise
        self._failures = 0
        self._connection = connection
        return connection

    async def _learn_versions(self, connection: ClientConnection) -> None:
        # The list itself must come in a version the peer knows; if it is older, it answers with version 0.
        self._versions = {API_VERSIONS: Versions(0, _ASK_VERSION)}
        answer = await self.ask(connection, m.ApiVersionsRequest(*_SOFTWARE), _CONNECT_TIMEOUT_MS, _ASK_VERSION)
        if answer.error_code not in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION):
            raise Disconnected(
                f"{self._host}:{self._port} does not tell its versions: {ErrorCode(answer.error_code).name}"
            )
        self._versions = answer.versions

    async def _log_in(self, connection: ClientConnection, held: Callable[[], Credentials]) -> None:
        from moldau.security.sasl.client import LoginRefused, exchange

        try:
            credentials = held()
        except LoginRefused as error:
            raise self._refused(str(error)) from error

        async def send(request: Message) -> Any:
            return await self.ask(connection, request, _CONNECT_TIMEOUT_MS, None)

        answer = await send(m.SaslHandshakeRequest(credentials.mechanism))
        if answer.error_code:
            offered = ", ".join(answer.mechanisms) or "none"
            raise self._refused(f"it does not take {credentials.mechanism}; it takes: {offered}")
        steps = exchange(credentials)
        try:
            token = next(steps)
            while True:
                answer = await send(m.SaslAuthenticateRequest(token))
                if answer.error_code:
                    raise self._refused(f"it refused {credentials.username!r}: {answer.error_message}")
                token = steps.send(bytes(answer.auth_bytes))
        except StopIteration:
            pass
        except LoginRefused as error:
            raise self._refused(str(error)) from error
        lifetime_ms: int = answer.session_lifetime_ms
        self._session_until = self._loop_time() + lifetime_ms / 1000 * _SESSION_USED if lifetime_ms else None
        self._is_refused = False

    def _refused(self, reason: str) -> Disconnected:
        """Said once, and again when it changes from well to ill."""
        text = f"cannot log in at {self._host}:{self._port}: {reason}"
        if not self._is_refused:
            self._is_refused = True
            _log.error("%s", text)
        return Disconnected(text)

    async def ask(self, connection: ClientConnection, request: Message, timeout_ms: float, version: int | None) -> Any:
        api = apis()[request.number]
        if version is None:
            version = self._best_version(request.number)
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        payload = [encode_request_header(api, version, correlation_id, self._client_id), encode(request, version)]
        frame = await connection.request(payload, timeout_ms=timeout_ms)
        told, position = decode_response_header(frame, header_version=api.response_header_version(version))
        if told != correlation_id:
            await connection.close()
            raise Disconnected(f"{self._host}:{self._port} answered request {told} when {correlation_id} was due")
        if api.key == _FETCH:
            return decode_fetch_response(frame, position, version)
        if api.key == API_VERSIONS:
            if connection is not self._connection:
                return decode_served(bytes(frame[position:]), version)  # the first question of a new one
            if frame[position : position + 2] == UNSUPPORTED:
                version = 0
        return decode(api.response, version, frame[position:])

    def _best_version(self, api_key: int) -> int:
        api = apis()[api_key]
        served = self._versions.get(api_key)
        version = -1 if served is None else min(api.versions.last, served.last)
        if served is None or version < max(api.versions.first, served.first):
            raise UnsupportedVersion(
                f"{self._host}:{self._port} serves {api.name} {served or 'not at all'}, this node speaks "
                f"{api.versions}: run the same release on all nodes, or check that the port is of the right listener"
            )
        return version

    def drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed:
            self._dropping = begin(asyncio.get_running_loop(), "closing a connection", _close(connection))

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            await self._connection.close()


async def _close(connection: ClientConnection) -> None:
    await connection.close()


__all__ = ["Channels", "Disconnected", "PeerSecurity", "RequestTimedOut", "UnsupportedVersion"]
