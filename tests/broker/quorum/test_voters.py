"""Voters come and go while the quorum works (KIP-853, and KIP-1186 for controllers that join by themselves)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from moldau.raft import ReplicaKey
from moldau.raft.leader import Leader
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.broker.quorum.members import Member, World, controller_of
from tests.broker.quorum.test_quorum import run, topic
from tests.broker.quorum.test_snapshots import OFTEN

JOINING = {"controller.quorum.auto.join.enable": "true"}


async def ask_leader(world: World, request: Any) -> Any:
    return await world.deliver(0, (await world.leader()).node_id, request)


def adding(node_id: int) -> m.AddRaftVoterRequest:
    listener = m.AddRaftVoterRequest.Listener("CONTROLLER", f"n{node_id}", node_id)
    return m.AddRaftVoterRequest("the-cluster", 20_000, node_id, bytes([node_id]) * 16, [listener])


async def until_added(world: World, node_id: int) -> None:
    while (code := (await ask_leader(world, adding(node_id))).error_code) != ErrorCode.NONE:
        assert code == ErrorCode.REQUEST_TIMED_OUT  # it has not caught up yet
        await asyncio.sleep(0.01)  # of virtual time


def voter_ids(member: Member) -> list[int]:
    return [each.key.id for each in member.quorum.voters]


def test_the_founder_adds_voters_and_is_removed_in_the_end(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.start(1)
        founder = await world.bootstrap()
        assert founder.quorum.kraft_version == 1
        state = json.loads((tmp_path / "node1" / "__cluster_metadata-0" / "quorum-state").read_bytes())
        assert (state["data_version"], state["votedId"]) == (1, 1)
        for node_id in (2, 3):
            world.start(node_id)
            await until_added(world, node_id)
        assert (await ask_leader(world, adding(2))).error_code == ErrorCode.DUPLICATE_VOTER
        await founder.quorum.append(topic(1))
        await world.until(lambda: world.all_have("t1"))
        await world.until(lambda: all(voter_ids(each) == [1, 2, 3] for each in world.members.values()))

        # A voter with another disk is another voter.
        wrong = m.RemoveRaftVoterRequest("the-cluster", 1, b"x" * 16)
        assert (await ask_leader(world, wrong)).error_code == ErrorCode.VOTER_NOT_FOUND
        right = m.RemoveRaftVoterRequest("the-cluster", 1, b"\1" * 16)
        assert (await ask_leader(world, right)).error_code == ErrorCode.NONE
        await world.until(lambda: not founder.quorum.is_leader)
        leader = await world.leader()
        assert leader.node_id in (2, 3)
        assert voter_ids(leader) == [2, 3]
        await world.stop(1)
        await leader.quorum.append(topic(2))
        await world.until(lambda: world.all_have("t2"))

    run(World(tmp_path, 3, dynamic=True), scenario)


def test_controllers_join_by_themselves_also_with_a_new_disk(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        for node_id in (1, 2, 3):
            world.start(node_id)
        await world.bootstrap()
        await world.until(lambda: all(voter_ids(each) == [1, 2, 3] for each in world.members.values()))
        await world.until(lambda: world.active() is not None)

        leader = await world.leader()
        lost = next(node_id for node_id in (3, 2, 1) if node_id != leader.node_id)
        await world.stop(lost)
        for each in (tmp_path / f"node{lost}" / "__cluster_metadata-0").iterdir():
            each.unlink()
        world.directory_ids[lost] = b"new disk" * 2
        again = world.start(lost)

        def is_back() -> bool:
            voter = again.quorum.voters.get(lost)
            return voter is not None and voter.key.directory_id == b"new disk" * 2

        await world.until(is_back)
        await (await world.leader()).quorum.append(topic(1))
        await world.until(lambda: world.all_have("t1"))

    run(World(tmp_path, 3, JOINING, dynamic=True), scenario)


def test_voters_are_in_snapshots_and_survive_a_restart_of_all(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        for node_id in (1, 2, 3):
            world.start(node_id)
        await world.bootstrap()
        await world.until(lambda: all(voter_ids(each) == [1, 2, 3] for each in world.members.values()))
        leader = await world.leader()
        for number in range(80):
            await leader.quorum.append(topic(number))
        await world.until(lambda: world.all_have("t79"))
        await world.until(lambda: all(each.quorum.log.log_start_offset > 0 for each in world.members.values()))
        for node_id in (1, 2, 3):
            await world.stop(node_id)
        for node_id in (1, 2, 3):
            world.start(node_id)
        assert all(voter_ids(each) == [1, 2, 3] for each in world.members.values())
        await (await world.leader()).quorum.append(topic(100))
        await world.until(lambda: world.all_have("t100"))

    run(World(tmp_path, 3, {**JOINING, **OFTEN}, dynamic=True), scenario)


def test_who_was_removed_knows_it_after_a_restart(tmp_path: Path) -> None:
    """The log still has the record that removed it, and the sets before; the snapshot says that it was committed."""

    async def scenario(world: World) -> None:
        world.start(1)
        await world.bootstrap()
        for node_id in (2, 3):
            world.start(node_id)
            await until_added(world, node_id)
        gone = 2 if (await world.leader()).node_id == 3 else 3
        removed = world.members[gone].quorum
        removal = m.RemoveRaftVoterRequest("the-cluster", gone, bytes([gone]) * 16)
        assert (await ask_leader(world, removal)).error_code == ErrorCode.NONE
        await world.until(lambda: not removed.raft.is_voter)
        at = removed.files.history.latest_offset
        number = 0
        while (newest := removed.files.latest_snapshot) is None or newest.end_offset <= at:
            await (await world.leader()).quorum.append(topic(number))
            number += 1
            await asyncio.sleep(0.001)
        await world.stop(gone)
        again = world.start(gone).quorum
        assert again.files.start_offset == 0
        assert again.raft.high_watermark is None
        assert not again.raft.may_campaign

    run(World(tmp_path, 3, {**OFTEN, "metadata.max.retention.bytes": "-1"}, dynamic=True), scenario)


def test_fixed_voters_cannot_be_changed(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.start(1)
        await world.bootstrap()
        assert (await ask_leader(world, adding(2))).error_code == ErrorCode.UNSUPPORTED_VERSION
        wrong = adding(2)
        wrong.cluster_id = "another"
        assert (await ask_leader(world, wrong)).error_code == ErrorCode.INCONSISTENT_CLUSTER_ID

    run(World(tmp_path, 1), scenario)


def test_fixed_voters_become_changeable_when_the_feature_is_raised(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.start(1)
        world.start(2)
        leader = await world.bootstrap()
        await leader.quorum.append(topic(1))
        await world.until(lambda: world.all_have("t1"))
        voters = leader.quorum.voter_changes.upgradable()
        await leader.quorum.voter_changes.upgrade(voters, 1)
        await world.until(lambda: all(each.quorum.kraft_version == 1 for each in world.members.values()))
        keys = [each.key for each in leader.quorum.voters]
        assert keys == [ReplicaKey(1, b"\1" * 16), ReplicaKey(2, b"\2" * 16)]
        other = 3 - leader.node_id
        removal = m.RemoveRaftVoterRequest("the-cluster", other, bytes([other]) * 16)
        assert (await ask_leader(world, removal)).error_code == ErrorCode.NONE
        assert voter_ids(leader) == [leader.node_id]

    run(World(tmp_path, 2), scenario)


def test_features_are_raised_together_or_not_at_all(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        for node_id in (1, 2, 3):
            world.start(node_id)
        leader = await world.bootstrap()
        controller_of(leader)
        await leader.quorum.append([m.FeatureLevelRecord("group.version", 0)])
        for node_id in (1, 2, 3):
            levels = m.RegisterControllerRecord.ControllerFeature
            features = [levels("kraft.version", 0, 1), levels("group.version", 0, 1)]
            await leader.quorum.append([m.RegisterControllerRecord(node_id, features=features)])

        def level() -> int:
            return leader.quorum.latest.features.get("group.version", 0)

        async def restart(node_id: int) -> None:
            await world.stop(node_id)
            member = world.start(node_id)
            role = leader.quorum.raft.role
            assert isinstance(role, Leader)
            role.progress.pop(member.quorum.raft.me, None)
            await world.until(lambda: member.quorum.raft.me in role.progress)

        other = next(each for each in world.members if each != leader.node_id)
        world.directory_ids[other] = bytes(16)  # a release that does not tell
        await restart(other)
        update = m.UpdateFeaturesRequest.FeatureUpdateKey
        updates = [update("group.version", 1, False, 1), update("kraft.version", 1, False, 1)]
        request = m.UpdateFeaturesRequest(feature_updates=updates)
        answer = await world.deliver(0, leader.node_id, request)
        assert (answer.error_code, level()) == (ErrorCode.INVALID_UPDATE_VERSION, 0), "half of it was written"
        del world.directory_ids[other]
        await restart(other)
        answer = await world.deliver(0, leader.node_id, request)
        assert (answer.error_code, level(), leader.quorum.kraft_version) == (ErrorCode.NONE, 1, 1)

    run(World(tmp_path, 3), scenario)
