"""The metadata quorum with real files: alone, of three, through crashes and cuts."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from moldau.broker.quorum.errors import LostHistory
from moldau.controller.context import ControllerContext, ControllerResult
from moldau.controller.errors import NotController
from moldau.controller.image import ClusterImage
from moldau.seams.disk import Descriptors
from moldau.wire import Message
from moldau.wire import messages as m
from tests.broker.quorum.members import World, controller_of


def topic(number: int) -> list[Message]:
    topic_id = number.to_bytes(16, "big")
    partition = m.PartitionRecord(partition_id=0, topic_id=topic_id, replicas=[1], isr=[1], leader=1)
    return [m.TopicRecord(f"t{number}", topic_id), partition]


def run(world: World, scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        try:
            async with asyncio.timeout(50):
                await scenario(world)
        finally:
            await world.close()

    try:
        world.loop.run_until_complete(main())
        assert not world.loop.failures
    finally:
        world.loop.close()


def test_a_quorum_of_one_leads_when_it_is_open_and_begins_a_new_epoch_each_time(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        member = world.start(1)
        assert member.quorum.is_leader
        assert member.quorum.epoch == 1
        await world.bootstrap()
        await asyncio.gather(*(member.quorum.append(topic(n)) for n in range(20)))
        assert member.published[-1].topics.keys() == {f"t{n}" for n in range(20)}
        await world.stop(1)

        again = world.start(1)
        assert again.quorum.is_leader
        assert again.quorum.epoch == 2
        assert len(again.quorum.committed.topics) == 20
        assert again.leaders[-1] == (1, 2)
        state = json.loads((tmp_path / "node1" / "__cluster_metadata-0" / "quorum-state").read_bytes())
        assert (state["leaderEpoch"], state["leaderId"], state["votedId"]) == (2, 1, 1)

    run(World(tmp_path, 1), scenario)


def test_three_elect_one_commit_by_majority_and_tell_an_observer(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        for node_id in (1, 2, 3, 4):  # 4 is a broker without a vote
            world.start(node_id)
        leader = await world.bootstrap()
        await leader.quorum.append(topic(1))
        await world.until(lambda: world.all_have("t1"))
        assert {each.quorum.leader_id for each in world.members.values()} == {leader.node_id}
        assert leader.leaders[-1] == (leader.node_id, leader.quorum.epoch)
        images = [each.quorum.committed.topics["t1"].topic_id for each in world.members.values()]
        assert len(set(images)) == 1
        follower = next(each for each in world.members.values() if each is not leader)
        with pytest.raises(NotController):
            follower.quorum.append(topic(2))
        endpoint = follower.quorum.leader_endpoint()
        assert endpoint is not None
        assert endpoint.port == leader.node_id

    run(World(tmp_path, 3), scenario)


def test_a_leader_that_is_cut_off_commits_nothing_and_its_records_are_gone_afterwards(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        for node_id in (1, 2, 3):
            world.start(node_id)
        old = await world.bootstrap()
        await old.quorum.append(topic(1))
        world.cut = {old.node_id}
        lost = old.quorum.append(topic(2))
        new = await world.leader()
        assert new.quorum.epoch > old.quorum.epoch
        await new.quorum.append(topic(3))
        with pytest.raises(NotController):
            await lost
        assert "t2" not in old.quorum.latest.topics
        world.cut = set()
        await world.until(lambda: world.all_have("t3"))
        assert all("t2" not in each.quorum.committed.topics for each in world.members.values())
        logs = [each.quorum.log.log_end_offset for each in world.members.values()]
        assert logs[0] == logs[1] == logs[2]

    run(World(tmp_path, 3), scenario)


def test_members_stop_and_start_one_after_the_other_without_losing_anything(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        for node_id in (1, 2, 3):
            world.start(node_id)
        await world.bootstrap()
        for number, node_id in enumerate([1, 2, 3, 1, 2, 3]):
            await (await world.leader()).quorum.append(topic(number))
            await world.stop(node_id)
            leader = await world.leader()
            await leader.quorum.append(topic(100 + number))
            world.start(node_id)
            await world.until(partial(world.all_have, f"t{100 + number}"))
        wanted = {f"t{n}" for n in range(6)} | {f"t{100 + n}" for n in range(6)}
        assert all(each.quorum.committed.topics.keys() == wanted for each in world.members.values())

    run(World(tmp_path, 3), scenario)


def test_an_orderly_resignation_elects_another_at_once(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        for node_id in (1, 2, 3):
            world.start(node_id)
        old = await world.bootstrap()
        epoch = old.quorum.epoch
        await old.quorum.resign()
        new = await world.leader()
        assert new.quorum.epoch > epoch
        await new.quorum.append(topic(1))
        await world.until(lambda: world.all_have("t1"))

    run(World(tmp_path, 3, {"controller.quorum.fetch.timeout.ms": "20000"}), scenario)


def test_a_new_node_waits_until_it_has_all_that_was_committed(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        leader = await world.bootstrap_without(3)
        for number in range(30):
            await leader.quorum.append(topic(number))
        late = world.start(3)
        await late.quorum.wait_until_caught_up()
        assert len(late.quorum.committed.topics) == 30

    run(World(tmp_path, 3, {"controller.quorum.fetch.max.bytes": "300"}), scenario)


def test_an_answer_that_changes_nothing_waits_for_what_it_rests_on(tmp_path: Path) -> None:
    """The image it was decided on is not committed yet, and the next controller may not have it."""

    async def scenario(world: World) -> None:
        for node_id in (1, 2, 3):
            world.start(node_id)
        leader = await world.bootstrap()
        quorum = leader.quorum
        controller = controller_of(leader)
        followers = {each for each in world.members if each != leader.node_id}
        world.cut |= followers
        pending = quorum.append(topic(1))

        def read(image: ClusterImage, name: str, _context: ControllerContext) -> ControllerResult[bool]:
            return ControllerResult(name in image.topics, [])

        asking = asyncio.ensure_future(controller.submit(read, "t1"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not asking.done(), "answered from what is not committed"
        world.cut.clear()
        world.cut.add(leader.node_id)
        await world.leader()
        world.cut.clear()
        with pytest.raises(NotController):
            await asking
        with pytest.raises(NotController):
            await pending

    run(World(tmp_path, 3), scenario)


def folder_is_blank(world: World, node_id: int) -> bool:
    return not (world.root / f"node{node_id}" / "__cluster_metadata-0" / "quorum-state").exists()


def test_a_quorum_is_founded_by_all_of_its_voters(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        for node_id in (1, 2):
            world.start(node_id)
        foundings = [each.quorum.raft.founding for each in world.members.values()]
        await world.until(lambda: all(each is not None and each.missing() == [3] for each in foundings))
        await asyncio.sleep(1.0)  # several election timeouts
        assert all(each.quorum.epoch == 0 and folder_is_blank(world, each.node_id) for each in world.members.values())
        await world.stop(1)  # who is asked again, with nothing to lose, is asked again
        world.start(1)
        world.start(3)
        leader = await world.bootstrap()
        await leader.quorum.append(topic(1))
        await world.until(lambda: world.all_have("t1"))

    run(World(tmp_path, 3), scenario)


@pytest.mark.parametrize("others", [(1,), (1, 2)], ids=["one of the others is up", "both are up"])
def test_a_voter_that_forgot_everything_takes_no_part(tmp_path: Path, others: tuple[int, ...]) -> None:
    """The record was committed by two. One of them loses its disk, and must not elect the third, which lacks it."""

    async def scenario(world: World) -> None:
        for node_id in (1, 2, 3):
            world.start(node_id)
        leader = await world.bootstrap()
        await world.until(lambda: all(each.quorum.committed.features for each in world.members.values()))
        third, forgetful = (each for each in world.members if each != leader.node_id)
        await world.stop(third)
        await leader.quorum.append(topic(1))
        await world.stop(forgetful)
        shutil.rmtree(world.root / f"node{forgetful}")
        if len(others) == 1:
            await world.stop(leader.node_id)
        world.start(third)
        blank = world.start(forgetful)
        with pytest.raises(LostHistory, match="moldau format"):
            await blank.quorum.wait_until_caught_up()
        await asyncio.sleep(1.0)
        assert blank.quorum.epoch == 0
        assert folder_is_blank(world, forgetful)
        if len(others) == 1:
            assert world.active() is None, "elected by one that does not know what it promised"
            world.start(leader.node_id)
        await world.stop(forgetful)
        await world.until(lambda: world.all_have("t1"))

    run(World(tmp_path, 3), scenario)


def test_a_leader_survives_a_moment_in_which_nobody_could_listen(tmp_path: Path) -> None:
    """A machine without time to give: every timer is due before anything that was said meanwhile can be read."""

    async def scenario(world: World) -> None:
        for node_id in (1, 2, 3):
            world.start(node_id)
        leader = await world.bootstrap()
        epoch = leader.quorum.epoch
        world.loop.stand_still(2.0)
        await asyncio.sleep(0.5)
        assert (leader.quorum.epoch, leader.quorum.is_leader) == (epoch, True)

    run(World(tmp_path, 3, {"controller.quorum.fetch.timeout.ms": "1200"}), scenario)


def test_metadata_is_written_when_nothing_is_left_but_what_is_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other logs refuse what comes then, and are asked again. A quorum that refused would end its node."""
    check, is_short = Descriptors.check, False

    def checked(descriptors: Descriptors) -> None:
        if is_short:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        check(descriptors)

    monkeypatch.setattr(Descriptors, "check", checked)

    async def scenario(world: World) -> None:
        nonlocal is_short
        member = world.start(1)
        await world.bootstrap()
        is_short = True
        member.quorum.log.roll()
        await member.quorum.append(topic(1))
        assert member.quorum.is_leader
        assert "t1" in member.published[-1].topics

    run(World(tmp_path, 1), scenario)
