"""Nodes, disks, clocks and clients of one simulated world. Everything in it follows from the seed.

A node is the real `moldau.broker.node.Node`: only clock, randomness, disk, network and executor are ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from moldau.broker.config import load_broker_config, standalone_settings
from moldau.broker.node import Node
from moldau.broker.registration import RegistrationRefused
from moldau.log.errors import StorageError
from moldau.seams.randomness import SeededRandom
from tests.simulation.client import SimClient
from tests.simulation.history import History, Partition
from tests.simulation.loop import Process, VirtualClock, VirtualLoop
from tests.simulation.network import Fabric, SimNetwork
from tests.support.sim_disk import SimDisk

CLIENT_PORT, CONTROLLER_PORT = 9092, 9093
_SMALL = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
_CLUSTER = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.wait.max.ms": "200",
    "replica.fetch.backoff.ms": "200",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
}


class SimNode:
    """A machine with a disk. It may run, be stopped, or have died."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.host = f"n{node_id}"
        self.disk = SimDisk()
        self.clock = VirtualClock(world.loop)
        self.random = SeededRandom(world.random.below(1 << 60))
        self.disk_delay_ms = 0.0
        self.node: Node | None = None
        self.process: Process | None = None
        self.starts = 0
        self.in_repair = False

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.is_alive

    def _off_loop_delay(self) -> float:
        return (0.1 + self.random.fraction() + self.disk_delay_ms) / 1000

    def start(self) -> None:
        assert not self.is_up
        if self.in_repair:
            return
        self.starts += 1
        self.process = Process(f"{self.host}.{self.starts}", self._off_loop_delay)
        self.world.loop.spawn(self.process, self._run)

    async def _run(self) -> None:
        self.disk.locks.clear()
        node = Node(
            load_broker_config(self.world.settings(self)),
            clock=self.clock,
            random=self.random,
            disk=self.disk,
            network=SimNetwork(self.world.fabric, self.host),
            executor=InlineExecutor(),  # type: ignore[arg-type]  # the loop runs it, see VirtualLoop
        )
        node.on_failure = self._failed
        try:
            await node.start()
        except (OSError, RegistrationRefused, StorageError) as error:
            self.world.log(f"{self.host} could not start: {error}")
            self._gone()
            return
        self.node = node
        for listener in self.world.on_start:
            listener(self.node_id, node.broker.metadata_log)
        self.world.log(f"{self.host} is up")

    def _failed(self, error: Exception) -> None:
        """It stops itself, as a process does whose metadata can no longer be written."""
        self.world.log(f"{self.host} cannot go on: {error}")
        self._gone()
        self.disk = self.disk.survived_process()

    def crash(self, *, power_lost: bool) -> None:
        """It stops between two events. Without power, what was not flushed is lost."""
        if not self.is_up:
            return
        self.world.log(f"{self.host} crashes{' without power' if power_lost else ''}")
        self._gone()
        self.disk = self.disk.crash(self.world.random.below(1 << 30)) if power_lost else self.disk.survived_process()

    def _gone(self) -> None:
        assert self.process is not None
        self.process.is_alive = False
        self.world.graveyard.append(self.node)
        self.node = None
        self.world.fabric.host_died(self.host)

    async def stop(self) -> None:
        """In good order."""
        node, process = self.node, self.process
        if node is None or process is None:
            return
        self.world.log(f"{self.host} stops")
        await self.world.loop.spawn(process, node.stop)
        if process.is_alive:
            self._gone()


class InlineExecutor:
    """The loop runs what is given to it; see `VirtualLoop.run_in_executor`."""

    def submit(self, *_: Any) -> None:
        raise AssertionError("work off the loop goes through loop.run_in_executor")

    def shutdown(self, wait: bool = True) -> None:
        """Nothing runs."""


class World:
    def __init__(self, seed: int, nodes: int = 3) -> None:
        self.seed = seed
        self.random = SeededRandom(seed)
        self.loop = VirtualLoop()
        self.fabric = Fabric(self.loop, SeededRandom(self.random.below(1 << 60)))
        self.history = History()
        self.graveyard: list[Any] = []
        self.lines: list[str] = []
        self._in_repair: set[int] = set()
        self.on_start: list[Callable[[int, Any], None]] = []
        self.nodes = {node_id: SimNode(self, node_id) for node_id in range(1, nodes + 1)}

    def log(self, line: str) -> None:
        self.lines.append(f"{self.loop.time():9.3f} {line}")

    def settings(self, node: SimNode) -> dict[str, str]:
        if len(self.nodes) == 1:
            return standalone_settings(node.host, CLIENT_PORT, "/data") | _SMALL
        voters = ",".join(f"{each.node_id}@{each.host}:{CONTROLLER_PORT}" for each in self.nodes.values())
        listeners = f"PLAINTEXT://{node.host}:{CLIENT_PORT},CONTROLLER://{node.host}:{CONTROLLER_PORT}"
        own = {
            "node.id": str(node.node_id),
            "controller.quorum.voters": voters,
            "listeners": listeners,
            "log.dirs": "/data",
        }
        return _SMALL | _CLUSTER | own

    def client(self, name: str) -> SimClient:
        bootstrap = [(node.host, CLIENT_PORT) for node in self.nodes.values()]
        random = SeededRandom(self.random.below(1 << 60))
        client = SimClient(name, SimNetwork(self.fabric, name), bootstrap, self.history, random)
        client.report_damage = self._damaged
        return client

    def _damaged(self, partition: Partition, node_id: int) -> None:
        """Somebody was served damaged records: the operator replaces that replica."""
        node = self.nodes.get(node_id)
        if node is not None and node.is_up and node_id not in self._in_repair:
            self._in_repair.add(node_id)
            self.spawn("operator", lambda: self._repair(node, partition))

    async def _repair(self, node: SimNode, partition: Partition) -> None:
        """Stop it, wait until it counts nowhere as in sync, take the damaged folder away, start it."""
        self.log(f"{node.host} is taken out: {partition} is damaged")
        node.crash(power_lost=False)
        node.in_repair = True
        while any(self._is_in_sync(node.node_id, partition)):
            await asyncio.sleep(0.1)
        node.disk.remove_tree(f"/data/{partition[0]}-{partition[1]}")
        node.in_repair = False
        if not node.is_up:
            node.start()
        self._in_repair.discard(node.node_id)

    def _is_in_sync(self, node_id: int, partition: Partition) -> Iterator[bool]:
        for other in self.nodes.values():
            if other.node is not None:
                topic = other.node.broker.image.topics.get(partition[0])
                yield topic is None or node_id in topic.partitions[partition[1]].isr

    def spawn(self, name: str, make: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        return self.loop.spawn(Process(name), make)

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run to the end; failures nobody handled are violations too."""
        try:
            return self.loop.run_until_complete(main)
        finally:
            for failure in self.loop.failures:
                self.history.violated("no node fails by itself", failure)
            self.loop.close()
