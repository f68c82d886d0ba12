"""Commands that a thread decides: what comes between, who waits, and what becomes of them when leadership is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from moldau.broker.quorum.quorum import MetadataQuorum
from moldau.controller.context import ControllerContext, ControllerResult
from moldau.controller.errors import NotController
from moldau.controller.image import ClusterImage
from moldau.wire import Message
from moldau.wire import messages as m
from tests.broker.quorum.members import Member, World, controller_of
from tests.broker.quorum.test_quorum import run

LONG = m.DeleteTopicsRequest(topic_names=["x"] * 1_000)
SHORT = m.DeleteTopicsRequest(topic_names=["x"])
Decide = Callable[[ClusterImage, m.DeleteTopicsRequest, ControllerContext], ControllerResult[str]]


def records(name: str) -> list[Message]:
    topic_id = name.encode().rjust(16, b"-")
    partition = m.PartitionRecord(partition_id=0, topic_id=topic_id, replicas=[1], isr=[1], leader=1)
    return [m.TopicRecord(name, topic_id), partition]


def making(name: str, seen: list[ClusterImage] | None = None, meanwhile: Callable[[], object] | None = None) -> Decide:
    """A command that makes a topic. `meanwhile` happens on the loop while a thread decides."""

    def decide(image: ClusterImage, _request: object, context: ControllerContext) -> ControllerResult[str]:
        if seen is not None:
            seen.append(image)
        context.charge_partitions(1)
        if meanwhile is not None:
            meanwhile()
        return ControllerResult(name, records(name))

    return decide


async def lead(world: World, size: int = 1) -> Member:
    for node_id in range(1, size + 1):
        world.start(node_id)
    return await world.bootstrap()


def test_what_comes_between_is_not_lost(tmp_path: Path) -> None:
    """Decided again, on what is there then; and what the records change is told by the right image."""

    async def scenario(world: World) -> None:
        leader = await lead(world)
        controller, quorum = controller_of(leader), leader.quorum
        seen: list[ClusterImage] = []
        between = iter([records("between")])

        def come_between() -> None:
            if (more := next(between, None)) is not None:
                quorum.append(more)

        assert await controller.submit(making("long", seen, come_between), LONG) == "long"
        assert ["between" in image.topics for image in seen] == [False, True]
        assert {"between", "long"} <= quorum.committed.topics.keys()
        await world.stop(1)
        assert world.start(1).quorum.committed.topics.keys() == quorum.committed.topics.keys()

    run(World(tmp_path, 1), scenario)


def test_the_published_difference_is_that_of_the_published_images(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        leader = await lead(world)
        controller, quorum = controller_of(leader), leader.quorum
        told: list[tuple[list[str], list[str]]] = []

        def publish(before: ClusterImage, after: ClusterImage, delta: object) -> None:
            created = [topic.name for topic in getattr(delta, "topics_created", ())]
            told.append((sorted(after.topics.keys() - before.topics.keys()), created))

        quorum._images._publish = publish
        await asyncio.gather(controller.submit(making("a"), LONG), controller.submit(making("b"), LONG))
        assert told == [(["a"], ["a"]), (["b"], ["b"])]

    run(World(tmp_path, 1), scenario)


def test_short_commands_go_first_until_a_long_one_was_put_off_twice(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        leader = await lead(world)
        controller = controller_of(leader)
        seen: list[ClusterImage] = []
        others: list[asyncio.Future[str]] = []

        def ask_more() -> None:
            others.append(asyncio.ensure_future(controller.submit(making(f"short{len(others)}"), SHORT)))

        answer = await controller.submit(making("long", seen, ask_more), LONG)
        assert answer == "long"
        assert len(seen) == 3
        await asyncio.gather(*others)
        assert list(leader.quorum.committed.topics) == ["short0", "short1", "long", "short2"]

    run(World(tmp_path, 1), scenario)


@pytest.mark.parametrize("has_records", [True, False])
def test_an_order_of_a_former_leadership_is_not_carried_out(tmp_path: Path, has_records: bool) -> None:
    """Even if nothing came between and the same node leads again."""

    async def scenario(world: World) -> None:
        controller = controller_of(await lead(world))

        def lead_anew() -> None:
            stack.enter_context(patch.object(MetadataQuorum, "epoch", property(lambda self: self._raft.epoch + 1)))

        make = making("long", None, lead_anew)

        def decide(
            image: ClusterImage, request: m.DeleteTopicsRequest, context: ControllerContext
        ) -> ControllerResult[str]:
            return make(image, request, context) if has_records else make(image, request, context)._replace(records=[])

        with ExitStack() as stack, pytest.raises(NotController):
            await controller.submit(decide, LONG)
        assert "long" not in controller._log.latest.topics

    run(World(tmp_path, 1), scenario)


def test_an_answer_without_records_waits_for_what_it_rests_on(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        leader = await lead(world, 3)
        controller, quorum = controller_of(leader), leader.quorum
        world.cut |= {each for each in world.members if each != leader.node_id}
        pending = quorum.append(records("uncommitted"))

        def read(image: ClusterImage, _request: object, _context: ControllerContext) -> ControllerResult[bool]:
            return ControllerResult("uncommitted" in image.topics, [])

        asking = asyncio.ensure_future(controller.submit(read, LONG))
        await asyncio.sleep(0.1)
        assert not asking.done(), "answered from what is not committed"
        world.cut.clear()
        world.cut.add(leader.node_id)
        await world.leader()
        world.cut.clear()
        for each in (asking, pending):
            with pytest.raises(NotController):
                await each

    run(World(tmp_path, 3), scenario)


def test_a_client_pays_once_however_often_it_is_decided(tmp_path: Path) -> None:
    class Bill:
        def __init__(self) -> None:
            self.charged = 0

        def charge(self, partitions: int) -> None:
            self.charged += partitions

        def pay(self) -> None:
            paid.append(self.charged)

    paid: list[int] = []

    async def scenario(world: World) -> None:
        leader = await lead(world)
        controller = controller_of(leader)
        between = iter([records("between")])

        def come_between() -> None:
            if (more := next(between, None)) is not None:
                leader.quorum.append(more)

        def never(_partitions: int) -> None:
            raise AssertionError("charged on a thread")

        context = replace(controller.context(), charge_partitions=never, rehearse_charges=Bill)
        await controller.submit(making("long", None, come_between), LONG, context=context)
        assert paid == [1]

    run(World(tmp_path, 1), scenario)


def test_a_failure_is_its_own(tmp_path: Path) -> None:
    """Whoever was held by a command that fails goes on, and so does the next long one."""

    async def scenario(world: World) -> None:
        leader = await lead(world)
        controller = controller_of(leader)
        tries = 0

        def fail(_image: ClusterImage, _request: object, _context: ControllerContext) -> ControllerResult[str]:
            nonlocal tries
            tries += 1
            if tries <= 2:
                leader.quorum.append(records(f"between{tries}"))
                return ControllerResult("", records("never"))
            others.append(asyncio.ensure_future(controller.submit(making("short"), SHORT)))
            raise RuntimeError("planted")

        others: list[asyncio.Future[str]] = []
        with pytest.raises(RuntimeError, match="planted"):
            await controller.submit(fail, LONG)
        assert await others[0] == "short"
        assert await controller.submit(making("next"), LONG) == "next"

    run(World(tmp_path, 1), scenario)
