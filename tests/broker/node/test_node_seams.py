"""A node that is given its world uses nothing else: no threads of its own, no sockets of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from moldau.broker.channels import Channels
from moldau.broker.config import load_broker_config, standalone_settings
from moldau.broker.config.cluster import NodePorts, cluster_settings
from moldau.broker.node.node import Node
from moldau.log.dirs.opening import OpenJob
from moldau.net import RealNetwork, new_event_loop
from moldau.seams.network import FrameHandler, Listener
from moldau.seams.randomness import SeededRandom
from moldau.wire import messages as m


class Inline(Executor):
    """Runs what it is given at once, here."""

    def __init__(self) -> None:
        self.count = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.count += 1
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class RecordingNetwork(RealNetwork):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    async def listen(self, host: str, port: int, handler: FrameHandler, *, name: str, **rest: Any) -> Listener:  # type: ignore[override]  # passes everything on
        self.names.append(name)
        return await super().listen(host, port, handler, name=name, **rest)


def test_the_given_network_and_executor_are_the_only_ones(tmp_path: Path) -> None:
    async def main() -> None:
        network, executor, outside = RecordingNetwork(), Inline(), RealNetwork()
        settings = standalone_settings("127.0.0.1", 0, str(tmp_path))
        before = threading.active_count()
        node = Node(load_broker_config(settings), random=SeededRandom(5), network=network, executor=executor)
        await node.start()
        channels = Channels(outside, "test")
        ((host, port),) = node.addresses.values()
        topic = m.CreateTopicsRequest.CreatableTopic("t", 3, 1)
        created = await channels.call(host, port, m.CreateTopicsRequest(topics=[topic]))
        assert [each.error_code for each in created.topics] == [0]
        assert threading.active_count() == before
        assert executor.count > 0
        assert network.names == ["PLAINTEXT"]
        await channels.close()
        await outside.stop(0)
        await node.stop()
        assert threading.active_count() == before

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(asyncio.wait_for(main(), 20))


class Held(ThreadPoolExecutor):
    """A pool in which opening logs takes until the test lets it end."""

    def __init__(self) -> None:
        super().__init__(2)
        self.is_opening = threading.Event()
        self.may_open = threading.Event()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not isinstance(getattr(fn, "__self__", None), OpenJob):
            return super().submit(fn, *args, **kwargs)

        def held() -> Any:
            self.is_opening.set()
            assert self.may_open.wait(30)
            return fn(*args, **kwargs)

        return super().submit(held)


def controller_settings(folder: Path) -> dict[str, str]:
    """A quorum of one, with a listener for controllers."""
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("127.0.0.1", 0))
        ports = NodePorts(first.getsockname()[1], second.getsockname()[1])
    (settings,) = cluster_settings("127.0.0.1", [ports], str(folder))
    return settings


def test_the_quorum_is_served_while_the_logs_are_opened(tmp_path: Path) -> None:
    config = load_broker_config(controller_settings(tmp_path))

    async def main() -> None:
        held, outside = Held(), RealNetwork()
        node = Node(config, executor=held)
        starting = asyncio.create_task(node.start())
        await asyncio.to_thread(held.is_opening.wait, 30)
        channels = Channels(outside, "test")
        host, port = node.addresses["CONTROLLER"]
        kind = m.DescribeQuorumRequest
        question = kind([kind.TopicData("__cluster_metadata", [kind.PartitionData(0)])])
        answer = await channels.call(host, port, question)
        assert answer.topics[0].partitions[0].leader_id == config.node_id
        assert not starting.done()
        held.may_open.set()
        await starting
        assert node.broker.logs.online_dirs
        await channels.close()
        await outside.stop(0)
        await node.stop()
        held.shutdown()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


def test_a_start_that_is_given_up_waits_until_nothing_writes_into_the_dirs(tmp_path: Path) -> None:
    config = load_broker_config(controller_settings(tmp_path))

    async def main() -> None:
        held = Held()
        node = Node(config, executor=held)
        starting = asyncio.create_task(node.start())
        await asyncio.to_thread(held.is_opening.wait, 30)
        starting.cancel()
        await asyncio.sleep(0)
        assert not starting.done()
        held.may_open.set()
        await asyncio.wait([starting])
        assert starting.cancelled()
        held.shutdown()
        again = Node(config)  # the dirs are free
        await again.start()
        await again.stop()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
