"""A cluster inside this process, for tests: real nodes, real sockets, one event loop.

    with Cluster(nodes=3) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        cluster.crash(1)

Nodes are numbered from 1. They can be stopped in an orderly way, crashed (nobody is told) and started again on what
they left behind. For tests that kill processes, run `moldau cluster`.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from moldau.testing.faults import Faults
from moldau.testing.loop_thread import LoopThread
from moldau.testing.ports import free_ports
from moldau.testing.settings import Settings, as_texts
from moldau.testing.topics import Topics, as_topics, create_topics

if TYPE_CHECKING:
    from moldau.broker.node.node import Node
    from moldau.testing.records import Bytes, Received

T = TypeVar("T")

# A test should not wait for what protects production from false alarms, nor have old records deleted meanwhile.
_DEFAULTS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "log.retention.check.interval.ms": "86400000",
    "controller.quorum.election.timeout.ms": "500",
    "broker.heartbeat.interval.ms": "200",
    "broker.session.timeout.ms": "3000",
    "replica.lag.time.max.ms": "5000",
}
_START_SECONDS_MAX = 60
_LOOK_SECONDS = 0.01


class AsyncCluster:
    """The same inside a running event loop: `async with AsyncCluster(nodes=3) as cluster: …`."""

    def __init__(
        self,
        nodes: int = 3,
        settings: Settings | None = None,
        *,
        data_dir: str | None = None,
        topics: Topics | None = None,
    ) -> None:
        """`settings` are server.properties of every node; `data_dir` is kept afterwards, and a temporary one is not;
        `topics` are there from the start, with three replicas if there are three nodes."""
        if not isinstance(nodes, int):
            raise TypeError(f"nodes={nodes!r}: give how many there are")
        if nodes < 1:
            raise ValueError(f"nodes={nodes}: a cluster has at least one")
        self._count = nodes
        self._is_started = self._is_over = False
        self._topics = as_topics(topics)
        self.faults: dict[int, Faults] = {}
        self._settings = as_texts(settings)
        self._is_temporary = data_dir is None
        self.data_dir = data_dir or ""  # a temporary one is made by `start`: who never starts leaves nothing behind
        self.nodes: dict[int, Node] = {}
        self.settings: dict[int, dict[str, str]] = {}

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, running or not; those they had, once it is stopped."""
        if not self.settings:
            self._check_is_started()
        return ",".join(self.address(number) for number in sorted(self.settings) if self._is_broker(number))

    def _is_broker(self, number: int) -> bool:
        return "broker" in self.settings[number]["process.roles"]

    def address(self, number: int) -> str:
        """Where clients reach this node, running or not."""
        if number not in self.settings:
            self._check_there_is(number)
        listener = self.settings[number]["listeners"].split(",")[0]
        return listener.partition("://")[2]

    async def start(self) -> Self:
        """Return when all nodes serve clients, and `topics` are there. A cluster is started once."""
        from moldau.broker.config.cluster import NodePorts, cluster_settings

        if self._is_started:
            raise RuntimeError("this cluster was started before; make a new one")
        self._is_started = True
        if self._is_temporary:
            self.data_dir = tempfile.mkdtemp(prefix="moldau-")
        ports = free_ports(self._count * 2)
        pairs = [NodePorts(*ports[place : place + 2]) for place in range(0, len(ports), 2)]
        for number, each in enumerate(cluster_settings("127.0.0.1", pairs, self.data_dir), start=1):
            self.settings[number] = each | _DEFAULTS | self._settings
        try:
            await self._start_all()
            await self.create_topics(self._topics)
        except BaseException:
            await self.stop()
            raise
        return self

    async def _start_all(self) -> None:
        """Or none: whoever is on the way when one cannot start is given up before the others are stopped."""
        starts = [asyncio.ensure_future(self.start_node(number)) for number in self.settings]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for each in starts:
                each.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            raise

    async def add_broker(self, number: int, settings: Settings | None = None) -> None:
        """One more node, which is a broker only: the quorum stays what it is."""
        self._check_is_started()
        if number in self.settings:
            raise ValueError(f"there is a node {number} already")
        (port,) = free_ports(1)
        first = next(iter(self.settings.values()))
        self.settings[number] = (
            first
            | {
                "node.id": str(number),
                "process.roles": "broker",
                "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "log.dirs": f"{self.data_dir}/node-{number}",
            }
            | as_texts(settings)
        )
        try:
            await self.start_node(number)
        except BaseException:
            # It never was one of this cluster: nobody is sent there, and it can be tried again.
            del self.settings[number]
            raise

    async def create_topics(self, topics: Topics) -> None:
        """As `topics=` does, now."""
        self._check_is_started()
        if not self.nodes:
            raise RuntimeError("no node of this cluster is running")
        await create_topics(next(iter(self.nodes.values())), as_topics(topics), replicas=min(3, self._count))

    def client_settings(self) -> dict[str, Any]:
        """What a client of librdkafka needs to know to connect."""
        return {"bootstrap.servers": self.bootstrap_servers}

    async def produce(
        self,
        topic: str,
        values: Iterable[Bytes],
        *,
        key: Bytes | Callable[[Bytes], Bytes] = None,
        headers: dict[str, bytes] | None = None,
        partition: int | None = None,
        seconds: float = 20.0,
    ) -> list[tuple[int, int]]:
        """As `Broker.produce`, on a thread of its own: the loop goes on."""
        from moldau.testing.records import produce

        self._check_is_started()
        send = partial(produce, key=key, headers=headers, partition=partition, seconds=seconds)
        return await asyncio.to_thread(send, self.client_settings(), topic, values)

    async def read(self, topic: str, count: int | None = None, *, seconds: float = 20.0) -> list[Received]:
        """As `Broker.read`, on a thread of its own: the loop goes on."""
        from moldau.testing.records import read

        self._check_is_started()
        return await asyncio.to_thread(read, self.client_settings(), topic, count, seconds=seconds)

    async def start_node(self, number: int) -> None:
        """Start one again that was stopped or has crashed, on what it left behind."""
        from moldau.broker.config import load_broker_config
        from moldau.broker.node.node import Node
        from moldau.testing.throwaway_disk import FillableDisk, ThrowawayDisk

        self._check_there_is(number)
        if number in self.nodes:
            raise ValueError(f"node {number} is running already")
        faults = self.faults.setdefault(number, Faults())
        disk = (ThrowawayDisk if self._is_temporary else FillableDisk)(faults)
        node = Node(load_broker_config(self.settings[number]), disk=disk, wrap_network=faults.network)
        await node.start()
        self.nodes[number] = node

    async def stop_node(self, number: int) -> None:
        """In an orderly way: leaderships move first."""
        await self._running(number).stop()

    async def crash(self, number: int) -> None:
        """Without telling anybody, and without flushing anything."""
        await self._running(number).abort()

    def _running(self, number: int) -> Node:
        """Which is none of the running ones any more."""
        self._check_there_is(number)
        if number not in self.nodes:
            raise ValueError(f"node {number} is not running: start_node({number}) starts it")
        return self.nodes.pop(number)

    def _check_there_is(self, number: int) -> None:
        self._check_is_started()
        if number not in self.settings:
            raise ValueError(f"there is no node {number}; there are {', '.join(map(str, sorted(self.settings)))}")

    def _check_is_started(self) -> None:
        if not self._is_started:
            raise RuntimeError("this cluster is not started: use it as a context manager, or call start()")
        if self._is_over:
            raise RuntimeError("this cluster is stopped")

    async def restart(self, number: int) -> None:
        """Stop a node in an orderly way, and start it again."""
        await self.stop_node(number)
        await self.start_node(number)

    async def cut(self, *numbers: int) -> None:
        """These nodes and all others no longer reach each other; clients reach both. The cut before is undone."""
        for number in numbers:
            self._check_there_is(number)
        ports = {number: self._ports(number) for number in self.settings}
        for number, node in self.nodes.items():
            others = [each for each in ports if (each in numbers) != (number in numbers)]
            await self.faults[number].cut(node.broker.network, frozenset().union(*(ports[each] for each in others)))

    async def heal(self) -> None:
        """Everybody reaches everybody again."""
        await self.cut()

    def _ports(self, number: int) -> frozenset[int]:
        return frozenset(int(each.rpartition(":")[2]) for each in self.settings[number]["listeners"].split(","))

    def controller_id(self) -> int | None:
        """The active controller, as far as any running node is it."""
        return next((number for number, node in self.nodes.items() if node.broker.controller.is_active), None)

    async def stop(self) -> None:
        """All at once: in an orderly way if the data is kept, quickly otherwise."""
        self._is_over = self._is_started
        nodes, self.nodes = list(self.nodes.values()), {}
        for faults in self.faults.values():
            faults.resume()
        try:
            await asyncio.gather(*(node.abort() if self._is_temporary else node.stop() for node in nodes))
        finally:
            if self._is_temporary and self.data_dir:
                shutil.rmtree(self.data_dir, ignore_errors=True)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class Cluster:
    """A cluster on a thread of its own; use it as a context manager."""

    def __init__(
        self,
        nodes: int = 3,
        settings: Settings | None = None,
        *,
        data_dir: str | None = None,
        topics: Topics | None = None,
    ) -> None:
        """`settings` are server.properties of every node; `data_dir` is kept afterwards, and a temporary one is not;
        `topics` are there from the start, with three replicas if there are three nodes."""
        self.inner = AsyncCluster(nodes, settings, data_dir=data_dir, topics=topics)
        self._thread = LoopThread("cluster")

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, for clients."""
        return self.inner.bootstrap_servers

    def client_settings(self) -> dict[str, Any]:
        """What a client of librdkafka needs to know to connect."""
        return {"bootstrap.servers": self.bootstrap_servers}

    @property
    def faults(self) -> dict[int, Faults]:
        """Let things go wrong with a node, by its number: see `moldau.testing.faults`."""
        return self.inner.faults

    def create_topics(self, topics: Topics) -> None:
        """As `topics=` does, now."""
        self.run(self.inner.create_topics(topics))

    def produce(
        self,
        topic: str,
        values: Iterable[Bytes],
        *,
        key: Bytes | Callable[[Bytes], Bytes] = None,
        headers: dict[str, bytes] | None = None,
        partition: int | None = None,
        seconds: float = 20.0,
    ) -> list[tuple[int, int]]:
        """Send, and return (partition, offset) of each in order, once all are acknowledged."""
        from moldau.testing.records import produce

        self._thread.check_is_running()
        return produce(
            self.client_settings(), topic, values, key=key, headers=headers, partition=partition, seconds=seconds
        )

    def read(self, topic: str, count: int | None = None, *, seconds: float = 20.0) -> list[Received]:
        """See `Broker.read`."""
        from moldau.testing.records import read

        self._thread.check_is_running()
        return read(self.client_settings(), topic, count, seconds=seconds)

    def cut(self, *numbers: int) -> None:
        """These nodes and all others no longer reach each other; clients reach both. The cut before is undone."""
        self.run(self.inner.cut(*numbers))

    def heal(self) -> None:
        """Everybody reaches everybody again."""
        self.run(self.inner.heal())

    def address(self, number: int) -> str:
        """Where clients reach this node, running or not."""
        return self.inner.address(number)

    def start(self) -> Self:
        """Return when all nodes serve clients, and `topics` are there. A cluster is started once."""
        self._thread.start()
        try:
            self.run(self.inner.start())
        except BaseException:
            self._thread.end()
            raise
        return self

    def run(self, work: Coroutine[Any, Any, T], timeout: float = _START_SECONDS_MAX) -> T:
        """Do something on the cluster's loop, and wait for it."""
        return self._thread.run(work, timeout)

    def start_node(self, number: int) -> None:
        """Start one again that was stopped or has crashed, on what it left behind."""
        self.run(self.inner.start_node(number))

    def add_broker(self, number: int, settings: Settings | None = None) -> None:
        """One more node, which is a broker only: the quorum stays what it is."""
        self.run(self.inner.add_broker(number, settings))

    def stop_node(self, number: int) -> None:
        """In an orderly way: leaderships move first."""
        self.run(self.inner.stop_node(number))

    def crash(self, number: int) -> None:
        """Without telling anybody, and without flushing anything."""
        self.run(self.inner.crash(number))

    def restart(self, number: int) -> None:
        """Stop a node in an orderly way, and start it again."""
        self.run(self.inner.restart(number))

    def controller_id(self) -> int:
        """The active controller; the next one, if it is being elected. TimeoutError if there is none for long."""
        return self.run(self._wait_for_controller())

    async def _wait_for_controller(self) -> int:
        while (number := self.inner.controller_id()) is None:  # noqa: ASYNC110 - nodes tell nobody who is not one
            await asyncio.sleep(_LOOK_SECONDS)
        return number

    def stop(self) -> None:
        """Stopping twice is fine."""
        if not self._thread.is_running:
            return
        try:
            self.run(self.inner.stop())
        finally:
            self._thread.end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
