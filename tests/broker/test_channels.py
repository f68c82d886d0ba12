"""Requests to other nodes: negotiated, pipelined, in lanes, and honest about peers that are not there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from moldau.broker.channels import Channels, Disconnected, RequestTimedOut, UnsupportedVersion
from moldau.net import RealNetwork, new_event_loop
from moldau.seams.network import Connection, Network, Payload, ResponseSlot
from moldau.wire import apis, decode_request, encode
from moldau.wire import messages as m
from moldau.wire.fetch import encode_fetch_response
from moldau.wire.headers import decode_request_header, encode_response_header, peek_api

VERSIONS, METADATA, FETCH = 18, 3, 1


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(asyncio.wait_for(main(), 20))


class Peer:
    """Serves ApiVersions, Metadata (its cluster id counts the requests) and Fetch; holds answers back if told to."""

    def __init__(self, metadata_versions: tuple[int, int] = (0, 9), oldest: bool = False) -> None:
        self.connections: list[Connection] = []
        self.asked: list[tuple[int, int]] = []
        self.held: list[Callable[[], None]] = []
        self.holds = False
        self._metadata = metadata_versions
        self._is_oldest = oldest

    def on_connect(self, connection: Connection) -> None:
        self.connections.append(connection)

    def on_disconnect(self, connection: Connection, reason: str) -> None: ...

    def on_frame(self, connection: Connection, frame: memoryview, slot: ResponseSlot) -> None:
        key, version, correlation_id = peek_api(frame)
        api = apis()[key]
        header, position = decode_request_header(frame, flexible=version in api.flexible)
        assert header.client_id == "tester"
        self.asked.append((key, version))
        head = encode_response_header(correlation_id, header_version=api.response_header_version(version))
        if key == VERSIONS:
            served = [
                m.ApiVersionsResponse.ApiVersion(VERSIONS, 0, 0 if self._is_oldest else 4),
                m.ApiVersionsResponse.ApiVersion(METADATA, *self._metadata),
                m.ApiVersionsResponse.ApiVersion(FETCH, 4, 17),
            ]
            response = m.ApiVersionsResponse(api_keys=served, error_code=35 if self._is_oldest else 0)
            slot.complete([head, encode(response, 0 if self._is_oldest else version)])
            return
        if key == FETCH:
            body: Payload = [head, *encode_fetch_response(version, [], session_id=7)]
        else:
            decode_request(api.request, version, frame[position:])
            body = [head, encode(m.MetadataResponse(cluster_id=f"answer {len(self.asked)}"), version)]
        if self.holds:
            self.held.append(lambda: slot.complete(body))
        else:
            slot.complete(body)


class World:
    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    async def __aenter__(self) -> World:
        self.network = RealNetwork()
        listener = await self.network.listen("127.0.0.1", 0, self.peer, name="X")
        self.port = listener.port
        self.channels = Channels(self.network, "tester")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channels.close()
        await self.network.stop(0)

    async def metadata(self, timeout_ms: float = 30_000) -> Any:
        return await self.channels.call("127.0.0.1", self.port, m.MetadataRequest(), timeout_ms=timeout_ms)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_versions_are_asked_once_and_the_newest_common_one_is_used() -> None:
    async def main() -> None:
        async with World(Peer(metadata_versions=(0, 9))) as world:
            answers = await asyncio.gather(*(world.metadata() for _ in range(5)))
            assert [each.cluster_id for each in answers] == [f"answer {number}" for number in range(2, 7)]
            assert world.peer.asked == [(VERSIONS, 3), *[(METADATA, 9)] * 5]
            assert len(world.peer.connections) == 1

    run(main)


def test_a_peer_that_knows_only_the_oldest_api_versions() -> None:
    async def main() -> None:
        async with World(Peer(oldest=True)) as world:
            assert (await world.metadata()).cluster_id == "answer 2"

    run(main)


def test_no_common_version_is_said_at_once() -> None:
    async def main() -> None:
        async with World(Peer(metadata_versions=(90, 99))) as world:
            with pytest.raises(UnsupportedVersion, match="same release"):
                await world.metadata()
            with pytest.raises(UnsupportedVersion, match="not at all"):
                await world.channels.call("127.0.0.1", world.port, m.VoteRequest())

    run(main)


def test_a_fetch_that_waits_holds_up_nobody() -> None:
    async def main() -> None:
        async with World(Peer()) as world:
            world.peer.holds = True
            fetch = asyncio.ensure_future(world.channels.call("127.0.0.1", world.port, m.FetchRequest()))
            await until(lambda: world.peer.held)
            world.peer.holds = False
            await world.metadata()
            assert not fetch.done()
            world.peer.held.pop()()
            assert (await fetch).session_id == 7
            assert len(world.peer.connections) == 2

    run(main)


def test_after_a_timeout_the_next_call_connects_anew() -> None:
    async def main() -> None:
        async with World(Peer()) as world:
            world.peer.holds = True
            with pytest.raises(RequestTimedOut):
                await world.metadata(timeout_ms=50)
            world.peer.holds = False
            await world.metadata()
            assert len(world.peer.connections) == 2

    run(main)


def test_what_is_in_flight_ends_with_the_connection() -> None:
    async def main() -> None:
        async with World(Peer()) as world:
            world.peer.holds = True
            calls = [asyncio.ensure_future(world.metadata()) for _ in range(3)]
            await until(lambda: len(world.peer.held) == 3)
            world.peer.connections[0].close("enough")
            ended = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(each, Disconnected) for each in ended)

    run(main)


def test_nobody_there_and_then_somebody() -> None:
    async def main() -> None:
        network = RealNetwork()
        listener = await network.listen("127.0.0.1", 0, Peer(), name="X")
        port = listener.port
        await listener.close()
        channels = Channels(network, "tester")
        for _ in range(3):
            with pytest.raises(Disconnected, match="cannot connect"):
                await channels.call("127.0.0.1", port, m.MetadataRequest())
        await network.listen("127.0.0.1", port, Peer(), name="X")
        await channels.call("127.0.0.1", port, m.MetadataRequest())
        await channels.close()
        await network.stop(0)

    run(main)


def test_closing_tells_whoever_waits_and_takes_nothing_more() -> None:
    async def main() -> None:
        async with World(Peer()) as world:
            world.peer.holds = True
            call = asyncio.ensure_future(world.metadata())
            await until(lambda: world.peer.held)
            early = asyncio.ensure_future(world.channels.call("127.0.0.1", world.port, m.MetadataRequest(), lane="b"))
            await asyncio.sleep(0)
            await world.channels.close()
            for each in (call, early):
                with pytest.raises(Disconnected):
                    await each
            with pytest.raises(Disconnected):
                await world.metadata()

    run(main)


def test_a_dropped_peer_is_not_waited_for() -> None:
    async def main() -> None:
        async with World(Peer()) as world:
            world.peer.holds = True
            call = asyncio.ensure_future(world.metadata())
            await until(lambda: world.peer.held)
            world.channels.drop("127.0.0.1", world.port + 1)
            await asyncio.sleep(0.01)
            assert not call.done()
            world.channels.drop("127.0.0.1", world.port)
            with pytest.raises(Disconnected):
                await call
            world.peer.holds = False
            await world.metadata()

    run(main)


def test_a_cancelled_call_leaves_the_connection_to_the_others() -> None:
    async def main() -> None:
        async with World(Peer()) as world:
            world.peer.holds = True
            first, second = (asyncio.ensure_future(world.metadata()) for _ in range(2))
            await until(lambda: len(world.peer.held) == 2)
            first.cancel()
            for each in world.peer.held:
                each()
            assert (await second).cluster_id == "answer 3"
            assert first.cancelled()

    run(main)


def test_a_caller_cancelled_when_the_attempt_ends_is_cancelled() -> None:
    """Whoever stops a task waits for its end: a cancellation that turns into an error is waited for for ever."""

    class NobodyThere:
        caller: asyncio.Task[Any]

        def __init__(self) -> None:
            self.is_refused = asyncio.Event()

        async def connect(self, *_: object, **__: object) -> None:
            await self.is_refused.wait()
            self.caller.cancel()
            raise Disconnected("nobody there")

    async def main() -> None:
        network = NobodyThere()
        channels = Channels(cast("Network", network), "test")
        network.caller = caller = asyncio.get_running_loop().create_task(channels.call("h", 1, m.ApiVersionsRequest()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        network.is_refused.set()
        await asyncio.wait([caller])
        assert caller.cancelled()
        await channels.close()

    run(main)
