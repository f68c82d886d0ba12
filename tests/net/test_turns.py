"""Many connections at once: a turn of the loop stays short, whoever comes, asks or leaves. Time passes by frames."""

from __future__ import annotations

import asyncio
import mmap
import sys
from collections.abc import Callable
from itertools import groupby

import pytest

from moldau.net.buffers import ReadMemory
from moldau.seams.network import Connection, ResponseSlot
from tests.net.conftest import Run
from tests.net.support import Peer, World, frame, until

CROWD = 200


class Turns:
    """How much of something happens between two turns of the loop."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self._seen = count()
        self.most = 0
        self._handle = asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        now = self._count()
        self.most = max(self.most, now - self._seen)
        self._seen = now
        self._handle = asyncio.get_running_loop().call_soon(self._tick)

    def stop(self) -> None:
        self._handle.cancel()


class SlowWorld(World):
    """Every frame takes a while."""

    def __init__(self, frame_ms: float) -> None:
        super().__init__(self._act)
        self._frame_ms = frame_ms

    def _act(self, _: Connection, payload: memoryview, slot: ResponseSlot) -> None:
        self.clock.now_ms += self._frame_ms
        slot.complete([bytes(payload)])

    async def __aenter__(self) -> SlowWorld:
        return self

    async def crowd(self, count: int) -> list[Peer]:
        peers = [await self.peer() for _ in range(count)]
        await until(lambda: len(self.handler.connections) == count)
        return peers


def test_a_crowd_that_asks_at_once_is_served_in_several_turns(run: Run) -> None:
    async def main() -> None:
        async with SlowWorld(1.0) as world:
            peers = await world.crowd(CROWD)
            for peer in peers:
                peer.sock.send(frame(b"x"))  # the loop hears of all of them together
            turns = Turns(lambda: len(world.handler.frames))
            await until(lambda: len(world.handler.frames) == CROWD)
            turns.stop()
            # Eight before the first look, eight milliseconds, eight till the next look; and the part of those in line.
            assert turns.most <= 8 + 8 + 8 + 6
            for peer in peers:
                assert await peer.read_frame() == b"x"
                peer.sock.send(frame(b"again"))
            for peer in peers:
                assert await peer.read_frame() == b"again"

    run(main())


def test_a_crowd_that_leaves_at_once_is_let_go_in_several_turns(run: Run) -> None:
    async def main() -> None:
        async with SlowWorld(0.0) as world:
            peers = await world.crowd(CROWD)
            forget = world.reactor.forget

            def forget_slowly(connection: object) -> None:
                world.clock.now_ms += 1
                forget(connection)  # type: ignore[arg-type]  # a connection

            world.reactor.forget = forget_slowly  # type: ignore[method-assign]
            for peer in peers:
                peer.close()
            turns = Turns(lambda: CROWD - len(world.reactor.connections))
            await until(lambda: not world.reactor.connections)
            turns.stop()
            assert turns.most <= 6

    run(main())


def test_the_more_wait_the_shorter_their_turns(run: Run) -> None:
    async def main() -> None:
        async with SlowWorld(0.2) as world:
            greedy = await world.crowd(40)
            for number, peer in enumerate(greedy):
                peer.sock.send(frame(b"%d" % number) * 100)
            await until(lambda: len(world.handler.frames) == 40 * 100)
            # Once all are in line, and before the first has nothing left: one frame of each, not the five of a turn.
            runs = [len(list(same)) for _, same in groupby(world.handler.frames[1_000:3_000])]
            assert max(runs) <= 2
            for number, peer in enumerate(greedy):
                assert await peer.read_frames(100) == [b"%d" % number] * 100

    run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux moves pages")
def test_a_large_buffer_grows_without_being_copied(run: Run) -> None:
    memory = ReadMemory()
    buffer = memory.take(8 << 20)
    assert isinstance(buffer, mmap.mmap)
    buffer[:5] = b"hello"
    assert memory.grow(buffer, 5, 64 << 20) is buffer
    assert (len(buffer), buffer[:5]) == (64 << 20, b"hello")
    memory.give_back(buffer)
    assert buffer.closed

    async def main() -> None:
        async with World(max_frame_bytes=1 << 30) as world:
            peer = await world.peer()
            payload = bytes(range(251)) * 160_000  # 40 MB, without a period that a page would hide
            sending = asyncio.ensure_future(peer.send(frame(payload)))
            assert await peer.read_frame() == payload
            await sending
            await peer.send(frame(b"small"))
            assert await peer.read_frame() == b"small"

    run(main())
