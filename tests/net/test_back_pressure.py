"""A peer that sends too much, reads too little, or must wait: reading stops, nothing is lost, nothing piles up."""

from __future__ import annotations

import asyncio
import struct

import pytest

from moldau.seams.network import Connection, ResponseSlot
from tests.net.conftest import Run
from tests.net.support import Peer, World, frame, park, until


async def several_turns() -> None:
    """Let the loop look at every socket a few times, so that what could happen has happened."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_at_most_so_many_requests_are_in_flight(run: Run) -> None:
    async def main() -> None:
        async with World(park, max_in_flight=4) as world:
            peer = await world.peer()
            payloads = [b"%d" % number for number in range(20)]
            await peer.send(b"".join(map(frame, payloads)))
            await until(lambda: len(world.handler.slots) == 4)
            for answered in range(20):
                await several_turns()
                assert 1 <= len(world.handler.slots) - answered <= 4
                world.handler.slots[answered].complete([payloads[answered]])
            assert world.handler.frames == payloads
            assert await peer.read_frames(20) == payloads
            assert world.counters.mutes > 0

    run(main())


def test_a_peer_that_does_not_read_is_not_read_from(run: Run) -> None:
    """A hundred requests of a few bytes whose answers are 100 kB each: most are not even taken."""
    answer = bytes(range(256)) * 400

    def answer_large(_: Connection, payload: memoryview, slot: ResponseSlot) -> None:
        slot.complete([bytes(payload), answer])

    async def main() -> None:
        async with World(answer_large, send_buffer_bytes=8192) as world:
            peer = await world.peer(receive_buffer_bytes=4096)
            await peer.send(b"".join(frame(b"%02d" % number) for number in range(100)))
            await until(lambda: world.handler.frames)
            await several_turns()
            (connection,) = world.reactor.connections.values()
            assert len(world.handler.frames) < 5
            assert connection._writer.queued_bytes < 3 * len(answer)
            for number in range(100):
                assert await peer.read_frame() == b"%02d" % number + answer
            assert len(world.handler.frames) == 100
            await several_turns()
            assert connection._writer.queued_bytes == 0

    run(main())


def test_other_connections_are_served_while_one_does_not_read(run: Run) -> None:
    def answer_large(_: Connection, payload: memoryview, slot: ResponseSlot) -> None:
        slot.complete([bytes(payload) * 1000])

    async def main() -> None:
        async with World(answer_large, send_buffer_bytes=8192) as world:
            stuck = await world.peer(receive_buffer_bytes=4096)
            await stuck.send(frame(b"x" * 1000) * 50)
            await until(lambda: world.handler.frames)
            peer = await world.peer()
            await peer.send(frame(b"y"))
            assert await peer.read_frame() == b"y" * 1000

    run(main())


def test_a_throttled_connection_is_answered_but_not_read(run: Run) -> None:
    def throttle(connection: Connection, payload: memoryview, slot: ResponseSlot) -> None:
        slot.complete([bytes(payload)])
        connection.mute_until(world.clock.now_ms + 500)
        connection.mute_until(world.clock.now_ms + 200)  # the later one counts

    world: World

    async def main() -> None:
        nonlocal world
        async with World(throttle) as world:
            peer = await world.peer()
            await peer.send(frame(b"a") + frame(b"b"))
            assert await peer.read_frame() == b"a"
            await peer.send(frame(b"c"))
            world.pass_time(499)
            await several_turns()
            assert world.handler.frames == [b"a"]
            world.pass_time(1)
            assert await peer.read_frame() == b"b"
            world.pass_time(500)
            assert await peer.read_frame() == b"c"

    run(main())


def test_a_longer_throttle_replaces_a_shorter_one(run: Run) -> None:
    async def main() -> None:
        async with World() as world:
            peer = await world.peer()
            await until(lambda: world.handler.connections)
            (connection,) = world.handler.connections
            connection.mute_until(world.clock.now_ms + 100)
            connection.mute_until(world.clock.now_ms + 300)
            await peer.send(frame(b"a"))
            world.pass_time(200)
            await several_turns()
            assert world.handler.frames == []
            world.pass_time(100)
            assert await peer.read_frame() == b"a"

    run(main())


def test_a_paused_connection_keeps_its_requests_in_order(run: Run) -> None:
    def pause_on_p(connection: Connection, payload: memoryview, slot: ResponseSlot) -> None:
        if bytes(payload) == b"p":
            connection.pause_dispatch()
        else:
            slot.complete([bytes(payload)])

    async def main() -> None:
        async with World(pause_on_p) as world:
            peer = await world.peer()
            # What follows the pause: whole frames, and a part of one too large for the shared buffer.
            large = frame(b"L" * 300_000)
            await peer.send(frame(b"a") + frame(b"p") + frame(b"b") + frame(b"c") + large[:1000])
            assert await peer.read_frame() == b"a"
            await several_turns()
            await peer.send(large[1000:])
            await several_turns()
            assert world.handler.frames == [b"a", b"p"]
            world.handler.slots[1].complete([b"P"])
            assert await peer.read_frame() == b"P"
            await several_turns()
            assert world.handler.frames == [b"a", b"p"]
            world.handler.connections[0].resume_dispatch()
            assert len(world.handler.frames) == 2  # from the loop, not from within the call
            assert await peer.read_frames(3) == [b"b", b"c", b"L" * 300_000]

    run(main())


def test_a_connection_that_was_paused_twice_waits_for_both(run: Run) -> None:
    """A request that waits for one thing and then for another: the end of the first wait is not that of the second."""

    def pause_on_p(connection: Connection, payload: memoryview, slot: ResponseSlot) -> None:
        slot.complete([bytes(payload)])
        if bytes(payload) == b"p":
            connection.pause_dispatch()

    async def main() -> None:
        async with World(pause_on_p) as world:
            peer = await world.peer()
            await peer.send(frame(b"p") + frame(b"a"))
            assert await peer.read_frame() == b"p"
            (connection,) = world.handler.connections
            connection.pause_dispatch()
            connection.resume_dispatch()
            await several_turns()
            assert world.handler.frames == [b"p"]
            connection.resume_dispatch()
            assert await peer.read_frame() == b"a"
            with pytest.raises(RuntimeError, match="nobody had paused"):
                connection.resume_dispatch()

    run(main())


def test_a_readable_socket_does_not_overtake_the_frames_kept_back(run: Run) -> None:
    """With the shared buffer full of whole frames, there is no room to read: that must not look like an end."""

    def pause_on_p(connection: Connection, payload: memoryview, slot: ResponseSlot) -> None:
        slot.complete([bytes(payload)])
        if bytes(payload) == b"p":
            connection.pause_dispatch()

    async def main() -> None:
        async with World(pause_on_p) as world:
            peer = await world.peer()
            await peer.send(frame(b"p") + frame(b"xyzw") * 40_000)
            await until(lambda: world.handler.frames)
            (connection,) = world.reactor.connections.values()
            connection.resume_dispatch()
            connection._on_readable()
            assert not connection.is_closed
            assert world.handler.frames == [b"p"]
            assert (await peer.read_frames(40_001))[-1] == b"xyzw"

    run(main())


def test_pausing_and_resuming_within_one_request_changes_nothing(run: Run) -> None:
    def pause_and_resume(connection: Connection, payload: memoryview, slot: ResponseSlot) -> None:
        connection.pause_dispatch()
        slot.complete([bytes(payload)])
        connection.resume_dispatch()

    async def main() -> None:
        async with World(pause_and_resume) as world:
            peer = await world.peer()
            payloads = [b"%d" % number for number in range(100)]
            await peer.send(b"".join(map(frame, payloads)))
            assert await peer.read_frames(100) == payloads

    run(main())


def test_large_frames_wait_for_the_memory_budget(run: Run) -> None:
    async def main() -> None:
        async with World(queued_max_bytes=150_000) as world:
            first, second, small = [await world.peer() for _ in range(3)]
            large = frame(b"x" * 200_000)
            await first.send(large[:150_000])
            await until(lambda: world.reactor.memory.reserved_bytes > 150_000)
            held = world.reactor.memory.reserved_bytes
            await second.send(large)
            await small.send(frame(b"small ones need no budget"))
            assert await small.read_frame() == b"small ones need no budget"
            await several_turns()
            assert len(world.handler.frames) == 1
            assert world.reactor.memory.reserved_bytes == held
            await first.send(large[150_000:])
            assert await first.read_frame() == large[4:]
            assert await second.read_frame() == large[4:]
            assert world.reactor.memory.reserved_bytes == 0

    run(main())


def test_large_frames_wait_for_what_requests_keep(run: Run) -> None:
    async def main() -> None:
        async with World(queued_max_bytes=1_000_000) as world:
            keeper, first, second = [await world.peer() for _ in range(3)]
            await keeper.send(frame(b"kept"))
            assert await keeper.read_frame() == b"kept"
            world.handler.connections[0].hold_memory(1_000_000)
            large = frame(b"x" * 200_000)
            await first.send(large[:150_000])  # one may exceed the budget
            await until(lambda: world.reactor.memory.reserved_bytes > 1_000_000)
            await second.send(large)
            await several_turns()
            assert len(world.handler.frames) == 1
            world.handler.connections[0].hold_memory(-1_000_000)
            assert await second.read_frame() == large[4:]
            await first.send(large[150_000:])
            assert await first.read_frame() == large[4:]
            assert world.reactor.memory.reserved_bytes == 0

    run(main())


def test_the_budget_of_a_closed_connection_goes_to_those_who_wait(run: Run) -> None:
    async def main() -> None:
        async with World(queued_max_bytes=100) as world:
            first, *others = [await world.peer() for _ in range(4)]
            large = frame(b"x" * 200_000)
            await first.send(large[:150_000])
            await until(lambda: world.reactor.memory.reserved_bytes)
            for other in others:
                await other.send(large)
            await several_turns()
            assert world.handler.frames == []
            first.vanish()
            for other in others:
                assert await other.read_frame() == large[4:]

    run(main())


def test_half_received_frames_have_a_limit_together_and_one_of_them_is_always_finished(run: Run) -> None:
    """Ten peers with a frame each, in two parts: they hold the budget and one frame, not ten; and all are served."""
    limit = 1_000_000
    large = frame(b"x" * 900_000)

    async def in_two_parts(peer: Peer) -> None:
        await peer.send(large[:-100])
        await several_turns()
        await peer.send(large[-100:])
        assert await peer.read_frame() == large[4:]

    async def main() -> None:
        async with World(queued_max_bytes=limit) as world:
            peers = [await world.peer() for _ in range(10)]
            served = asyncio.gather(*map(in_two_parts, peers))
            while not served.done():
                await asyncio.sleep(0)
                assert world.reactor.memory.reserved_bytes <= limit + 1024 * 1024
            await served
            assert world.reactor.memory.reserved_bytes == 0

    run(main())


def test_who_holds_memory_that_others_need_must_go_on(run: Run) -> None:
    async def main() -> None:
        async with World(queued_max_bytes=300_000) as world:
            holder, other = await world.peer(), await world.peer()
            large = frame(b"x" * 1_000_000)
            await holder.send(large[:900_000])
            await until(lambda: world.counters.bytes_in == 900_000)
            for _ in range(20):  # nobody needs it: it may take its time
                world.pass_time(1_000)
            assert not world.handler.ends
            waiting = asyncio.ensure_future(other.send(large))
            await until(lambda: world.reactor.memory.has_waiting)
            for number in range(20):
                if world.handler.ends:
                    break
                await holder.send(large[900_000 + number : 900_001 + number])
                world.pass_time(1_000)
                await several_turns()
            assert "held memory that others needed" in world.handler.reasons[0]
            await waiting
            assert await other.read_frame() == large[4:]

    run(main())


def test_a_connection_with_many_requests_has_its_turn_and_no_more(run: Run) -> None:
    """Ten thousand requests at once, of each of three peers: somebody with one request waits for a turn of theirs."""

    async def main() -> None:
        async with World() as world:
            greedy = [await world.peer() for _ in range(3)]
            modest = await world.peer()
            await until(lambda: len(world.handler.connections) == 4)
            for peer in greedy:
                await peer.send(frame(b"g") * 10_000)
            before = len(world.handler.frames)
            await modest.send(frame(b"m"))
            await until(lambda: b"m" in world.handler.frames)
            assert world.handler.frames.index(b"m") - before < 1_000
            for peer in greedy:
                assert await peer.read_frames(10_000) == [b"g"] * 10_000

    run(main())


def test_a_bad_length_behind_a_pause_is_found_on_resuming(run: Run) -> None:
    def pause(connection: Connection, payload: memoryview, slot: ResponseSlot) -> None:
        connection.pause_dispatch()
        slot.complete([bytes(payload)])

    async def main() -> None:
        async with World(pause) as world:
            peer = await world.peer()
            await peer.send(frame(b"a") + struct.pack(">i", -5))
            assert await peer.read_frame() == b"a"
            world.handler.connections[0].resume_dispatch()
            assert await peer.is_ended()
            assert world.counters.bad_frames == 1

    run(main())
