"""From a frame to its handler: header, version, decoding, and what happens when any of it goes wrong.

- An API or version that is not served closes the connection, as Apache Kafka does; only ApiVersions is answered, with
  version 0 and UNSUPPORTED_VERSION, so that the client can ask again.
- A frame that cannot be decoded closes the connection.
- A command for the active controller is passed on to it, if that is another node (`forwarding`).
- What is large is read, and answered, off the loop; what is long is answered in slices (`timers/turns`).
- A handler that fails answers UNKNOWN_SERVER_ERROR where the response has a place for it, and closes the connection
  where it has none; the broker goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker.calls import PLAINTEXT, Call, Session
from moldau.broker.quorum.errors import QuorumStopped
from moldau.broker.request_times import SAMPLED_MASK, RequestTimes
from moldau.broker.requests.access import answer
from moldau.broker.requests.forwarding import FORWARDED, carry_out
from moldau.broker.requests.refusals import refusal_of
from moldau.broker.requests.registry import ListenerKind, ServedApi, served_on
from moldau.broker.supervision import begin
from moldau.controller.errors import NotController, TooManyRecords
from moldau.seams.network import Connection, ResponseSlot
from moldau.timers.turns import let_go, others_of
from moldau.wire import ErrorCode, MalformedFrame, Message, decode_request, encode_long
from moldau.wire.apis import API_VERSIONS
from moldau.wire.headers import decode_client_id, decode_request_header, peek_api
from moldau.wire.message import Struct

if TYPE_CHECKING:
    from moldau.broker.parts import HasConfig, HasLoop, HasQuotas, HasTime, HasTurns
    from moldau.broker.requests.forwarding import Needs as ForwardingNeeds
    from moldau.broker.requests.parts import HearsOfDisconnects

    class Needs(ForwardingNeeds, HasConfig, HasQuotas, HasLoop, HasTime, HasTurns, HearsOfDisconnects, Protocol):
        """What this file may touch."""


_log = logging.getLogger(__name__)
_FLEXIBLE = 2  # the request header of flexible versions
_LONG = 2_000
_FREED_AT_ONCE = 10
_ENCODED_AT_ONCE_MAX = 2_000
_EXEMPT = frozenset({17, 27, 36})  # WriteTxnMarkers is for brokers; who logs in (SaslHandshake, …) is nobody yet
_READ_BY_HAND = ("Produce", "Fetch")
_LARGE_BYTES = 32 * 1024  # reading more takes milliseconds; Produce and Fetch look after themselves


class Dispatcher:
    """The `FrameHandler` of all listeners of a kind: for brokers' clients, or for the quorum's members."""

    def __init__(self, broker: Needs, kind: ListenerKind = "broker") -> None:
        self._broker = broker
        self._kind = kind
        self._served = self._counted(served_on(kind))
        # A node of its own is always the active controller; controllers themselves do not forward.
        self._forwarded = FORWARDED if kind == "broker" and not broker.config.standalone else frozenset()
        self._running: set[asyncio.Task[None]] = set()
        self._waiting: list[Connection] | None = []

    def _counted(self, served: dict[int, ServedApi]) -> dict[int, tuple[ServedApi, RequestTimes]]:
        """With counters of our own: a process may have several nodes, and each counts for itself."""
        slow_ms = self._broker.config.get_int("moldau.slow.request.ms")
        counted = {}
        for key, each in served.items():
            name = each.api.name
            times = RequestTimes(name, self._broker.clock.monotonic_ms, is_sampled=name in _READ_BY_HAND)
            times.slow_ms = slow_ms
            counted[key] = each, times
        return counted

    @property
    def times(self) -> list[RequestTimes]:
        """Of every API, asked for or not."""
        return [times for _, times in self._served.values()]

    def open(self) -> None:
        """The broker is ready: take the requests of those who connected while it started."""
        waiting, self._waiting = self._waiting, None
        for connection in waiting or ():
            if not connection.is_closed:
                connection.resume_dispatch()

    @property
    def is_waiting(self) -> bool:
        """Nobody is served yet."""
        return self._waiting is not None

    def on_connect(self, connection: Connection) -> None:
        name = connection.listener_name
        connection.context = Session(
            client_address=connection.peer_host,
            listener_name=name,
            security_protocol=self._broker.config.listener_protocols.get(name, PLAINTEXT),
        )
        if self._waiting is not None:
            connection.pause_dispatch()
            self._waiting.append(connection)

    def on_disconnect(self, connection: Connection, reason: str) -> None:
        self._broker.on_disconnect(connection)

    def on_frame(self, connection: Connection, frame: memoryview, slot: ResponseSlot) -> None:
        try:
            api_key, version, correlation_id = peek_api(frame)
            found = self._served.get(api_key)
            if found is None:
                slot.close(f"API key {api_key} is not served")
                return
            served, times = found
            api = served.api
            first, last = api.versions  # `in` would be a call
            if not first <= version <= last:
                # The header can still be judged: every version to come has the newest one.
                decode_request_header(frame, flexible=version > api.versions.last)
                self._unsupported(served, version, correlation_id, connection, slot)
                return
            client_id, position = decode_client_id(frame, api.request_header_version(version) == _FLEXIBLE)
            count = times.requests
            times.requests = count + 1
            call = Call(api, version, correlation_id, client_id, connection, slot, times)
            handle = served.handle or served.load()
            if self._broker.quotas.is_active and self._kind == "broker" and api.key not in _EXEMPT:
                from moldau.broker.quotas.meter import meter_of

                call.meter = meter_of(self._broker.quotas, self._broker.clock, call)
            if served.takes_frame:
                if count & SAMPLED_MASK:
                    handle(self._broker, call, frame, position)
                else:
                    times.begin(call)
                    handle(self._broker, call, frame, position)
                    times.handled(call)
                if call.meter is not None:
                    call.meter.returned()
                return
            times.begin(call)
            if len(frame) > _LARGE_BYTES:
                data = bytes(frame)
                self._broker.go_on(call, self._take_large(handle, call, data, position), len(data))
                return
            request = decode_request(api.request, version, frame[position:])
        except MalformedFrame as error:
            _malformed(connection, slot, error)
            return
        try:
            response = self._carry_out(handle, call, request, frame)
            if isinstance(response, GeneratorType):
                response = self._broker.turns.run(response)  # most long answers are short, and given at once
        except Exception as error:
            self._fail(call, request, error)
            return
        if call.meter is not None:
            call.meter.returned()
        if isinstance(response, Message):
            self._respond(call, request, response)
            return
        times.handled(call)
        if response is not None:
            # It needs time: nothing of the same connection may overtake it, as with Apache Kafka.
            connection.pause_dispatch()
            is_long = isinstance(response, asyncio.Future)
            task = begin(self._broker.loop, "a request", self._finish(response, call, request, is_long=is_long))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _carry_out(self, handle: Callable[..., Any], call: Call, request: Message, frame: bytes | memoryview) -> Any:
        if call.api.key in self._forwarded:
            return carry_out(self._broker, call, handle, request, bytes(frame))
        return answer(self._broker, call, handle, request)

    async def _take_large(self, handle: Callable[..., Any], call: Call, data: bytes, position: int) -> None:
        """A request so large that reading it takes longer than others should wait: a thread does. Likewise its answer,
        which is as long."""
        broker = self._broker
        work = partial(decode_request, call.api.request, call.version, memoryview(data)[position:])
        try:
            async with broker.long_look:
                request = await broker.loop.run_in_executor(broker.executor, work)
        except MalformedFrame as error:
            _malformed(call.connection, call.slot, error)
            return
        try:
            response = self._carry_out(handle, call, request, data)
            if isinstance(response, GeneratorType):
                response = await broker.in_turns(response)
            elif response is not None and not isinstance(response, Message):
                response = await response
            if response is not None:
                await self._respond_at_length(call, response)
        except Exception as error:
            self._fail(call, request, error)
            return
        kept = [request]
        del request
        if not others_of(kept):  # it has been answered, and nobody keeps it
            await self._let_go(kept[0])

    async def _respond_at_length(self, call: Call, response: Message) -> None:
        broker = self._broker
        call.judge(response)
        async with broker.long_look:
            body = await broker.loop.run_in_executor(broker.executor, encode_long, response, call.version)
        call.respond_payload([body])
        await self._let_go(response)

    async def _let_go(self, message: Message) -> None:
        long_lists = list(_long_lists(message))
        if long_lists:
            await self._broker.in_turns(let_go(*long_lists))

    async def _finish(self, work: Awaitable[Message | None], call: Call, request: Message, *, is_long: bool) -> None:
        """`is_long`: the answer was made in slices, and is as long."""
        try:
            response = await work
            if response is not None and (is_long or _is_long(response)):
                await self._respond_at_length(call, response)
                return
        except asyncio.CancelledError:
            call.slot.close("the broker stops")
            raise
        except Exception as error:
            self._fail(call, request, error)
        else:
            if response is not None:
                self._respond(call, request, response)
        finally:
            if not call.connection.is_closed:
                call.connection.resume_dispatch()

    async def stop(self) -> None:
        """Cancel what still runs."""
        running = (*self._running, *self._broker.under_way)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _respond(self, call: Call, request: Message, response: Message) -> None:
        """An answer that cannot be encoded is a failure like any other: somebody waits for it."""
        try:
            call.respond(response)
        except Exception as error:
            self._fail(call, request, error)

    def _fail(self, call: Call, request: Message, error: Exception) -> None:
        code, message = ErrorCode.NOT_CONTROLLER, None
        if isinstance(error, TooManyRecords):
            code, message = ErrorCode.POLICY_VIOLATION, str(error)
        elif isinstance(error, QuorumStopped):
            code = ErrorCode.BROKER_NOT_AVAILABLE  # why was told when it stopped, and the others ask again and again
        elif not isinstance(error, NotController):
            _log.error(f"{call.api.name} failed: %r", call, exc_info=error)  # one API must not hide another
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        try:
            refused = refusal_of(request, call, code, message)
            if refused is not None:
                call.respond(refused)
        except Exception:
            _log.exception("%r cannot be refused either", call)
            with contextlib.suppress(RuntimeError):  # it was answered, but something after that failed
                call.slot.close("the answer cannot be written")

    def _unsupported(
        self, served: ServedApi, version: int, correlation_id: int, connection: Connection, slot: ResponseSlot
    ) -> None:
        if served.api.key != API_VERSIONS:
            slot.close(f"{served.api.name} v{version} is not served; versions are {served.api.versions}")
            return
        from moldau.broker.requests.handlers.api_versions import unsupported_version

        Call(served.api, 0, correlation_id, None, connection, slot).respond(unsupported_version(self._kind))


def _is_long(message: Struct) -> bool:
    """Whether encoding it takes longer than others should wait: a short request may ask for everything."""
    lists = [value for name in message.__slots__ if isinstance(value := getattr(message, name), list)]
    total = sum(map(len, lists))
    for value in lists:
        if total > _ENCODED_AT_ONCE_MAX:
            break
        for each in value:
            if isinstance(each, Struct):
                total += sum(len(it) for name in each.__slots__ if isinstance(it := getattr(each, name), list))
    return total > _ENCODED_AT_ONCE_MAX


def _long_lists(message: Struct) -> Iterator[list[Any]]:
    """Those worth freeing in turns: all of the first level at which there is much, unless somebody else has them."""
    level: list[Struct] = [message]
    while level:
        lists: list[list[Any]] = []
        for struct in level:
            for name in struct.__slots__:
                value = getattr(struct, name)
                if isinstance(value, list) and value:
                    kept = [value]
                    del value
                    if others_of(kept) == 1:  # the struct
                        lists.append(kept[0])
        if sum(map(len, lists)) > _LONG:
            yield from (each for each in lists if len(each) > _FREED_AT_ONCE)
            return
        level = []
        for value in lists:
            for each in value:
                if isinstance(each, Struct):
                    kept_struct = [each]
                    del each
                    if others_of(kept_struct) == 1:  # the list
                        level.append(kept_struct[0])


def _malformed(connection: Connection, slot: ResponseSlot, error: MalformedFrame) -> None:
    _log.info("closing %s:%s: %s", connection.peer_host, connection.peer_port, error)
    slot.close(f"malformed request: {error}")
