"""Connections that do nothing, or never finish what they began, on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from tests.net.conftest import Run
from tests.net.support import World, frame, park, until


def test_an_idle_connection_is_closed_to_the_millisecond(run: Run) -> None:
    async def main() -> None:
        async with World(max_idle_ms=60_000) as world:
            peer = await world.peer()
            await until(lambda: world.handler.connections)
            world.pass_time(30_000)
            await peer.send(frame(b"still here"))
            assert await peer.read_frame() == b"still here"
            world.pass_time(59_999)
            assert not world.handler.connections[0].is_closed
            world.pass_time(1)
            assert await peer.is_ended()
            await until(lambda: world.handler.ends)
            assert world.handler.reasons == ["idle for 60000 ms (connections.max.idle.ms)"]
            assert world.counters.idle_closed == 1

    run(main())


def test_only_the_idle_one_of_many_is_closed(run: Run) -> None:
    async def main() -> None:
        async with World(max_idle_ms=60_000) as world:
            idle, busy = await world.peer(), await world.peer()
            await until(lambda: len(world.handler.connections) == 2)
            for _ in range(12):
                world.pass_time(10_000)
                await busy.send(frame(b"x"))
                assert await busy.read_frame() == b"x"
            assert await idle.is_ended()
            assert world.counters.idle_closed == 1

    run(main())


def test_a_connection_that_waits_for_us_is_not_idle(run: Run) -> None:
    async def main() -> None:
        async with World(park, max_idle_ms=1_000) as world:
            peer = await world.peer()
            await peer.send(frame(b"a"))
            await until(lambda: world.handler.slots)
            world.pass_time(900_000)
            assert not world.handler.connections[0].is_closed
            world.pass_time(500)
            world.handler.slots[0].complete([b"A"])
            assert await peer.read_frame() == b"A"
            world.pass_time(999)
            assert not world.handler.connections[0].is_closed
            world.pass_time(1)
            assert await peer.is_ended()

    run(main())


def test_a_throttled_connection_is_not_idle(run: Run) -> None:
    async def main() -> None:
        async with World(max_idle_ms=1_000) as world:
            peer = await world.peer()
            await until(lambda: world.handler.connections)
            world.handler.connections[0].mute_until(world.clock.now_ms + 5_500)
            world.pass_time(5_000)
            world.pass_time(500)
            await until(lambda: world.counters.mutes)
            world.pass_time(999)
            assert not world.handler.connections[0].is_closed
            world.pass_time(1)
            assert await peer.is_ended()

    run(main())


@pytest.mark.parametrize("size", [1_000, 1_000_000])
def test_slowloris_a_request_that_trickles_in_is_cut_off(run: Run, size: int) -> None:
    async def main() -> None:
        async with World(max_idle_ms=600_000, max_stall_ms=30_000) as world:
            peer = await world.peer()
            await peer.send(frame(b"fine"))
            assert await peer.read_frame() == b"fine"
            slow = frame(b"x" * size)
            sent = 0
            for _ in range(29):
                step = slow[sent : sent + 10]
                await peer.send(step)
                sent += len(step)
                total = 8 + sent
                await until(lambda total=total: world.counters.bytes_in == total)  # type: ignore[misc]  # a bound default
                world.pass_time(1_000)
                assert not world.handler.connections[0].is_closed
            world.pass_time(999)
            assert not world.handler.connections[0].is_closed
            world.pass_time(1)
            assert await peer.is_ended()
            await until(lambda: world.handler.ends)
            assert world.handler.reasons == ["a request was not finished within 30000 ms"]
            assert world.counters.stalled_closed == 1

    run(main())


@pytest.mark.parametrize("size", [1_000, 1_000_000])
def test_half_a_request_and_then_nothing_ends_sooner(run: Run, size: int) -> None:
    async def main() -> None:
        async with World(max_silence_ms=30_000) as world:
            peer = await world.peer()
            await peer.send(frame(b"x" * size)[:12])
            await until(lambda: world.counters.bytes_in == 12)
            world.pass_time(29_999)
            assert not world.handler.connections[0].is_closed
            world.pass_time(1)
            assert await peer.is_ended()
            await until(lambda: world.handler.ends)
            assert world.handler.reasons == ["of a request under way nothing came for 30000 ms"]

    run(main())


def test_a_stream_of_requests_with_always_one_unfinished_is_no_slowloris(run: Run) -> None:
    async def main() -> None:
        async with World(max_stall_ms=10_000) as world:
            peer = await world.peer()
            one = frame(b"0123456789")
            await peer.send(one[:7])
            for _ in range(30):
                await peer.send(one[7:] + one[:7])
                assert await peer.read_frame() == b"0123456789"
                world.pass_time(9_000)
            assert not world.handler.connections[0].is_closed

    run(main())


def test_an_unfinished_request_does_not_age_while_we_do_not_read(run: Run) -> None:
    async def main() -> None:
        async with World(max_stall_ms=1_000) as world:
            peer = await world.peer()
            await peer.send(frame(b"abc")[:5])
            await until(lambda: world.counters.bytes_in == 5)
            world.handler.connections[0].mute_until(world.clock.now_ms + 5_000)
            world.pass_time(5_000)
            await asyncio.sleep(0)
            world.pass_time(900)
            await peer.send(frame(b"abc")[5:])
            assert await peer.read_frame() == b"abc"

    run(main())


def test_a_peer_that_stops_reading_its_response_is_cut_off(run: Run) -> None:
    async def main() -> None:
        async with World(park, send_buffer_bytes=8192, max_stall_ms=10_000) as world:
            peer = await world.peer(receive_buffer_bytes=4096)
            await peer.send(frame(b"a"))
            await until(lambda: world.handler.slots)
            world.handler.slots[0].complete([bytes(2_000_000)])
            for _ in range(5):  # as long as it reads, however slowly, it is served
                world.pass_time(9_000)
                before = world.counters.bytes_out
                while world.counters.bytes_out == before:
                    await peer.read(10_000)
                    await asyncio.sleep(0)
            world.pass_time(9_999)
            assert not world.handler.connections[0].is_closed
            world.pass_time(1)
            await until(lambda: world.handler.ends)
            assert world.handler.reasons == ["a response was not finished within 10000 ms"]

    run(main())


def test_closing_politely_does_not_wait_for_ever_for_a_peer_that_does_not_read(run: Run) -> None:
    async def main() -> None:
        async with World(park, send_buffer_bytes=8192, max_stall_ms=10_000) as world:
            peer = await world.peer(receive_buffer_bytes=4096)
            await peer.send(frame(b"a"))
            await until(lambda: world.handler.slots)
            world.handler.slots[0].complete([bytes(2_000_000)])
            world.handler.connections[0].close("goodbye", flush=True)
            await asyncio.sleep(0)
            assert world.handler.ends == []
            world.pass_time(10_000)
            await until(lambda: world.handler.ends)
            assert world.handler.reasons == ["goodbye"]

    run(main())


def test_a_peer_that_never_hangs_up_does_not_keep_a_closed_socket(run: Run) -> None:
    async def main() -> None:
        async with World() as world:
            await world.peer()
            await until(lambda: world.handler.connections)
            world.handler.connections[0].close("goodbye", flush=True)
            assert len(world.reactor._lingering) == 1
            world.pass_time(1_000)
            assert len(world.reactor._lingering) == 0

    run(main())
