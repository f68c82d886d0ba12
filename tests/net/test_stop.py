"""Stopping: what is in flight is answered, nothing new is taken, and it ends in time."""

from __future__ import annotations

import asyncio

import pytest

from tests.net.conftest import Run
from tests.net.support import Peer, World, frame, park, until


def test_stop_answers_what_is_in_flight_and_takes_nothing_new(run: Run) -> None:
    async def main() -> None:
        async with World(park) as world:
            idle, waiting = await world.peer(), await world.peer()
            await waiting.send(frame(b"a") + frame(b"b"))
            await until(lambda: len(world.handler.slots) == 2)
            stopped = asyncio.ensure_future(world.reactor.stop(30_000))
            assert await idle.is_ended()
            idle.close()
            with pytest.raises(ConnectionRefusedError):
                await Peer.connect(world.listener.port, "127.0.0.1")
            await waiting.send(frame(b"c"))
            world.handler.slots[1].complete([b"B"])
            await asyncio.sleep(0)
            assert not stopped.done()
            world.handler.connections[1].pause_dispatch()
            world.handler.connections[1].resume_dispatch()  # does not undo the stop
            world.handler.slots[0].complete([b"A"])
            assert await waiting.read_frames(2) == [b"A", b"B"]
            assert await waiting.is_ended()
            waiting.close()
            await stopped
            assert world.handler.frames == [b"a", b"b"]
            assert world.handler.reasons == ["the server stops"] * 2

    run(main())


def test_stop_waits_for_the_last_request_even_if_it_has_no_response(run: Run) -> None:
    async def main() -> None:
        async with World(park) as world:
            peer = await world.peer()
            await peer.send(frame(b"a"))
            await until(lambda: world.handler.slots)
            stopped = asyncio.ensure_future(world.reactor.stop(30_000))
            await asyncio.sleep(0)
            world.handler.slots[0].complete_nothing()
            assert await peer.is_ended()
            peer.close()
            await stopped

    run(main())


def test_stop_does_not_wait_longer_than_it_is_told(run: Run) -> None:
    async def main() -> None:
        async with World(park, send_buffer_bytes=8192) as world:
            silent, stuck = await world.peer(), await world.peer(receive_buffer_bytes=4096)
            await silent.send(frame(b"a"))
            await stuck.send(frame(b"b"))
            await until(lambda: len(world.handler.slots) == 2)
            world.handler.slots[world.handler.frames.index(b"b")].complete([bytes(2_000_000)])
            stopped = asyncio.ensure_future(world.reactor.stop(5_000))
            await asyncio.sleep(0)
            world.pass_time(4_999)
            await asyncio.sleep(0)
            assert not stopped.done()
            world.pass_time(1)
            await stopped
            assert world.handler.reasons == ["the server stops"] * 2

    run(main())


def test_stop_with_nothing_to_do_is_at_once(run: Run) -> None:
    async def main() -> None:
        async with World() as world:
            await world.reactor.stop(5_000)
            assert len(world.wheel) == 0

    run(main())


def test_a_closed_listener_leaves_its_connections(run: Run) -> None:
    async def main() -> None:
        async with World() as world:
            peer = await world.peer()
            await until(lambda: world.handler.connections)
            await world.listener.close()
            await world.listener.close()
            await peer.send(frame(b"a"))
            assert await peer.read_frame() == b"a"
            with pytest.raises(ConnectionRefusedError):
                await Peer.connect(world.listener.port, "127.0.0.1")

    run(main())
