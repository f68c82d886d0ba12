"""Snapshots: taken when the log has grown, in Kafka's format, fetched by who is behind; the log is cut behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.broker.quorum.recovery_point import CorruptMetadata
from moldau.broker.quorum.snapshot_files import CorruptSnapshot, list_snapshots, read_snapshot, snapshot_batches
from moldau.controller.features import bootstrap_records
from moldau.controller.fold import apply
from moldau.controller.image import EMPTY_IMAGE
from moldau.raft import Address, ReplicaKey, SnapshotId, Voter, VoterSet
from moldau.seams import RealDisk
from tests.broker.quorum.members import Member, World
from tests.broker.quorum.test_quorum import run, topic

OFTEN = {
    "metadata.log.max.record.bytes.between.snapshots": "3000",
    "metadata.max.retention.bytes": "0",
    "controller.quorum.fetch.snapshot.max.bytes": "700",
}


async def fill(leader: Member, numbers: range) -> None:
    for number in numbers:
        await leader.quorum.append(topic(number))


def test_what_is_written_is_read_again() -> None:
    image = apply(EMPTY_IMAGE, [*bootstrap_records(), *(each for n in range(2500) for each in topic(n))], offset=9)
    voters = VoterSet((Voter(ReplicaKey(1, b"d" * 16), (("C", Address("h", 1)),)), Voter(ReplicaKey(2, b"e" * 16))))
    snapshot = SnapshotId(10, 3)
    data = b"".join(snapshot_batches(image, snapshot, timestamp_ms=77, kraft_version=1, voters=voters))
    found = read_snapshot(data, snapshot)
    assert found.image.topics == image.topics
    assert found.image.features == image.features
    assert (found.timestamp_ms, found.kraft_version, found.voters) == (77, 1, voters)
    *parts, _ = snapshot_batches(image, snapshot, timestamp_ms=77)
    with pytest.raises(CorruptSnapshot):
        read_snapshot(b"".join(parts), snapshot)


def test_a_quorum_of_one_starts_from_its_snapshot(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.start(1)
        leader = await world.bootstrap()
        await fill(leader, range(60))
        await world.until(lambda: len(leader.quorum.files.snapshots) == 1 and leader.quorum.log.log_start_offset > 0)
        await fill(leader, range(60, 65))
        await world.stop(1)
        again = world.start(1)
        assert again.quorum.committed.topics.keys() == {f"t{n}" for n in range(65)}
        folder = str(tmp_path / "node1" / "__cluster_metadata-0")
        snapshots = list_snapshots(RealDisk(), folder)
        assert again.quorum.log.log_start_offset == snapshots[0].end_offset
        await world.stop(1)

        for each in Path(folder).glob("*.checkpoint"):
            each.unlink()
        with pytest.raises(CorruptMetadata, match="missing"):
            world.start(1)

    run(World(tmp_path, 1, OFTEN), scenario)


def test_who_is_behind_the_log_gets_a_snapshot_and_goes_on_from_there(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        leader = await world.bootstrap_without(3)
        await fill(leader, range(80))
        await world.until(lambda: leader.quorum.log.log_start_offset > 0)
        late = world.start(3)
        observer = world.start(4)
        await world.until(lambda: world.all_have("t79"))
        assert late.quorum.files.snapshots
        assert late.quorum.log.log_start_offset > 0
        await fill(leader, range(80, 85))
        await world.until(lambda: world.all_have("t84"))
        wanted = {f"t{n}" for n in range(85)}
        assert late.quorum.committed.topics.keys() == observer.quorum.committed.topics.keys() == wanted
        # It is a full member: with one of the others gone, the quorum goes on.
        await world.stop(leader.node_id)
        new = await world.leader()
        await fill(new, range(100, 101))
        await world.until(lambda: world.all_have("t100"))

    run(World(tmp_path, 3, OFTEN), scenario)
