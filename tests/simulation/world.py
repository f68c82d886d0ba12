"""Nodes, disks, clocks and clients of one simulated world. Everything in it follows from the seed.

A node is the real `moldau.broker.node.node.Node`: only clock, randomness, disk, network and executor are ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import gc
from collections.abc import Callable, Coroutine, Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from moldau.broker.config import load_broker_config, standalone_settings
from moldau.broker.node.identity import WrongDirectory
from moldau.broker.node.node import Node, _set_strays_aside
from moldau.broker.node.registration import RegistrationRefused
from moldau.broker.quorum.errors import LostHistory
from moldau.broker.quorum.quorum import MetadataQuorum
from moldau.broker.quorum.recovery_point import CorruptMetadata
from moldau.controller.image import ClusterImage, PartitionImage
from moldau.groups.partitioning import partition_for_group
from moldau.log.dirs.log_manager import LogManager
from moldau.log.errors import LogError
from moldau.raft.election_state import CorruptQuorumState
from moldau.seams.randomness import SeededRandom
from tests.simulation.append_failures import AppendFailures
from tests.simulation.client import SimClient
from tests.simulation.complaints import Complaints, FailedTasks
from tests.simulation.durability import check_recovery_points
from tests.simulation.history import History, Partition
from tests.simulation.loop import EPOCH_MS, Process, VirtualClock, VirtualLoop
from tests.simulation.network import Fabric, SimNetwork
from tests.simulation.steps import StepLock, Steps
from tests.support.sim_disk import SimDisk

_OFFSETS = "__consumer_offsets"
CLIENT_PORT, CONTROLLER_PORT = 9092, 9093
TIMEOUT_MS = 3000  # after which a broker or a replica is given up
_SMALL = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.assignment.interval.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
_RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
_CLUSTER = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "broker.session.timeout.ms": str(TIMEOUT_MS),
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": str(TIMEOUT_MS),
    "replica.fetch.wait.max.ms": "500",
    "metadata.max.idle.interval.ms": "2000",
    "replica.fetch.backoff.ms": "200",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
}


# What a node says instead of starting; `moldau serve` tells people in these words.
REFUSALS = (WrongDirectory, LostHistory, RegistrationRefused, CorruptMetadata, CorruptQuorumState, LogError, OSError)
_NO_SUCH_FILE = f"[Errno {errno.ENOENT}]"
BROKER, CONTROLLER = "broker", "controller"
BOTH = f"{BROKER},{CONTROLLER}"
_FIRST_CONTROLLER = 101  # of those that are nothing else


@functools.cache
def _partition_of(group: str) -> int:
    return partition_for_group(group, int(_SMALL["offsets.topic.num.partitions"]))


def rack_of(node_id: int) -> str:
    return f"rack-{node_id}"


def _new_disk() -> SimDisk:
    """Files of today: retention goes by a file's age where the records in it are damaged."""
    disk = SimDisk()
    disk.now_ms = EPOCH_MS
    return disk


class SimNode:
    """A machine with a disk. It may run, be stopped, or have died."""

    def __init__(self, world: World, node_id: int, roles: str = BOTH) -> None:
        self.world = world
        self.node_id = node_id
        self.roles = roles
        self.host = f"n{node_id}"
        self.disk = _new_disk()
        self.disks = 1  # how many it has had
        self.clock = VirtualClock(world.loop)
        self.random = SeededRandom(world.random.below(1 << 60))
        self.disk_delay_ms = 0.0
        self.node: Node | None = None  # once it has started
        self.booting: Node | None = None  # from the beginning of its start on
        self.process: Process | None = None
        self.starts = 0
        self.in_repair = 0  # by so many; it is not started then
        self.acted_upon = 0  # the newest image it has had, by offset
        self.is_member = True  # or it has left the cluster, or not joined it yet

    @property
    def is_broker(self) -> bool:
        return BROKER in self.roles

    @property
    def is_voter(self) -> bool:
        """By its settings; where voters are not fixed, the quorum knows."""
        return CONTROLLER in self.roles

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.is_alive

    @property
    def lacks_dirs(self) -> bool:
        """Whether it runs without one of its log dirs."""
        return self.node is not None and not all(each.is_online for each in self.node.broker.logs.dirs.values())

    def _off_loop_delay(self) -> float:
        return (0.1 + self.random.fraction() + self.disk_delay_ms) / 1000

    def start(self) -> None:
        assert not self.is_up
        if self.in_repair or not self.is_member:
            return
        self.starts += 1
        steps = Steps(SeededRandom(self.random.below(1 << 60)))
        self.process = Process(f"{self.host}.{self.starts}", self._off_loop_delay, steps)
        self.disk.at_use = steps.at_disk
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
        self.booting = node
        try:
            await node.start()
        except REFUSALS as error:
            self.world.log(f"{self.host} could not start: {error}")
            self._gone()
            self._end_jobs(self.disk.survived_process())
            return
        self.node = node
        if self.world.thoughtful:
            node.broker.controller.at_once_max = _Whim(SeededRandom(self.random.below(1 << 60)))
        for listener in self.world.on_start:
            listener(self.node_id, node.broker.metadata_log)
        self.world.log(f"{self.host} is up")

    def _failed(self, error: Exception) -> None:
        """It stops itself, as a process does whose metadata can no longer be written."""
        self.world.log(f"{self.host} cannot go on: {error}")
        if _NO_SUCH_FILE in str(error) and not self.disk.unmounted:
            self.world.history.violated("a dir fails only if its disk does", f"{self.host}: {error}")
        self._gone()
        self._end_jobs(self.disk.survived_process())

    def _end_jobs(self, disk: SimDisk) -> None:
        """The next life has this disk; what a job of the former one still does to its own, nobody sees."""
        assert self.process is not None
        assert self.process.steps is not None
        self.disk = disk
        self.process.steps.die()

    def crash(self, *, power_lost: bool) -> None:
        """It stops between two events. Without power, what was not flushed is lost."""
        if not self.is_up:
            return
        self.world.log(f"{self.host} crashes{' without power' if power_lost else ''}")
        self._gone()
        check_recovery_points(self.world.history, self.host, self.disk, self.world.dirs)
        self._end_jobs(
            self.disk.crash(self.world.random.below(1 << 30)) if power_lost else self.disk.survived_process()
        )

    def mend_disk(self, *, keeps_shadows: bool = True) -> None:
        """All that is wrong with it is put right, for its next life. With `keeps_shadows`, what was taken for a new
        disk stays one, and the one that was to be there is given up."""
        assert not self.is_up
        self.disk.heal()
        for path in self.disk.unmounted:
            if keeps_shadows and self.disk.exists(path):
                self.disk.forget(path)
            else:
                self.disk.mount(path)

    def replace_disk(self) -> None:
        """By an empty one."""
        assert not self.is_up
        self.disk = _new_disk()
        self.disks += 1

    def _gone(self) -> None:
        assert self.process is not None
        self.process.is_alive = False
        self.world.graveyard.append(self.booting)
        broker = getattr(self.booting, "broker", None)
        if broker is not None:
            self.acted_upon = max(self.acted_upon, broker.image.offset)
        self.node = self.booting = None
        self.world.fabric.host_died(self.host)

    async def stop(self) -> None:
        """In good order."""
        node, process = self.node, self.process
        if node is None or process is None:
            return
        self.world.log(f"{self.host} stops")
        stopping = self.world.loop.spawn(process, node.stop)
        while process.is_alive and not stopping.done():  # it may be killed meanwhile
            await asyncio.sleep(0.02)
        if process.is_alive:
            stopping.result()
            self._gone()
            self._end_jobs(self.disk.survived_process())


class _Whim(int):
    """A limit that half of what it is compared with exceeds."""

    def __new__(cls, random: SeededRandom) -> _Whim:
        made = super().__new__(cls)
        made._random = random
        return made

    def __lt__(self, other: int) -> bool:
        return not self._random.below(2)

    _random: SeededRandom


class InlineExecutor:
    """The loop runs what is given to it; see `VirtualLoop.run_in_executor`."""

    def submit(self, *_: Any) -> None:
        raise AssertionError("work off the loop goes through loop.run_in_executor")

    def shutdown(self, wait: bool = True) -> None:
        """Nothing runs."""


class World:
    def __init__(
        self,
        seed: int,
        nodes: int = 3,
        settings: Mapping[str, str] | None = None,
        *,
        spare_nodes: int | None = None,
        dirs: int = 1,
        controllers: int = 0,
        racks: bool = False,
        thoughtful: bool = False,
    ) -> None:
        """With `spare_nodes`, voters are not fixed, and so many nodes more may join them. `dirs`: log dirs per node.
        With `controllers`, so many more nodes are the voters, and the others only brokers. With `racks`, each broker
        stands in one of its own, and clients may read there. With `thoughtful`, controllers take next to every command
        for one that is long."""
        self.racks = racks
        self.thoughtful = thoughtful
        # The first has the metadata.
        self.dirs = ["/data", *(f"/data{number}" for number in range(2, dirs + 1))]
        self.seed = seed
        self._settings = dict(settings or {})
        self.random = SeededRandom(seed)
        self.loop = VirtualLoop()
        self.fabric = Fabric(self.loop, SeededRandom(self.random.below(1 << 60)))
        self.history = History()
        self.graveyard: list[Any] = []
        self.lines: list[str] = []
        self._in_repair: set[int] = set()
        self.append_failures = AppendFailures(SeededRandom(self.random.below(1 << 60)))
        self.on_start: list[Callable[[int, Any], None]] = []
        self.is_dynamic = spare_nodes is not None
        self.is_founded = False
        self._doomed = 0
        self._losers: list[tuple[SimNode, int]] = []
        self.nodes = {node_id: SimNode(self, node_id) for node_id in range(1, nodes + (spare_nodes or 0) + 1)}
        for node in list(self.nodes.values())[nodes:]:
            node.is_member = False
        if controllers:
            assert spare_nodes is None
            for node in self.nodes.values():
                node.roles = BROKER
            for node_id in range(_FIRST_CONTROLLER, _FIRST_CONTROLLER + controllers):
                self.nodes[node_id] = SimNode(self, node_id, CONTROLLER)
        # Whether controllers make themselves voters (KIP-1186), or the operator does.
        self.joins_by_itself = self.is_dynamic and bool(self.random.below(2))

    def log(self, line: str) -> None:
        self.lines.append(f"{self.loop.time():9.3f} {line}")

    def settings(self, node: SimNode) -> dict[str, str]:
        if len(self.nodes) == 1:
            dirs = {"log.dirs": ",".join(self.dirs), "metadata.log.dir": self.dirs[0]} if len(self.dirs) > 1 else {}
            return standalone_settings(node.host, CLIENT_PORT, "/data") | _SMALL | self._settings | dirs
        listeners = [f"PLAINTEXT://{node.host}:{CLIENT_PORT}"] if node.is_broker else []
        listeners += [f"CONTROLLER://{node.host}:{CONTROLLER_PORT}"] if node.is_voter else []
        own = {
            "node.id": str(node.node_id),
            "process.roles": node.roles,
            "listeners": ",".join(listeners),
            "log.dirs": ",".join(self.dirs),
            "metadata.log.dir": self.dirs[0],
            **self._quorum_settings(node),
        }
        if self.racks:
            own |= {"broker.rack": rack_of(node.node_id), "replica.selector.class": _RACK_AWARE}
        return _SMALL | _CLUSTER | self._settings | own

    def _quorum_settings(self, node: SimNode) -> dict[str, str]:
        if not self.is_dynamic:
            voters = ",".join(f"{each.node_id}@{each.host}:{CONTROLLER_PORT}" for each in self.voters)
            return {"controller.quorum.voters": voters}
        known = list(self.nodes.values()) if self.is_founded else [next(iter(self.nodes.values()))]
        servers = ",".join(f"{each.host}:{CONTROLLER_PORT}" for each in known)
        joins = "true" if self.joins_by_itself else "false"
        return {"controller.quorum.bootstrap.servers": servers, "controller.quorum.auto.join.enable": joins}

    @property
    def members(self) -> list[SimNode]:
        return [node for node in self.nodes.values() if node.is_member]

    @property
    def brokers(self) -> list[SimNode]:
        return [node for node in self.nodes.values() if node.is_member and node.is_broker]

    @property
    def voters(self) -> list[SimNode]:
        """Where they are fixed."""
        return [node for node in self.nodes.values() if node.is_voter]

    def controllers_image(self) -> ClusterImage | None:
        """What the active controller has committed."""
        for _, quorum in self.quorums():
            if quorum.is_leader:
                return quorum.committed
        return None

    def quorums(self) -> Iterator[tuple[SimNode, MetadataQuorum]]:
        """The metadata of every running node, also of those that are still starting: they may lead already."""
        for each in self.nodes.values():
            broker = getattr(each.booting, "broker", None)
            quorum = getattr(broker, "metadata_log", None)
            if quorum is not None:
                yield each, quorum

    @contextlib.contextmanager
    def about_to_end(self) -> Iterator[None]:
        """A node is going to end uncleanly, now or in a while (its disk is full): nobody is well until it has. To Kafka
        such an end is a loss even if nothing is lost, so another that really loses something could lead again."""
        self._doomed += 1
        try:
            yield
        finally:
            self._doomed -= 1

    def everybody_is_well(self) -> bool:
        """All nodes are up, and will be, and all replicas in sync, as far as anybody knows."""
        if self._doomed:
            return False
        for each in self.members:
            if each.node is None:
                return False
            for topic in each.node.broker.image.topics.values():
                for partition in topic.partitions.values():
                    if len(partition.isr) < len(partition.replicas):
                        return False
        return True

    def note_loss(self, node: SimNode) -> None:
        """Something that counted is gone from a disk, or may be."""
        self._losers.append((node, node.starts))

    def is_whole(self) -> bool:
        """Whether nobody misses anything any more. Until then nobody else may end uncleanly: to Kafka that, too, is a
        loss, and when every replica that was in sync has lost something, the one that led last leads again, whatever
        it has left."""
        if self._losers and self.everybody_is_well() and all(node.starts > then for node, then in self._losers):
            self._losers.clear()
        return not self._losers

    def disk_of(self, host: str) -> int:
        """Which of its disks a host has now."""
        return next(node.disks for node in self.nodes.values() if node.host == host)

    def durable(self, host: str, path: str) -> bytes | None:
        """What of a host's file survives a loss of power."""
        return next(node.disk for node in self.nodes.values() if node.host == host).durable_file(path)

    def directory_of(self, host: str) -> bytes | None:
        """The id of a running node's metadata dir."""
        node = next(node.node for node in self.nodes.values() if node.host == host)
        return None if node is None else node.broker.metadata_log.raft.me.directory_id

    def newest(self, topic: str, index: int) -> PartitionImage | None:
        """What the controllers last committed about a partition, as far as any running node knows it. (Epochs of a
        partition do not tell: another may have had its name before.)"""
        newest = max((quorum for _, quorum in self.quorums()), key=lambda each: each.committed.offset, default=None)
        found = None if newest is None else newest.committed.topics.get(topic)
        return None if found is None else found.partitions.get(index)

    def coordinates(self, host: str, group: str) -> bool:
        """Whether a host is the group's coordinator, and not only believes it."""
        newest = self.newest(_OFFSETS, _partition_of(group))
        return newest is not None and newest.leader in self.nodes and self.nodes[newest.leader].host == host

    def client(self, name: str) -> SimClient:
        bootstrap = [(node.host, CLIENT_PORT) for node in self.nodes.values() if node.is_broker]
        random = SeededRandom(self.random.below(1 << 60))
        client = SimClient(name, SimNetwork(self.fabric, name), bootstrap, self.history, random)
        client.report_damage = self._damaged
        return client

    def _damaged(self, partition: Partition, node_id: int) -> None:
        """Somebody was served damaged records, a client or a follower: the operator replaces that replica."""
        node = self.nodes.get(node_id)
        if node is not None and node.is_up and node_id not in self._in_repair:
            self._in_repair.add(node_id)
            self.spawn("operator", lambda: self._repair(node, partition))

    async def _repair(self, node: SimNode, partition: Partition) -> None:
        """When the quorum can spare it: stop it, wait until it counts nowhere as in sync, take the damaged folder away,
        start it."""
        while not self._can_spare(node):
            await asyncio.sleep(0.1)
        self.log(f"{node.host} is taken out: {partition} is damaged")
        node.crash(power_lost=False)
        node.in_repair += 1
        while any(self._is_in_sync(node.node_id, partition)):
            await asyncio.sleep(0.1)
        for folder in [f"{path}/{partition[0]}-{partition[1]}" for path in self.dirs]:
            if node.disk.exists(folder):
                node.disk.remove_tree(folder)
        node.in_repair -= 1
        if not node.is_up:
            node.start()
        self._in_repair.discard(node.node_id)

    def _can_spare(self, node: SimNode) -> bool:
        """Whether the other voters are enough: one of them may have an empty disk, and count no more."""
        leaders = [quorum for _, quorum in self.quorums() if quorum.is_leader]
        others = [each for each, quorum in self.quorums() if each is not node and quorum.raft.is_voter]
        return bool(leaders) and 2 * len(others) > len(leaders[0].raft.voters)

    def _is_in_sync(self, node_id: int, partition: Partition) -> Iterator[bool]:
        for other in self.nodes.values():
            if other.node is not None:
                topic = other.node.broker.image.topics.get(partition[0])
                yield topic is None or node_id in topic.partitions[partition[1]].isr

    def _task_failed(self, what: str) -> None:
        self.history.violated("no task of a node fails", f"{self.loop.current_name}: {what}")

    def _strays_are_strays(self, logs: LogManager, image: ClusterImage, node_id: int) -> None:
        """A starting node sets aside what its image does not know: that must be no older than the last it had."""
        acted_upon = self.nodes[node_id].acted_upon
        if image.offset < acted_upon:
            self.history.violated(
                "a node starts with an image no older than the last it had",
                f"n{node_id}: {image.offset} after {acted_upon}",
            )
        _set_strays_aside(logs, image, node_id)

    def spawn(self, name: str, make: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        return self.loop.spawn(Process(name), make)

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run to the end; failures nobody handled are violations too.

        What is garbage is collected once, then: a future in it whose error nobody took speaks up when it goes, in every
        run of the seed. Collections in between would cost a sixth of the time."""
        collects = gc.isenabled()
        gc.disable()
        try:
            with (
                patch("moldau.log.jobs.threading", SimpleNamespace(Lock=StepLock)),
                self.append_failures.in_place(lambda: self.loop.current_name.partition(".")[0]),
                Complaints(self._damaged, self._task_failed).in_place(),
                FailedTasks(self._task_failed).in_place(),
                patch("moldau.broker.node.node._set_strays_aside", self._strays_are_strays),
            ):
                return self.loop.run_until_complete(main)
        finally:
            gc.collect()
            if collects:
                gc.enable()
            for failure in [*self.loop.failures, *self.loop.silent_deaths()]:
                self.history.violated("no node fails by itself", failure)
            self.loop.close()
            for node in self.nodes.values():
                if node.process is not None and node.process.steps is not None:
                    node.process.steps.die()  # a job that stands still would keep its thread, and this world
