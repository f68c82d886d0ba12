"""Requests in, responses out: order, back-pressure, and every way a connection ends."""

from __future__ import annotations

import asyncio
import logging
import random
import struct

import pytest

from moldau.seams.network import Connection, ResponseSlot
from tests.net.conftest import Run
from tests.net.support import World, echo, frame, park, until


def test_a_request_is_answered(run: Run) -> None:
    async def main() -> None:
        async with World() as world:
            peer = await world.peer()
            await peer.send(frame(b"hello"))
            assert await peer.read_frame() == b"hello"
            await peer.send(frame(b""))
            assert await peer.read_frame() == b""
            (connection,) = world.handler.connections
            assert connection.listener_name == "TEST"
            assert connection.local_port == world.listener.port
            assert (connection.peer_host, connection.peer_port) == peer.sock.getsockname()
            assert not connection.is_tls
            assert connection.tls_peer_name is None
            assert connection.context is None
            assert not connection.is_closed
            peer.close()
            await until(lambda: world.handler.ends)
            assert world.handler.reasons == ["the peer closed the connection"]
            counters = world.counters
            assert (counters.frames_in, counters.frames_out) == (2, 2)
            assert (counters.bytes_in, counters.bytes_out) == (13, 13)

    run(main())


def test_responses_leave_in_request_order_however_they_are_completed(run: Run) -> None:
    async def main() -> None:
        async with World(park) as world:
            peer = await world.peer()
            payloads = [b"%d" % number for number in range(50)]
            await peer.send(b"".join(map(frame, payloads)))
            await until(lambda: len(world.handler.slots) == 50)
            order = list(range(50))
            random.Random(7).shuffle(order)
            for index in order:
                world.handler.slots[index].complete([payloads[index], memoryview(b"!"), bytearray(b"?")])
            assert await peer.read_frames(50) == [payload + b"!?" for payload in payloads]

    run(main())


def test_a_request_without_response_lets_those_behind_it_leave(run: Run) -> None:
    async def main() -> None:
        async with World(park) as world:
            peer = await world.peer()
            await peer.send(frame(b"a") + frame(b"b") + frame(b"c"))
            await until(lambda: len(world.handler.slots) == 3)
            a, b, c = world.handler.slots
            c.complete([b"C"])
            b.complete_nothing()
            a.complete_nothing()
            assert await peer.read_frame() == b"C"

    run(main())


def test_closing_a_slot_waits_for_the_responses_before_it(run: Run) -> None:
    async def main() -> None:
        async with World(park) as world:
            peer = await world.peer()
            await peer.send(frame(b"a") + frame(b"b") + frame(b"c"))
            await until(lambda: len(world.handler.slots) == 3)
            a, b, c = world.handler.slots
            states = []
            b.close("no such thing")
            states.append(world.handler.connections[0].is_closed)
            a.complete([b"A"])
            states.append(world.handler.connections[0].is_closed)
            assert states == [False, True]
            c.complete([b"C"])  # too late, and harmless
            assert await peer.read_frame() == b"A"
            assert await peer.is_ended()
            await until(lambda: world.handler.ends)
            assert world.handler.reasons == ["no such thing"]

    run(main())


def test_a_slot_is_completed_once(run: Run) -> None:
    async def main() -> None:
        async with World(park) as world:
            peer = await world.peer()
            await peer.send(frame(b"a"))
            await until(lambda: world.handler.slots)
            slot = world.handler.slots[0]
            slot.complete([b"A"])
            with pytest.raises(RuntimeError, match="completed twice"):
                slot.complete([b"B"])
            with pytest.raises(RuntimeError, match="completed twice"):
                slot.complete_nothing()
            with pytest.raises(RuntimeError, match="completed twice"):
                slot.close("x")
            assert await peer.read_frame() == b"A"

    run(main())


def test_a_slot_may_be_completed_after_its_connection_closed(run: Run) -> None:
    async def main() -> None:
        async with World(park) as world:
            peer = await world.peer()
            await peer.send(frame(b"a") + frame(b"b") + frame(b"c"))
            await until(lambda: len(world.handler.slots) == 3)
            peer.close()
            await until(lambda: world.handler.ends)
            a, b, c = world.handler.slots
            c.complete([b"C"])
            a.complete_nothing()
            b.close("late")
            assert len(world.handler.ends) == 1

    run(main())


@pytest.mark.parametrize("seed", range(4))
def test_frames_arrive_whole_however_the_stream_is_cut(run: Run, seed: int) -> None:
    source = random.Random(seed)
    # Around the size of the shared buffer (128 KiB), far beyond it, and tiny ones between.
    sizes = [source.choice([0, 1, 3, 100, 5000, 131_067, 131_068, 131_069, 400_000, 1_300_000]) for _ in range(25)]
    payloads = [source.randbytes(size) for size in sizes]
    stream = b"".join(map(frame, payloads))

    async def main() -> None:
        async with World(max_in_flight=3) as world:
            peer = await world.peer()

            async def send_all() -> None:
                position = 0
                while position < len(stream):
                    step = source.choice([1, 2, 3, 4, 5, 1000, 70_000, 200_000])
                    await peer.send(stream[position : position + step])
                    position += step
                    if source.random() < 0.3:
                        await asyncio.sleep(0)

            sender = asyncio.ensure_future(send_all())
            assert await peer.read_frames(len(payloads)) == payloads
            await sender
            assert world.handler.frames == payloads
            assert world.counters.bytes_in == world.counters.bytes_out == len(stream)

    run(main())


def test_an_announced_frame_costs_memory_only_as_it_arrives(run: Run) -> None:
    async def main() -> None:
        async with World() as world:
            peer = await world.peer()
            await peer.send(struct.pack(">i", 100_000_000) + b"x" * 1000)
            await until(lambda: world.counters.bytes_in == 1004)
            (connection,) = world.reactor.connections.values()
            assert connection._reader.large_frame_bytes <= 8 * 1024
            await peer.send(b"y" * 1_000_000)
            await until(lambda: world.counters.bytes_in == 1_001_004)
            assert connection._reader.large_frame_bytes <= 2 * 1024 * 1024

    run(main())


@pytest.mark.parametrize("length", [-1, -(2**31), 1001, 2**31 - 1, 0x16030100])
def test_an_impossible_length_closes_the_connection(run: Run, length: int) -> None:
    async def main() -> None:
        async with World(max_frame_bytes=1000) as world:
            peer = await world.peer()
            await peer.send(frame(b"fine") + struct.pack(">i", length) + b"whatever")
            assert await peer.read_frame() == b"fine"
            assert await peer.is_ended()
            await until(lambda: world.handler.ends)
            assert f"a frame of {length} bytes was announced" in world.handler.reasons[0]
            assert "socket.request.max.bytes" in world.handler.reasons[0]
            assert world.handler.frames == [b"fine"]
            assert world.counters.bad_frames == 1

    run(main())


def test_the_largest_frame_allowed_is_taken(run: Run) -> None:
    async def main() -> None:
        async with World(max_frame_bytes=200_000) as world:
            peer = await world.peer()
            await peer.send(frame(b"z" * 200_000))
            assert await peer.read_frame() == b"z" * 200_000

    run(main())


@pytest.mark.parametrize("sent", [b"\x00", frame(b"hello")[:-1], frame(bytes(500_000))[:300_000]])
def test_a_truncated_frame_is_never_dispatched(run: Run, sent: bytes) -> None:
    async def main() -> None:
        async with World() as world:
            peer = await world.peer()
            await peer.send(sent)
            await until(lambda: world.counters.bytes_in == len(sent))
            peer.close()
            await until(lambda: world.handler.ends)
            assert world.handler.frames == []

    run(main())


def test_a_reset_is_an_end_like_others(run: Run) -> None:
    async def main() -> None:
        async with World(park) as world:
            peer = await world.peer()
            await peer.send(frame(b"a"))
            await until(lambda: world.handler.slots)
            peer.vanish()
            await until(lambda: world.handler.ends)
            assert "reset" in world.handler.reasons[0].lower()

    run(main())


def test_half_closed_by_the_peer_still_gets_what_is_ready(run: Run) -> None:
    async def main() -> None:
        async with World() as world:
            peer = await world.peer()
            await peer.send(frame(b"last words"))
            peer.sock.shutdown(1)
            assert await peer.read_frame() == b"last words"
            assert await peer.is_ended()

    run(main())


def test_a_failing_handler_closes_only_its_connection(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    def fail_on_bad(connection: Connection, payload: memoryview, slot: ResponseSlot) -> None:
        if bytes(payload) == b"bad":
            raise ValueError("no")
        echo(connection, payload, slot)

    async def main() -> None:
        async with World(fail_on_bad) as world:
            good, bad = await world.peer(), await world.peer()
            with caplog.at_level(logging.CRITICAL):
                await bad.send(frame(b"first") + frame(b"bad") + struct.pack(">i", 10**6) + b"part")
                assert await bad.read_frame() == b"first"
                assert await bad.is_ended()
                await until(lambda: world.handler.ends)
            assert world.handler.reasons == ["on_frame failed"]
            assert world.counters.handler_errors == 1
            await good.send(frame(b"still here"))
            assert await good.read_frame() == b"still here"

    run(main())


def test_a_failing_on_connect_closes_the_connection(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    def fail(connection: Connection) -> None:
        world.handler.connections.append(connection)
        raise ValueError("not you")

    world: World

    async def main() -> None:
        nonlocal world
        async with World() as world:
            world.handler.on_connect = fail  # type: ignore[method-assign]  # this one test wants another behaviour
            with caplog.at_level(logging.CRITICAL):
                peer = await world.peer()
                assert await peer.is_ended()
                await until(lambda: world.handler.ends)
            assert world.handler.reasons == ["on_connect failed"]

    run(main())


def test_close_with_flush_delivers_the_last_response_despite_unread_requests(run: Run) -> None:
    """Closing a socket that has unread input sends a reset, which may destroy data on its way to the peer."""

    def answer_and_close(connection: Connection, _: memoryview, slot: ResponseSlot) -> None:
        slot.complete([b"x" * 300_000])
        connection.close("authentication failed", flush=True)

    async def main() -> None:
        async with World(answer_and_close) as world:
            peer = await world.peer(receive_buffer_bytes=4096)
            await peer.send(frame(b"a") + frame(b"b" * 100_000) * 4)
            await until(lambda: world.handler.frames)
            await peer.send(frame(b"c") * 1000)
            assert await peer.read_frame() == b"x" * 300_000
            assert await peer.is_ended()
            await until(lambda: world.handler.ends)
            assert world.handler.reasons == ["authentication failed"]
            assert world.handler.frames == [b"a"]

    run(main())


def test_close_without_flush_is_at_once_and_tells_the_handler_from_the_loop(run: Run) -> None:
    def close(connection: Connection, _: memoryview, slot: ResponseSlot) -> None:
        connection.close("enough")
        connection.close("again")
        assert connection.is_closed
        assert world.handler.ends == []
        slot.complete([b"never sent"])

    world: World

    async def main() -> None:
        nonlocal world
        async with World(close) as world:
            peer = await world.peer()
            # What follows looks like the start of a frame that needs memory of its own: it must not be held for ever.
            await peer.send(frame(b"a") + struct.pack(">i", 10**6) + b"part")
            assert await peer.is_ended()
            await until(lambda: world.handler.ends)
            assert world.handler.reasons == ["enough"]
            assert world.handler.frames == [b"a"]

    run(main())
