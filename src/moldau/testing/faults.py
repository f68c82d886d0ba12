"""Things that go wrong, when a test says so: errors by API, delays, lost connections, frozen brokers, full disks.

    broker.faults.fail("Produce", "NOT_ENOUGH_REPLICAS", times=2)   # then all is well again
    broker.faults.disconnect("Produce", times=1, after=True)        # carried out, and the answer is lost
    with broker.faults.paused(): …                                  # nobody is answered meanwhile

They stand between the node and its network or disk, through the same seams everything else uses: the broker itself is
the one people run. May be called from any thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from moldau.seams.network import (
        ClientConnection,
        Connection,
        FrameHandler,
        Listener,
        Network,
        Payload,
        ResponseSlot,
    )
    from moldau.wire import ErrorCode

_FOR_EVER = -1
_API_VERSIONS = "ApiVersions"  # a client that cannot ask for versions asks nothing else


class _Rule:
    """What happens to the next `left` requests of an API, or of all APIs (None)."""

    __slots__ = ("after", "api_key", "code", "kind", "left", "seconds")

    def __init__(self, kind: str, api_key: int | None, times: int | None) -> None:
        if times is not None and times < 1:
            raise ValueError(f"times={times}: at least 1, or None for all requests from now on")
        self.kind = kind
        self.api_key = api_key
        self.left = _FOR_EVER if times is None else times
        self.code: ErrorCode | None = None
        self.seconds = 0.0
        self.after = False


class Faults:
    """Of one broker. Rules are applied in the order in which they were made; the first that fits a request counts."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []
        self._held: list[tuple[FrameHandler, Connection, bytearray, ResponseSlot]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_paused = False
        self.is_disk_full = False
        self.cut_off: frozenset[int] = frozenset()
        """Ports nobody reaches from here."""
        self.counts: dict[str, int] = {}
        """How often something went wrong, by kind."""

    # -- what tests say

    def fail(self, api: str, error: str | ErrorCode, *, times: int | None = None) -> None:
        """Refuse this API (`Produce`, `OffsetCommit`, …) with an error code; it is not carried out. Where its answer
        has no place for an error, the connection ends instead."""
        rule = _Rule("fail", _key(api), times)
        rule.code = _code(error)
        self._rules.append(rule)

    def delay(self, api: str | None = None, *, seconds: float, times: int | None = None) -> None:
        """Carry it out that much later. Nothing of the same connection overtakes it."""
        if seconds < 0:
            raise ValueError(f"seconds={seconds}: nothing is carried out before it is asked for")
        rule = _Rule("delay", _key(api), times)
        rule.seconds = seconds
        self._rules.append(rule)

    def disconnect(self, api: str | None = None, *, times: int | None = None, after: bool = False) -> None:
        """Close the connection instead of answering; with `after`, when the request has been carried out."""
        rule = _Rule("disconnect", _key(api), times)
        rule.after = after
        self._rules.append(rule)

    def pause(self) -> None:
        """Take no more requests: the broker looks frozen, and connections stay."""
        self.is_paused = True

    def resume(self) -> None:
        """Go on: everybody who waited is answered, in order."""
        self.is_paused = False
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver_held)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Frozen inside of the `with` block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def fill_disk(self) -> None:
        """Every write fails from now on, for there is no space left. As with Kafka, the log dir is offline then: free
        it (`free_disk`) and restart the broker."""
        self.is_disk_full = True

    def free_disk(self) -> None:
        """There is space again. What failed meanwhile stays failed until the broker is restarted."""
        self.is_disk_full = False

    def clear(self) -> None:
        """All is well again."""
        self._rules.clear()
        self.free_disk()
        self.cut_off = frozenset()
        self.resume()

    # -- what happens

    def network(self, network: Network) -> Network:
        """What a node is given in the place of its network."""
        return _FaultyNetwork(network, self)

    async def cut(self, network: Network, ports: frozenset[int]) -> None:
        """Nothing goes to these ports from now on, nor comes back from there. Belongs to the node's loop."""
        assert isinstance(network, _FaultyNetwork)
        self.cut_off = ports
        await network.drop(ports)

    def disk_error(self, path: str) -> OSError:
        """What a write is told on a full disk."""
        self._count("disk full")
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def _rule_for(self, frame: memoryview) -> _Rule | None:
        from moldau.wire import MalformedFrame
        from moldau.wire.headers import peek_api

        try:
            api_key = peek_api(frame)[0]
        except MalformedFrame:
            return None
        for rule in self._rules:
            if rule.left and (rule.api_key == api_key or (rule.api_key is None and api_key != _key(_API_VERSIONS))):
                if rule.left > 0:
                    rule.left -= 1
                return rule
        return None

    def take(self, handler: FrameHandler, connection: Connection, frame: memoryview, slot: ResponseSlot) -> None:
        """One request, on the loop."""
        if self.is_paused:
            connection.pause_dispatch()
            self._held.append((handler, connection, bytearray(frame), slot))
            return
        rule = self._rule_for(frame) if self._rules else None
        if rule is None:
            handler.on_frame(connection, frame, slot)
            return
        self._count(rule.kind)
        if rule.code is not None:
            if _FailedTopics.suits(frame):
                handler.on_frame(connection, frame, _FailedTopics(slot, frame, rule.code))
            else:
                _refuse(connection, frame, slot, rule.code)
        elif rule.kind == "delay":
            assert self._loop is not None
            connection.pause_dispatch()
            self._loop.call_later(rule.seconds, self._deliver, handler, connection, bytearray(frame), slot)
        elif rule.after:
            handler.on_frame(connection, frame, _Lost(slot))
        else:
            slot.close("a fault of the test")

    def _deliver_held(self) -> None:
        held, self._held = self._held, []
        for each in held:
            self._deliver(*each)

    def _deliver(self, handler: FrameHandler, connection: Connection, frame: bytearray, slot: ResponseSlot) -> None:
        if not connection.is_closed:
            handler.on_frame(connection, memoryview(frame), slot)
            connection.resume_dispatch()

    def _runs_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop


class _FaultyHandler:
    """The dispatcher, with faults in front of it."""

    def __init__(self, inner: FrameHandler, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self.on_connect = inner.on_connect
        self.on_disconnect = inner.on_disconnect

    def on_frame(self, connection: Connection, frame: memoryview, slot: ResponseSlot) -> None:
        self._faults.take(self._inner, connection, frame, slot)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _FaultyNetwork:
    """See `moldau.seams.network.Network`."""

    def __init__(self, inner: Network, faults: Faults) -> None:
        import asyncio

        self._inner = inner
        self._faults = faults
        self._open: list[tuple[int, ClientConnection]] = []
        faults._runs_on(asyncio.get_running_loop())

    async def listen(self, host: str, port: int, handler: FrameHandler, **more: Any) -> Listener:
        return await self._inner.listen(host, port, _FaultyHandler(handler, self._faults), **more)

    async def connect(self, host: str, port: int, **more: Any) -> ClientConnection:
        from moldau.seams.network import Disconnected

        if port in self._faults.cut_off:
            raise Disconnected(f"{host}:{port} is cut off by the test")
        connection = await self._inner.connect(host, port, **more)
        self._open = [(to, each) for to, each in self._open if not each.is_closed]
        self._open.append((port, connection))
        return connection

    async def drop(self, ports: frozenset[int]) -> None:
        """Close the connections that lead there."""
        for port, connection in self._open:
            if port in ports:
                await connection.close()

    async def stop(self, drain_ms: float) -> None:
        await self._inner.stop(drain_ms)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Lost:
    """A slot whose answer never arrives."""

    def __init__(self, slot: ResponseSlot) -> None:
        self._slot = slot

    def complete(self, payload: Payload) -> None:
        self._slot.close("a fault of the test: the answer is lost")

    def complete_nothing(self) -> None:
        self._slot.close("a fault of the test")

    def close(self, reason: str) -> None:
        self._slot.close(reason)


class _FailedTopics:
    """The slot of a Metadata request whose topics cannot be told of; brokers and controller are, as ever: a client that
    hears of none has nobody to ask again."""

    def __init__(self, slot: ResponseSlot, frame: memoryview, code: ErrorCode) -> None:
        from moldau.wire import apis
        from moldau.wire.headers import peek_api

        key, self._version, _ = peek_api(frame)
        self._api = apis()[key]
        self._slot = slot
        self._code = code

    @staticmethod
    def suits(frame: memoryview) -> bool:
        from moldau.wire import messages as m
        from moldau.wire.headers import peek_api

        return peek_api(frame)[0] == m.MetadataRequest.number

    def complete(self, payload: Payload) -> None:
        from moldau.wire import decode, encode
        from moldau.wire.headers import decode_response_header

        frame = b"".join(bytes(part) for part in payload)  # type: ignore[arg-type]  # Metadata sends no files
        header_version = self._api.response_header_version(self._version)
        _, position = decode_response_header(frame, header_version=header_version)
        response: Any = decode(self._api.response, self._version, frame[position:])
        for topic in response.topics:
            topic.error_code = self._code
            topic.partitions = []
        self._slot.complete([frame[:position], encode(response, self._version)])

    def complete_nothing(self) -> None:
        self._slot.complete_nothing()

    def close(self, reason: str) -> None:
        self._slot.close(reason)


# The lists of request and response in which an error has its place: topics, and their partitions.
_PLACES = {
    "Produce": ("topic_data", "responses", "partition_data", "partition_responses"),
    "Fetch": ("topics", "responses", "partitions", "partitions"),
    "ListOffsets": ("topics", "topics", "partitions", "partitions"),
    "OffsetCommit": ("topics", "topics", "partitions", "partitions"),
    "TxnOffsetCommit": ("topics", "topics", "partitions", "partitions"),
    "OffsetForLeaderEpoch": ("topics", "topics", "partitions", "partitions"),
}
_NAMES = {"partition": "partition_index"}


def _refuse(connection: Connection, frame: memoryview, slot: ResponseSlot, code: ErrorCode) -> None:
    from moldau.broker.calls import Call
    from moldau.broker.requests.refusals import refusal_of
    from moldau.wire import apis, decode_request
    from moldau.wire.headers import decode_client_id, peek_api

    api_key, version, correlation_id = peek_api(frame)
    api = apis()[api_key]
    if version not in api.versions:
        slot.close("a version nobody knows")
        return
    client_id, position = decode_client_id(frame, api.request_header_version(version) == 2)
    request = decode_request(api.request, version, frame[position:])
    call = Call(api, version, correlation_id, client_id, connection, slot)
    if api.name == "Produce" and request.acks == 0:  # type: ignore[attr-defined]  # by its name
        slot.close("a fault of the test; nobody wants an answer")
        return
    response = _mirrored(api, request, code) or refusal_of(request, call, code)
    if response is not None:
        call.respond(response)


def _mirrored(api: Any, request: Any, code: ErrorCode) -> Any:
    """A response that says the same error of everything the request names; None if this API has no such lists, or the
    request names nothing."""
    places = _PLACES.get(api.name)
    if places is None or not getattr(request, places[0]):
        return None
    asked_topics, told_topics, asked_partitions, told_partitions = places
    response = api.response()
    kinds = type(response)
    told = getattr(response, told_topics)
    for topic in getattr(request, asked_topics):
        answer = _struct(kinds, api.name, "topic")()
        _copy(topic, answer)
        for partition in getattr(topic, asked_partitions):
            inner = _struct(kinds, api.name, "partition")()
            _copy(partition, inner)
            inner.error_code = code
            getattr(answer, told_partitions).append(inner)
        told.append(answer)
    return response


_STRUCTS = {
    "Produce": ("TopicProduceResponse", "PartitionProduceResponse"),
    "Fetch": ("FetchableTopicResponse", "PartitionData"),
    "ListOffsets": ("ListOffsetsTopicResponse", "ListOffsetsPartitionResponse"),
    "OffsetCommit": ("OffsetCommitResponseTopic", "OffsetCommitResponsePartition"),
    "TxnOffsetCommit": ("TxnOffsetCommitResponseTopic", "TxnOffsetCommitResponsePartition"),
    "OffsetForLeaderEpoch": ("OffsetForLeaderTopicResult", "EpochEndOffset"),
}


def _struct(response: Any, api: str, level: str) -> Any:
    return getattr(response, _STRUCTS[api][0 if level == "topic" else 1])


def _copy(source: Any, target: Any) -> None:
    """What both have by one name: names, ids, indexes."""
    for name in source.__slots__:
        value = getattr(source, name)
        there = name if name in target.__slots__ else _NAMES.get(name, "")
        if there in target.__slots__ and there != "unknown_tags" and isinstance(value, str | int | bytes | None):
            setattr(target, there, value)


def _key(api: str | None) -> int | None:
    from moldau.wire import apis

    if api is None:
        return None
    for key, each in apis().items():
        if each.name.lower() == api.lower():
            return key
    names = ", ".join(sorted(each.name for each in apis().values()))
    raise ValueError(f"there is no API {api!r}; there are {names}")


def _code(error: str | ErrorCode) -> ErrorCode:
    from moldau.wire import ErrorCode

    try:
        code = error if isinstance(error, ErrorCode) else ErrorCode[error.upper()]
    except KeyError:
        raise ValueError(f"there is no error {error!r}; Kafka's names are like NOT_LEADER_OR_FOLLOWER") from None
    if code == ErrorCode.NONE:
        raise ValueError("NONE is no error; to have an answer lost, say disconnect(…, after=True)")
    return code
