"""A node that looks alive is alive: each of its tasks goes on whatever comes, or the node stops and says why."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import moldau.broker
from moldau.broker.supervision import FOR_LIFE, PREFIX, begin, keep_going
from moldau.net import new_event_loop
from moldau.testing import AsyncCluster
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.broker.quorum.members import World
from tests.broker.quorum.test_quorum import run as run_world


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(asyncio.wait_for(main(), 50))


def test_tasks_begin_in_one_place() -> None:
    """In `channels` whoever asks for a connection waits for the attempt, and gets its exception."""
    root = Path(moldau.broker.__file__).parent
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if re.search(r"\.create_task\(|ensure_future\(", path.read_text())
    }
    assert found == {"channels.py", "supervision.py"}


def fail(task: asyncio.Task[Any]) -> bool:
    """Whether something that cannot be happened to it, where it waits."""
    waits_for = getattr(task, "_fut_waiter", None)
    if waits_for is None or waits_for.done() or isinstance(waits_for, asyncio.Task):
        return False
    waits_for.set_exception(RuntimeError("this cannot be"))
    return True


def test_every_task_of_a_node_goes_on_after_an_exception(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        mine = asyncio.all_tasks()
        async with AsyncCluster(3, data_dir=str(tmp_path)) as cluster:
            failures: list[Exception] = []
            for node in cluster.nodes.values():
                node.on_failure = failures.append
            tasks = asyncio.all_tasks() - mine
            # What ends by itself may be under way, and connections are opened; nothing else is.
            unknown = [each for each in tasks if not each.get_name().startswith((PREFIX, FOR_LIFE))]
            assert all("_connect" in repr(each.get_coro()) for each in unknown), unknown
            lasting = [each for each in tasks if each.get_name().startswith(FOR_LIFE)]
            kinds = {each.get_name().removeprefix(FOR_LIFE) for each in lasting}
            assert {"sending heartbeats", "housekeeping of logs"} <= kinds
            failed = [each for each in lasting if fail(each)]
            assert len({each.get_name() for each in failed}) >= 2
            await asyncio.sleep(0.5)
            assert not [each for each in failed if each.done()] or failures
            # Alive is who is missed by nobody for longer than a session.
            sessions = {number: node.broker.broker_epoch for number, node in cluster.nodes.items()}
            await asyncio.sleep(3.0)
            brokers = cluster.nodes[1].broker.image.brokers
            assert {number: each.epoch for number, each in brokers.items()} == sessions
            assert not any(each.fenced for each in brokers.values())

    with caplog.at_level(logging.ERROR):
        run(main)
    assert "sending heartbeats failed, and begins anew" in caplog.text


def test_what_ends_by_itself_says_how_it_failed(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> None:
        raise ValueError("not like that")

    turns: list[int] = []

    async def broken_twice() -> None:
        turns.append(1)
        if len(turns) < 3:
            raise ValueError("not yet")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.wait([begin(loop, "an errand", broken())])
        await keep_going(loop, "a duty", broken_twice)

    run(main)
    assert "an errand failed" in caplog.text
    assert caplog.text.count("a duty failed, and begins anew") == 2


def test_a_code_of_a_newer_peer_is_a_value() -> None:
    assert ErrorCode(999) is ErrorCode(-999) is ErrorCode.UNKNOWN_SERVER_ERROR  # as Kafka reads it
    assert ErrorCode(ErrorCode.NOT_CONTROLLER) is ErrorCode.NOT_CONTROLLER


def test_a_leader_that_cannot_act_stops_and_says_why(tmp_path: Path) -> None:
    """Corrupt metadata, say: whoever leads without acting keeps others from doing better."""

    async def scenario(world: World) -> None:
        for node_id in (1, 2, 3):
            world.start(node_id)
        leader = await world.bootstrap()
        reasons: dict[int, Exception] = {}

        def broken(leader_id: int | None, _epoch: int) -> None:
            if leader_id == victim.node_id:
                raise KeyError("a record of a topic nobody knows")

        victim = next(each for each in world.members.values() if each is not leader)
        victim.quorum.on_leader_change.append(broken)
        victim.quorum.on_failure.append(lambda error: reasons.update({victim.node_id: error}))
        others = [each for each in world.members.values() if each is not victim]
        while not reasons:  # until it is its turn
            for each in others:
                await each.quorum.resign()
            await asyncio.sleep(0.05)
        assert isinstance(reasons[victim.node_id], KeyError)
        assert not victim.quorum.is_leader
        await world.until(lambda: any(each.quorum.is_leader for each in others))

    run_world(World(tmp_path, 3), scenario)


def test_metadata_is_flushed_whatever_else_the_threads_do(tmp_path: Path) -> None:
    """Cleaning, recovery and flushes of records take as long as they take."""

    async def main() -> None:
        async with AsyncCluster(1, data_dir=str(tmp_path)) as cluster:
            broker = cluster.nodes[1].broker
            over = threading.Event()
            busy = [broker.loop.run_in_executor(broker.executor, over.wait) for _ in range(8)]
            try:
                async with asyncio.timeout(20):
                    await broker.metadata_log.append([m.NoOpRecord()])
            finally:
                over.set()
                await asyncio.gather(*busy)

    run(main)
