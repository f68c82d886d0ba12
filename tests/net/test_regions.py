"""Responses made of buffers and file regions: every byte, in order, however little the socket takes at a time."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from moldau.net import cold
from moldau.net.outbound import FrameWriter
from moldau.seams.disk import Buffer, DiskFile, FileRegion, RealDisk, RealFile
from moldau.seams.network import Connection, Payload, ResponseSlot
from tests.net.conftest import Run
from tests.net.support import OnFrame, World, frame, until


class FileWithoutNumber:
    """As the simulator has them: no descriptor, so no sendfile."""

    def __init__(self, file: RealFile) -> None:
        self._file = file

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def fileno(self) -> None:
        return None


@pytest.fixture
def content() -> bytes:
    return random.Random(1).randbytes(5_000_000)


@pytest.fixture
def file(tmp_path: Path, content: bytes) -> RealFile:
    file = RealDisk().open(str(tmp_path / "segment"))
    file.append(content)
    return file


def answering(payload: Payload) -> OnFrame:
    def answer(_: Connection, __: memoryview, slot: ResponseSlot) -> None:
        slot.complete(payload)

    return answer


def flatten(payload: Payload) -> bytes:
    return b"".join(piece.read() if isinstance(piece, FileRegion) else bytes(piece) for piece in payload)


@pytest.mark.parametrize("has_descriptor", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_any_mixture_arrives_through_a_narrow_socket(run: Run, file: RealFile, has_descriptor: bool, seed: int) -> None:
    source = random.Random(seed)
    disk_file: RealFile = file if has_descriptor else FileWithoutNumber(file)  # type: ignore[assignment]  # passes for one
    payload: list[bytes | bytearray | memoryview | FileRegion] = []
    for _ in range(120):
        size = source.choice([0, 1, 10, 1000, 16_384, 16_385, 70_000])
        kind = source.randrange(4)
        if kind == 0:
            payload.append(source.randbytes(size))
        elif kind == 1:
            payload.append(memoryview(bytearray(source.randbytes(size))))
        else:
            payload.append(FileRegion(disk_file, source.randrange(4_000_000), size))
    expected = flatten(payload)

    async def main() -> None:
        async with World(answering(payload), send_buffer_bytes=8192) as world:
            peer = await world.peer(receive_buffer_bytes=4096)
            await peer.send(frame(b"1") + frame(b"2"))
            assert await peer.read_frame() == expected
            assert await peer.read_frame() == expected
            await until(lambda: world.counters.bytes_out == 2 * (4 + len(expected)))

    run(main())
    file.close()


class GreedyChannel:
    """Takes whatever it is given: the fastest reader there is."""

    has_unsent = has_unread = False

    def __init__(self) -> None:
        self.received = bytearray()
        self.sizes: list[int] = []

    def send(self, data: Buffer, /) -> int:
        self.received += data
        self.sizes.append(len(data))
        return len(data)

    def send_many(self, buffers: Sequence[Buffer], *, more_follows: bool) -> int:
        return self.send(b"".join(buffers))

    def send_file(self, file: DiskFile, position: int, length: int) -> int:
        return self.send(file.read(position, length))

    def recv_into(self, view: memoryview, /) -> int:
        raise BlockingIOError

    def flush(self) -> None:
        pass

    def fileno(self) -> int:
        return -1

    def end_sending(self) -> None:
        pass

    def discard(self, view: memoryview, /) -> int:
        return 0

    def close(self) -> None:
        pass


@pytest.mark.parametrize("in_memory", [False, True])
def test_the_fastest_reader_of_a_large_response_gets_one_megabyte_at_a_time(
    file: RealFile, content: bytes, in_memory: bool
) -> None:
    """Then the loop looks after the others."""
    writer, channel = FrameWriter(), GreedyChannel()
    pieces = [content[at : at + 50_000] for at in range(0, len(content), 50_000)]
    writer.push(pieces if in_memory else [FileRegion(file, 0, len(content))])
    turns: list[int] = []
    while not writer.is_empty:
        before = len(channel.received)
        assert writer.flush(channel) == writer.is_empty
        turns.append(len(channel.received) - before)
    assert bytes(channel.received) == frame(content)
    assert max(turns) < 1_600_000
    assert max(channel.sizes) <= 512 * 1024
    file.close()


@pytest.mark.parametrize("length", [1000, 100_000])
def test_a_region_longer_than_its_file_closes_the_connection(run: Run, file: RealFile, length: int) -> None:
    payload: Payload = [b"head", FileRegion(file, file.size - length // 2, length)]

    async def main() -> None:
        async with World(answering(payload)) as world:
            peer = await world.peer()
            await peer.send(frame(b"x"))
            await until(lambda: world.handler.ends)
            assert "a file ended" in world.handler.reasons[0]

    run(main())
    file.close()


@pytest.mark.parametrize("length", [1000, 100_000])
def test_a_region_of_a_closed_file_closes_the_connection(run: Run, file: RealFile, length: int) -> None:
    payload: Payload = [b"head", FileRegion(file, 0, length)]
    file.close()

    async def main() -> None:
        async with World(answering(payload)) as world:
            peer = await world.peer()
            await peer.send(frame(b"x"))
            await until(lambda: world.handler.ends)
            assert "writing failed" in world.handler.reasons[0]

    run(main())


@pytest.mark.parametrize("length", [5_000, 3_000_000])
def test_a_cold_region_is_fetched_by_a_thread_first(
    run: Run, file: RealFile, content: bytes, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cold is only played here: whether pages can really be evicted depends on the machine."""
    warmed: list[tuple[int, int, int]] = []
    monkeypatch.setattr(cold, "is_cold", lambda *_: True)
    monkeypatch.setattr(cold, "read_if_warm", lambda _: None)
    monkeypatch.setattr(cold, "warm", lambda *region: warmed.append(region))
    payload: Payload = [b"head", FileRegion(file, 100, length), b"tail"]

    async def main() -> None:
        async with World(answering(payload)) as world:
            peer = await world.peer()
            await peer.send(frame(b"1") + frame(b"2"))
            for _ in range(2):
                assert await peer.read_frame() == b"head" + content[100 : 100 + length] + b"tail"
            assert world.counters.cold_reads == len(warmed)

    run(main())
    fetched = [(position, size) for _, position, size in warmed]
    one_response = [(100 + at, min(1024 * 1024, length - at)) for at in range(0, length, 1024 * 1024)]
    assert fetched == one_response * 2
    file.close()


def test_a_connection_may_close_while_its_region_is_fetched(
    run: Run, file: RealFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = threading.Event()
    monkeypatch.setattr(cold, "is_cold", lambda *_: True)
    monkeypatch.setattr(cold, "warm", lambda *_: fetched.wait(30))
    payload: Payload = [FileRegion(file, 0, 100_000)]

    async def main() -> None:
        async with World(answering(payload)) as world:
            peer = await world.peer()
            await peer.send(frame(b"1"))
            await until(lambda: world.counters.cold_reads)
            world.handler.connections[0].close("changed my mind")
            fetched.set()
            assert await peer.read(4) == (100_000).to_bytes(4, "big")
            assert await peer.is_ended()
            await until(lambda: world.handler.ends)

    run(main())
    file.close()


def test_what_was_just_written_is_warm_and_reads_whole(file: RealFile, content: bytes) -> None:
    fd = file.fileno()
    assert fd is not None
    assert not cold.is_cold(fd, 0, len(content))
    assert not cold.is_cold(fd, 0, 0)
    data = cold.read_if_warm(FileRegion(file, 10, 5000))
    assert data is not None
    assert bytes(data) == content[10:5010]
    cold.warm(fd, 0, len(content) + 1_000_000)
    file.close()
    cold.warm(fd, 0, 100)  # a closed file is nobody's business


def test_a_file_system_that_cannot_tell_counts_as_warm(
    file: RealFile, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(95, os.strerror(95))

    monkeypatch.setattr(os, "preadv", refuse)
    fd = file.fileno()
    assert fd is not None
    assert not cold.is_cold(fd, 0, 100)
    data = cold.read_if_warm(FileRegion(file, 0, 100))
    assert data is not None
    assert bytes(data) == content[:100]

    def would_wait(*_: object) -> int:
        raise BlockingIOError(11, os.strerror(11))

    monkeypatch.setattr(os, "preadv", would_wait)
    assert cold.is_cold(fd, 0, 100)
    assert cold.read_if_warm(FileRegion(file, 0, 100)) is None
    file.close()


def test_a_frame_longer_than_the_protocol_can_say_is_refused(run: Run, file: RealFile) -> None:
    payload: Payload = [FileRegion(file, 0, 2**31 - 1), b"x"]

    async def main() -> None:
        async with World(lambda *_: None) as world:
            peer = await world.peer()
            await peer.send(frame(b"1"))
            await until(lambda: world.handler.slots)
            with pytest.raises(ValueError, match="longer than the protocol can say"):
                world.handler.slots[0].complete(payload)
            assert await peer.is_ended()  # nobody may take the next response for this one

    run(main())
    file.close()
