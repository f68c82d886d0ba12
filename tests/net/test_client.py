"""The client's end: pipelining, timeouts, and telling the caller what happened."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket

import pytest

from moldau.net import RealNetwork, client
from moldau.seams.network import ClientConnection, Connection, Disconnected, Network, RequestTimedOut, ResponseSlot
from tests.net.conftest import Run
from tests.net.support import Recorder, World, echo, frame, park, until


async def connect(world: World) -> client.FrameClient:
    return await client.connect(world.reactor, "127.0.0.1", world.listener.port)


def test_responses_come_back_in_order_and_belong_to_the_caller(run: Run) -> None:
    source = random.Random(5)
    payloads = [source.randbytes(source.choice([0, 10, 100_000, 400_000])) for _ in range(30)]

    async def main() -> None:
        async with World(max_in_flight=2) as world:
            peer = await connect(world)
            futures = [peer.request([payload[:5], memoryview(payload)[5:]]) for payload in payloads]
            assert peer.in_flight == 30
            answers = [await future for future in futures]
            # Read only now: nothing that came later may have overwritten them. And they can be written to.
            assert [bytes(answer) for answer in answers] == payloads
            assert not any(answer.readonly for answer in answers)
            assert peer.in_flight == 0
            await peer.close()
            await peer.close()

    run(main())


def test_a_request_without_response(run: Run) -> None:
    def answer_some(connection: Connection, payload: memoryview, slot: ResponseSlot) -> None:
        if bytes(payload) == b"fire and forget":
            slot.complete_nothing()
        else:
            echo(connection, payload, slot)

    async def main() -> None:
        async with World(answer_some) as world:
            peer = await connect(world)
            peer.send([b"fire and forget"])
            assert bytes(await peer.request([b"a"])) == b"a"
            assert world.handler.frames == [b"fire and forget", b"a"]
            await peer.close()

    run(main())


def test_a_timeout_ends_the_connection_and_all_that_is_in_flight(run: Run) -> None:
    async def main() -> None:
        async with World(park) as world:
            peer = await connect(world)
            quick = peer.request([b"0"], timeout_ms=500)
            slow, behind = peer.request([b"a"], timeout_ms=1000), peer.request([b"b"], timeout_ms=3000)
            await until(lambda: len(world.handler.slots) == 3)
            world.handler.slots[0].complete([b"0"])
            assert bytes(await quick) == b"0"
            world.pass_time(999)
            assert not slow.done()
            world.pass_time(1)
            with pytest.raises(RequestTimedOut, match="within 1000 ms"):
                await slow
            with pytest.raises(Disconnected, match="no response from"):
                await behind
            assert peer.is_closed
            with pytest.raises(Disconnected, match="is gone"):
                peer.request([b"c"])
            with pytest.raises(Disconnected, match="is gone"):
                peer.send([b"c"])
            await until(lambda: world.handler.ends)

    run(main())


def test_the_server_closing_fails_what_is_in_flight(run: Run) -> None:
    async def main() -> None:
        async with World(park) as world:
            peer = await connect(world)
            future = peer.request([b"a"], timeout_ms=1000)
            await until(lambda: world.handler.slots)
            world.handler.connections[0].close("no")
            with pytest.raises(Disconnected, match=f"127.0.0.1:{world.listener.port} is gone: the peer closed it"):
                await future
            assert len(world.wheel) == 0

    run(main())


def test_cancelling_a_wait_does_not_shift_the_responses_behind_it(run: Run) -> None:
    async def main() -> None:
        async with World(park) as world:
            peer = await connect(world)
            first, second = peer.request([b"a"]), peer.request([b"b"])
            await until(lambda: len(world.handler.slots) == 2)
            first.cancel()
            world.handler.slots[0].complete([b"A"])
            world.handler.slots[1].complete([b"B"])
            assert bytes(await second) == b"B"
            await peer.close()

    run(main())


def test_nobody_there(run: Run) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]

    async def main() -> None:
        async with World() as world:
            with pytest.raises(Disconnected, match=f"cannot connect to 127.0.0.1:{port}"):
                await client.connect(world.reactor, "127.0.0.1", port)

    run(main())


class Scripted:
    """A server that sends exactly these bytes to whoever connects."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> int:
        async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.append(writer)
            writer.write(self._data)

        self._server = await asyncio.start_server(talk, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        for writer in self._writers:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@pytest.mark.parametrize("data", [frame(b"unasked"), b"\xff\xff\xff\xff"])
def test_a_server_that_makes_no_sense_is_disconnected(run: Run, data: bytes) -> None:
    async def main() -> None:
        async with Scripted(data) as port, World() as world:
            peer = await client.connect(world.reactor, "127.0.0.1", port)
            await until(lambda: peer.is_closed)

    run(main())


def test_too_much_in_flight_is_refused(run: Run) -> None:
    async def main() -> None:
        async with World(park) as world:
            peer = await connect(world)
            futures = [peer.request([b"a"]) for _ in range(1000)]
            with pytest.raises(RuntimeError, match="await responses"):
                peer.request([b"a"])
            await peer.close()
            for future in futures:
                with pytest.raises(Disconnected):
                    await future

    run(main())


def test_the_real_network_serves_connects_and_stops(run: Run) -> None:
    async def main() -> None:
        real = RealNetwork()
        network: Network = real
        handler = Recorder()
        listener = await network.listen("127.0.0.1", 0, handler, name="PLAINTEXT")
        assert (listener.name, listener.host) == ("PLAINTEXT", "127.0.0.1")
        peer: ClientConnection = await network.connect("127.0.0.1", listener.port)
        assert bytes(await peer.request([b"a"], timeout_ms=30_000)) == b"a"
        handler.act = park
        never = peer.request([b"b"], timeout_ms=20)  # on the loop's own time
        with pytest.raises(RequestTimedOut):
            await never
        other = await network.connect("127.0.0.1", listener.port)
        await listener.close()
        await network.stop(1000)
        await until(lambda: len(handler.ends) == 2)
        assert other.is_closed
        assert len(real.wheel) == 0

    run(main())


def test_limits_on_requests_are_not_limits_on_what_this_node_asked_for(run: Run) -> None:
    """`queued.max.request.bytes` and `socket.request.max.bytes` guard against clients. A response this node asked for
    (a follower's fetch) must be read while clients have used all of that up, and however long it is."""
    answer = random.Random(7).randbytes(700_000)

    async def main() -> None:
        async with World(park, queued_max_bytes=200_000, max_frame_bytes=500_000) as world:
            greedy = await world.peer()
            await greedy.send(frame(bytes(300_000))[:200_000])  # a large request under way holds the whole budget
            await until(lambda: world.reactor.memory.reserved_bytes > 200_000)
            peer = await connect(world)
            asked = peer.request([b"a"])
            await until(lambda: len(world.handler.slots) == 1)
            world.handler.slots[0].complete([answer])
            assert bytes(await asked) == answer
            assert 200_000 < world.reactor.memory.reserved_bytes < 2 * 300_004  # the greedy one's, and no more
            await peer.close()

    run(main())
