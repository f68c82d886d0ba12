"""Brokers without a quorum: the controller is a function, and the tests say who hears of the image, and when.

Real brokers (dispatch, handlers, replicas, fetchers, logs) on virtual time, a simulated network and simulated disks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

from moldau.broker.broker import Broker
from moldau.broker.channels import Channels
from moldau.broker.config import load_broker_config
from moldau.broker.config.running import updated_config
from moldau.broker.controller.channel import ControllerChannel
from moldau.broker.controller.local import LocalController
from moldau.broker.replicas.fetch_sessions import FetchSessions
from moldau.broker.replicas.flusher import Flusher
from moldau.broker.replicas.manager import ReplicaManager
from moldau.broker.requests.dispatch import Dispatcher
from moldau.controller import diff
from moldau.controller.directories import assign_replicas_to_dirs
from moldau.controller.image import PartitionImage
from moldau.controller.isr import alter_partition
from moldau.log.checkpoints import MetaProperties, uuid_text
from moldau.log.config import LogConfig
from moldau.log.dirs.log_manager import LogManager
from moldau.net import LoopTimers
from moldau.records import build_batch, iter_batches, iter_records
from moldau.seams.randomness import SeededRandom
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m
from tests.controller.world import World as Controller
from tests.simulation.loop import Process, VirtualClock, VirtualLoop
from tests.simulation.network import Fabric, SimNetwork
from tests.simulation.world import InlineExecutor
from tests.support.sim_disk import SimDisk

PORT = 9092
LAG_MAX_MS = 3_000
_SETTINGS = {
    "replica.lag.time.max.ms": str(LAG_MAX_MS),
    "replica.fetch.wait.max.ms": "200",
    "replica.fetch.backoff.ms": "100",
    "process.roles": "broker",
    "controller.quorum.voters": "1000@nowhere:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
}


class _Channel:
    """The way to the controller: a call away, unless the test cut it."""

    def __init__(self, cluster: Cluster, member: Member) -> None:
        self._cluster = cluster
        self._member = member

    async def call(self, request: Message, **_: Any) -> Any:
        await asyncio.sleep(0.001)
        while self._member.is_cut_off:
            await asyncio.sleep(0.01)
        self._cluster.requests.append(request)
        controller = self._cluster.controller
        if isinstance(request, m.AlterPartitionRequest):
            response: Any = controller.run(alter_partition(controller.image, request, controller.context))
        else:
            assert isinstance(request, m.AssignReplicasToDirsRequest)
            response = controller.run(assign_replicas_to_dirs(controller.image, request, controller.context))
        self._cluster.publish()
        await asyncio.sleep(0.001)
        return response


class Member:
    """One broker."""

    def __init__(self, cluster: Cluster, node_id: int, settings: dict[str, str]) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.host = f"n{node_id}"
        self.settings = settings
        self.disk = SimDisk()
        self.disks = 1  # how many it has had
        self.process: Process | None = None
        self.registered_epoch = -1  # what the controller answered when it registered
        self.is_cut_off = False  # from the controller: hears nothing, and is not heard
        self.broker: Broker

    def start(self) -> asyncio.Task[None]:
        self.process = Process(self.host)
        self.cluster.processes.append(self.process)
        return self.cluster.loop.spawn(self.process, self._run)

    async def _run(self) -> None:
        cluster = self.cluster
        clock = VirtualClock(cluster.loop)
        random = SeededRandom(self.node_id)
        self.disk.locks.clear()
        config = load_broker_config(
            _SETTINGS
            | {"node.id": str(self.node_id), "listeners": f"PLAINTEXT://{self.host}:{PORT}", "log.dirs": "/data"}
            | self.settings
        )
        self.timers = LoopTimers(cluster.loop, clock)
        logs = LogManager(
            config.log_dirs, disk=self.disk, clock=clock, random=random, config_for=lambda topic: LogConfig()
        )
        logs.open_dirs()
        for number, log_dir in enumerate(logs.dirs.values()):
            log_dir.properties = MetaProperties(
                "a-cluster", self.node_id, uuid_text(directory_id(self.node_id, number, self.disks))
            )
        logs.open()
        self.broker = broker = Broker(
            config=config,
            cluster_id="a-cluster",
            loop=cluster.loop,
            clock=clock,
            random=random,
            wheel=self.timers.wheel,
            logs=logs,
            fetch_sessions=FetchSessions(random, 100),
            network=SimNetwork(cluster.fabric, self.host),
            executor=cast(Any, InlineExecutor()),
            has_own_threads=False,
        )
        broker.replicas = ReplicaManager(broker)
        broker.flusher = Flusher(broker.executor, broker.replicas.flushed)
        broker.controller = cast(LocalController, SimpleNamespace(kraft_version=0, is_active=False))
        broker.controller_channel = cast(ControllerChannel, _Channel(cluster, self))
        self.publish()
        dispatcher = Dispatcher(broker)
        await broker.network.listen(self.host, PORT, dispatcher, name="PLAINTEXT")
        broker.broker_epoch = self.registered_epoch
        for _ in broker.replicas.start():
            pass
        dispatcher.open()

    def publish(self) -> None:
        """The broker hears of the newest image."""
        broker, after = self.broker, self.cluster.controller.image
        before, broker.image = broker.image, after
        delta = diff(before, after)
        broker.config = updated_config(broker.config, after, delta)
        broker.replicas.apply(after, delta, broker.config)

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.is_alive

    def crash(self, *, power_lost: bool = False) -> None:
        assert self.process is not None
        self.registered_epoch = -1
        self.process.is_alive = False
        self.cluster.fabric.host_died(self.host)
        self.timers.close()
        self.disk = self.disk.crash(1) if power_lost else self.disk.survived_process()


def directory_id(node_id: int, number: int, disk: int = 1) -> bytes:
    return b"d" * 13 + bytes([disk, number, node_id])


class Cluster:
    """`with Cluster(3) as cluster: cluster.run(test)`: brokers 1, 2, 3 and a controller that commits at once."""

    def __init__(self, members: int, **settings: str) -> None:
        self.loop = VirtualLoop()
        self.fabric = Fabric(self.loop, SeededRandom(7))
        self.controller = Controller()
        self.requests: list[Message] = []
        self.processes: list[Process] = []
        own = {name.replace("_", "."): value for name, value in settings.items()}
        self.members = {each: Member(self, each, dict(own)) for each in range(1, members + 1)}
        self.channels = Channels(SimNetwork(self.fabric, "client"), "client")

    def run(self, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            for node_id in self.members:
                self.register(node_id)
            await asyncio.gather(*(member.start() for member in self.members.values()))
            await asyncio.wait_for(test(), 600)

        try:
            self.loop.run_until_complete(main())
            assert not self.loop.failures, self.loop.failures
        finally:
            self.loop.run_until_complete(self._end())
            self.loop.close()

    async def _end(self) -> None:
        """Let everything end that waits for anything, of dead processes too."""
        for process in self.processes:
            process.is_alive = True
        for member in self.members.values():
            member.timers.close()
        others = [task for task in self.loop.tasks if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def register(self, node_id: int, *, incarnation: int = 0) -> None:
        from moldau.controller.brokers import register_broker

        controller, member = self.controller, self.members[node_id]
        controller.now_ms += 60_000  # the session of another incarnation is over
        request = controller.registration(node_id, rack=member.settings.get("broker.rack"), incarnation=incarnation)
        dirs = len(member.settings.get("log.dirs", "/data").split(","))
        request.log_dirs = [directory_id(node_id, number, member.disks) for number in range(dirs)]
        request.listeners = [m.BrokerRegistrationRequest.Listener("PLAINTEXT", member.host, PORT, 0)]
        answer = controller.run(register_broker(controller.image, request, controller.context, controller.sessions))
        assert answer.error_code == ErrorCode.NONE
        member.registered_epoch = answer.broker_epoch
        controller.heartbeat(node_id)

    def publish(self) -> None:
        for member in self.members.values():
            if member.is_up and not member.is_cut_off:
                member.publish()

    def decide(self, *records: Message) -> None:
        """The controller commits these; whoever listens hears of it."""
        self.controller.commit(records)
        self.publish()

    def create(self, name: str, *assignments: list[int], **configs: str) -> None:
        self.controller.create_assigned(name, *assignments, **configs)
        self.publish()

    def image(self, topic: str, index: int = 0) -> PartitionImage:
        return self.controller.partition(topic, index)

    def topic_id(self, topic: str) -> bytes:
        return self.controller.image.topics[topic].topic_id

    def change(self, topic: str, index: int = 0, **fields: Any) -> None:
        """A PartitionChangeRecord."""
        record = m.PartitionChangeRecord(partition_id=index, topic_id=self.topic_id(topic))
        for name, value in fields.items():
            setattr(record, name, value)
        self.decide(record)

    def elect(self, topic: str, leader: int, isr: list[int]) -> None:
        self.change(topic, leader=leader, isr=isr)

    def log(self, node_id: int, topic: str, index: int = 0) -> Any:
        partition = self.members[node_id].broker.replicas.get(topic, index)
        assert partition is not None
        return partition.log

    def values(self, node_id: int, topic: str, index: int = 0) -> list[str]:
        """All records in a replica's log, committed or not."""
        log = self.log(node_id, topic, index)
        if log.log_start_offset == log.log_end_offset:
            return []
        return _values(log.read(log.log_start_offset, 1 << 20).region.read(), log.log_start_offset)

    async def until(self, condition: Callable[[], bool], what: str = "") -> None:
        for _ in range(3_000):
            if condition():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(what or "the condition did not come true within 30 s")

    async def produce(
        self, node_id: int, topic: str, *values: str, acks: int = -1, timeout_ms: int = 5_000, index: int = 0
    ) -> ErrorCode:
        kind = m.ProduceRequest
        batch = build_batch([(number, 1_000, None, value.encode(), ()) for number, value in enumerate(values)])
        request = kind(
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=[
                kind.TopicProduceData(
                    topic_id=self.topic_id(topic), partition_data=[kind.PartitionProduceData(index, bytes(batch))]
                )
            ],
        )
        response = await self.channels.call(self.members[node_id].host, PORT, request, timeout_ms=20_000, lane=topic)
        return ErrorCode(response.responses[0].partition_responses[0].error_code)

    async def fetch(self, node_id: int, topic: str, offset: int, *, index: int = 0, **fields: Any) -> Any:
        """One partition of the answer; `replica=(id, epoch)` asks as a follower does."""
        kind = m.FetchRequest
        wanted = kind.FetchPartition(
            index,
            fields.pop("leader_epoch", -1),
            offset,
            fields.pop("last_epoch", -1),
            fields.pop("start_offset", -1),
            1 << 20,
        )
        request = kind(
            max_wait_ms=fields.pop("max_wait_ms", 0),
            min_bytes=1,
            topics=[kind.FetchTopic(topic_id=self.topic_id(topic), partitions=[wanted])],
            rack_id=fields.pop("rack", ""),
        )
        if "replica" in fields:
            request.replica_state = kind.ReplicaState(*fields.pop("replica"))
        assert not fields
        response = await self.channels.call(self.members[node_id].host, PORT, request, timeout_ms=20_000, lane="f")
        return response.topics[0][1][0]

    async def read(self, node_id: int, topic: str, offset: int = 0) -> list[str]:
        """What a consumer sees."""
        result = await self.fetch(node_id, topic, offset)
        assert result.error_code == 0, ErrorCode(result.error_code).name
        return _values(b"".join(bytes(each) for each in result.records), offset)


def _values(data: bytes, first_offset: int) -> list[str]:
    return [
        (record.value or b"").decode()
        for position, _ in iter_batches(data)
        for record in iter_records(data, position)
        if record.offset >= first_offset
    ]
