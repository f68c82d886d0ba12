"""A node that is given its world uses nothing else: no threads of its own, no sockets of its own."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from moldau.broker.channels import Channels
from moldau.broker.config import load_broker_config, standalone_settings
from moldau.broker.node import Node
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
