"""Bytes that rot: what was flushed of the metadata is there, or the node refuses to start and says where and what."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from moldau.broker.quorum.recovery_point import (
    RECOVERY_POINT,
    CorruptMetadata,
    check_flushed,
    read_recovery_point,
    write_recovery_point,
)
from moldau.raft import decode_quorum_state
from moldau.records import iter_batches
from moldau.seams import RealDisk
from tests.broker.quorum.members import World
from tests.broker.quorum.test_quorum import run, topic
from tests.broker.quorum.test_snapshots import OFTEN, fill

FIRST = "00000000000000000000.log"
LEADER_EPOCH_AT = 12  # in a batch


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def contents(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


def folder_of(world: World, node_id: int) -> Path:
    return world.root / f"node{node_id}" / "__cluster_metadata-0"


async def stopped(world: World, topics: int) -> Path:
    """A node of its own with so many topics, cleanly stopped."""
    world.start(1)
    leader = await world.bootstrap()
    await fill(leader, range(topics))
    await world.stop(1)
    return folder_of(world, 1)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 0.99])
def test_a_damaged_record_that_was_flushed_stops_the_start(tmp_path: Path, part: float) -> None:
    async def scenario(world: World) -> None:
        folder = await stopped(world, 5)
        log = folder / FIRST
        flip(log, int(log.stat().st_size * part))
        before = contents(folder)
        with pytest.raises(CorruptMetadata, match=r"0\.log is damaged at byte \d+: the batch at offset \d+.*estore"):
            world.start(1)
        assert contents(folder) == before, "what is damaged must not be made worse"

    run(World(tmp_path, 1), scenario)


@pytest.mark.parametrize("witness", ["leader-epoch-checkpoint", "quorum-state"])
def test_every_bit_of_a_leader_epoch_counts(tmp_path: Path, witness: str) -> None:
    """Found by the simulator (17001734): no checksum covers it, and with a bit turned in it an old log looked newer
    than the others', so that its voter was elected and asked them to remove what was committed."""

    async def scenario(world: World) -> None:
        folder = await stopped(world, 5)
        for _ in range(3):  # in an epoch each
            world.start(1)
            await world.leader()
            await world.stop(1)
        other = {"leader-epoch-checkpoint": "quorum-state", "quorum-state": "leader-epoch-checkpoint"}[witness]
        (folder / other).unlink()
        log, disk = folder / FIRST, RealDisk()
        whole = log.read_bytes()
        batches = [position for position, _ in iter_batches(whole)]
        recovery_point = read_recovery_point(disk, str(folder))
        newest = decode_quorum_state((folder / witness).read_bytes()).epoch if witness == "quorum-state" else None
        check_flushed(disk, str(folder), recovery_point, newest)
        places = batches if witness == "leader-epoch-checkpoint" else batches[:1] + batches[-1:]
        for position in places:
            for bit in range(32):
                damaged = bytearray(whole)
                damaged[position + LEADER_EPOCH_AT + bit // 8] ^= 1 << bit % 8
                log.write_bytes(damaged)
                if witness == "quorum-state" and is_plausible(damaged, newest):
                    continue
                with pytest.raises(CorruptMetadata, match="leader epoch"):
                    check_flushed(disk, str(folder), recovery_point, newest)

    def is_plausible(data: bytearray, newest: int | None) -> bool:
        """Whether epochs still do not go back: without the checkpoint nobody can tell then."""
        epochs = [header.leader_epoch for _, header in iter_batches(bytes(data))]
        return newest is not None and epochs == sorted(epochs) and epochs[0] >= 0 and epochs[-1] <= newest

    run(World(tmp_path, 1), scenario)


def test_what_is_missing_at_the_end_was_flushed_too(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        folder = await stopped(world, 5)
        log = folder / FIRST
        log.write_bytes(log.read_bytes()[:-10])
        with pytest.raises(CorruptMetadata, match="cut short"):
            world.start(1)
        log.unlink()
        with pytest.raises(CorruptMetadata, match="no log any more"):
            world.start(1)

    run(World(tmp_path, 1), scenario)


def test_a_torn_end_that_was_not_flushed_is_cut_off(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        folder = await stopped(world, 5)
        log = folder / FIRST
        whole = log.read_bytes()
        log.write_bytes(whole + whole[:100])
        member = world.start(1)
        await world.until(lambda: world.all_have("t4"))
        assert member.quorum.is_leader

    run(World(tmp_path, 1), scenario)


@pytest.mark.parametrize(
    ("gap", "turned"), [(4, 0), (0, 1 << 27), (0, -1 << 31)], ids=["offset", "later epoch", "earlier epoch"]
)
def test_a_batch_that_does_not_follow_on_is_cut_off_unless_it_was_flushed(
    tmp_path: Path, gap: int, turned: int
) -> None:
    """A turned bit in an offset or an epoch, which no CRC covers: taken over, it would be refused once it counts as
    flushed, or make this voter's log look newer than the others'."""

    async def scenario(world: World) -> None:
        folder = await stopped(world, 5)
        log = folder / FIRST
        whole = log.read_bytes()
        position, header = list(iter_batches(whole))[-1]
        later = bytearray(whole[position:])
        struct.pack_into(">q", later, 0, header.next_offset + gap)
        struct.pack_into(">i", later, LEADER_EPOCH_AT, header.leader_epoch ^ turned)
        log.write_bytes(whole + later)
        for _ in range(2):
            member = world.start(1)
            await world.until(lambda: world.all_have("t4"))
            assert member.quorum.is_leader
            assert member.quorum.raft.epoch < 1 << 20
            await world.stop(1)

    run(World(tmp_path, 1), scenario)


def test_a_recovery_point_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    disk, folder = RealDisk(), str(tmp_path)
    assert read_recovery_point(disk, folder) == 0
    write_recovery_point(disk, folder, 1234)
    assert read_recovery_point(disk, folder) == 1234
    for position in range(len((tmp_path / RECOVERY_POINT).read_bytes().strip())):
        write_recovery_point(disk, folder, 1234)
        flip(tmp_path / RECOVERY_POINT, position)
        assert read_recovery_point(disk, folder) in (0, 1234)


def test_a_gap_between_segments_is_damage(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        folder = await stopped(world, 60)
        segments = sorted(folder.glob("*.log"))
        assert len(segments) >= 3
        segments[1].rename(folder / "aside")
        with pytest.raises(CorruptMetadata, match="missing"):
            check_flushed(RealDisk(), str(folder), read_recovery_point(RealDisk(), str(folder)), None)

    run(World(tmp_path, 1, {"internal.metadata.log.segment.bytes": "1000"}), scenario)


def test_a_truncation_lowers_the_recovery_point_first(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        for node_id in (1, 2, 3):
            world.start(node_id)
        old = await world.bootstrap()
        world.cut.add(old.node_id)
        new = await world.leader()
        if old.quorum.is_leader:
            for number in range(10):
                old.quorum.append(topic(100 + number))
        await world.stop(old.node_id)
        disk, folder = RealDisk(), str(folder_of(world, old.node_id))
        await fill(new, range(3))
        world.cut.clear()
        back = world.start(old.node_id)
        await world.until(lambda: world.all_have("t2"))
        assert read_recovery_point(disk, folder) <= back.quorum.files.end_offset
        check_flushed(disk, folder, read_recovery_point(disk, folder), back.quorum.raft.epoch)

    run(World(tmp_path, 3), scenario)


def test_a_damaged_snapshot_stops_the_start_and_the_log_stays(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        folder = await stopped(world, 60)
        newest = max(folder.glob("*.checkpoint"))
        flip(newest, newest.stat().st_size // 2)
        # As after a crash that left the log ending before its newest snapshot.
        (folder / RECOVERY_POINT).unlink()
        last = max(folder.glob("*.log"))
        last.write_bytes(last.read_bytes()[:-5])
        before = contents(folder)
        with pytest.raises(CorruptMetadata, match=newest.name):
            world.start(1)
        assert contents(folder) == before

    run(World(tmp_path, 1, OFTEN), scenario)


def test_a_damaged_snapshot_from_the_leader_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        for node_id in (1, 2, 3):
            world.start(node_id)
        leader = await world.bootstrap()
        late = next(each for each in (1, 2, 3) if each != leader.node_id)
        await world.stop(late)
        before = len(contents(folder_of(world, late))[FIRST])
        await fill(leader, range(80))
        files = leader.quorum.files
        await world.until(lambda: leader.quorum.log.log_start_offset > 0)
        newest = (
            Path(files.folder) / f"{files.snapshots[-1].end_offset:020d}-{files.snapshots[-1].epoch:010d}.checkpoint"
        )
        flip(newest, newest.stat().st_size // 2)
        member = world.start(late)
        damaged = asyncio.Event()
        monkeypatch.setattr(member.quorum.raft, "on_damaged_snapshot", lambda _now_ms: damaged.set())
        await damaged.wait()
        assert not list(folder_of(world, late).glob("*.checkpoint*")), "a damaged snapshot got its name"
        assert (folder_of(world, late) / FIRST).stat().st_size == before, "the log went before its replacement was read"
        flip(newest, newest.stat().st_size // 2)
        await world.until(lambda: world.all_have("t79"))

    run(World(tmp_path, 3, OFTEN), scenario)
