"""Several metadata quorum members on one loop, talking through the bytes of Kafka's RPCs but without sockets.

Time is virtual: a busy machine cannot make anybody call an election.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from moldau.broker.calls import Call
from moldau.broker.config import load_broker_config
from moldau.broker.config.rules import TableRules
from moldau.broker.controller.local import LocalController
from moldau.broker.quorum.quorum import MetadataQuorum
from moldau.controller import BrokerSessions, ControllerContext
from moldau.controller.features import bootstrap_records
from moldau.controller.image import ClusterImage
from moldau.log.context import LogContext
from moldau.seams import FileRegion
from moldau.seams.network import Disconnected, Payload
from moldau.seams.randomness import SeededRandom
from moldau.timers import TimingWheel
from moldau.wire import Message, apis, decode_request, encode
from moldau.wire import messages as m
from moldau.wire.codec import decode
from moldau.wire.fetch import decode_fetch_request, decode_fetch_response
from tests.simulation.loop import VirtualClock, VirtualLoop

HANDLERS = {
    52: "vote",
    57: "update_features",
    53: "begin_quorum_epoch",
    54: "end_quorum_epoch",
    59: "fetch_snapshot",
    80: "add_raft_voter",
    81: "remove_raft_voter",
    82: "update_raft_voter",
}
QUICK = {
    "controller.quorum.election.timeout.ms": "200",
    "controller.quorum.fetch.timeout.ms": "600",
    "controller.quorum.election.backoff.max.ms": "100",
    "controller.quorum.request.timeout.ms": "600",
}


@dataclass
class _Slot:
    """Where an answer goes."""

    answered: asyncio.Future[bytes]

    def complete(self, payload: Payload) -> None:
        if not self.answered.done():
            self.answered.set_result(b"".join(x.read() if isinstance(x, FileRegion) else bytes(x) for x in payload))


@dataclass
class _Channels:
    """Like `broker.channels.Channels`, straight to the other member."""

    world: World
    sender: int

    async def call(self, host: str, port: int, request: Message, *, timeout_ms: float, lane: str) -> Any:
        await asyncio.sleep(0)
        return await asyncio.wait_for(self.world.deliver(self.sender, port, request), timeout_ms / 1000)


@dataclass
class Member:
    node_id: int
    quorum: MetadataQuorum
    broker: Any
    clock: VirtualClock
    published: list[ClusterImage] = field(default_factory=list)
    leaders: list[tuple[int | None, int]] = field(default_factory=list)


@dataclass
class World:
    root: Path
    size: int
    settings: dict[str, str] = field(default_factory=dict)
    # Without fixed voters: node 1 founds the quorum, the others may join.
    dynamic: bool = False
    directory_ids: dict[int, bytes] = field(default_factory=dict)
    members: dict[int, Member] = field(default_factory=dict)
    cut: set[int] = field(default_factory=set)
    loop: VirtualLoop = field(default_factory=VirtualLoop)

    def config(self, node_id: int) -> Any:
        voters = ",".join(f"{each}@n{each}:{each}" for each in range(1, self.size + 1))
        quorum = {"controller.quorum.voters": voters}
        if self.dynamic:
            quorum = {"controller.quorum.bootstrap.servers": "n1:1" if node_id == 1 else "n1:1,n2:2"}
        roles = "controller" if node_id <= self.size else "broker"
        listener = f"CONTROLLER://n{node_id}:{node_id}" if node_id <= self.size else f"PLAINTEXT://n{node_id}:{node_id}"
        return load_broker_config(
            {
                "process.roles": roles,
                "node.id": str(node_id),
                "controller.listener.names": "CONTROLLER",
                **quorum,
                "listeners": listener,
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                "log.dirs": str(self.root / f"node{node_id}"),
                **QUICK,
                **self.settings,
            }
        )

    def start(self, node_id: int) -> Member:
        config = self.config(node_id)
        clock = VirtualClock(self.loop)
        context = LogContext(clock=clock)
        context.disk.make_dirs(config.metadata_log_dir)  # the log manager's part
        published: list[ClusterImage] = []
        channels = cast("Any", _Channels(self, node_id))
        quorum = MetadataQuorum(
            context,
            config,
            lambda before, after, _: published.append(after),
            Executor(),  # the virtual loop does such work itself
            cluster_id="the-cluster",
            directory_id=self.directory_ids.get(node_id, bytes([node_id]) * 16),
            channels=lambda: channels,
        )
        member = Member(node_id, quorum, SimpleNamespace(metadata_log=quorum, config=config), clock, published)
        quorum.on_leader_change.append(lambda leader_id, epoch: member.leaders.append((leader_id, epoch)))
        quorum.open()
        self.members[node_id] = member
        quorum.start()
        return member

    async def stop(self, node_id: int) -> None:
        await self.members.pop(node_id).quorum.close()

    async def close(self) -> None:
        for node_id in list(self.members):
            await self.stop(node_id)

    async def deliver(self, sender: int, target: int, request: Message) -> Any:
        member = self.members.get(target)
        if member is None or sender in self.cut or target in self.cut:
            raise Disconnected("nobody there")
        api = apis()[request.number]
        version = api.versions.last
        data = encode(request, version)
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        call = Call(api, version, 7, "raft", cast("Any", None), cast("Any", _Slot(answered)))
        if api.name == "Fetch":
            member.quorum.fetch(call, decode_fetch_request(data, 0, version))
            frame = await answered
            if sender in self.cut or target in self.cut:
                raise Disconnected("cut off")
            return decode_fetch_response(memoryview(frame), 5, version)
        if api.name == "ApiVersions":
            levels = m.ApiVersionsResponse.SupportedFeatureKey("kraft.version", 0, 1)
            return m.ApiVersionsResponse(supported_features=[levels])
        handle: Callable[..., Any] = import_module(f"moldau.broker.requests.handlers.{HANDLERS[api.key]}").handle
        response = handle(member.broker, call, decode_request(api.request, version, data))
        if not isinstance(response, Message):
            response = await response
        return decode(api.response, version, encode(response, version))

    # -- waiting

    async def until(self, condition: Callable[[], Any]) -> Any:
        while not (found := condition()):
            await asyncio.sleep(0.005)
        return found

    def active(self) -> Member | None:
        leading = [each for each in self.members.values() if each.quorum.is_leader and each.node_id not in self.cut]
        return max(leading, key=lambda each: each.quorum.epoch, default=None)

    async def leader(self) -> Member:
        return cast("Member", await self.until(self.active))

    async def bootstrap(self) -> Member:
        leader = await self.leader()
        if not leader.quorum.latest.features:
            await leader.quorum.append(bootstrap_records())
        return leader

    async def bootstrap_without(self, late: int) -> Member:
        """Founded by all three, but one of them goes again before anything happens."""
        for node_id in (1, 2, 3):
            self.start(node_id)
        await self.bootstrap()
        await self.stop(late)
        return await self.leader()

    def all_have(self, topic: str) -> bool:
        return all(topic in each.quorum.committed.topics for each in self.members.values())


def controller_of(member: Member) -> LocalController:
    """The active controller of a member that leads, without a broker around it."""
    quorum = member.quorum
    clock = member.clock
    broker = SimpleNamespace(
        metadata_log=quorum,
        clock=clock,
        config=member.broker.config,
        node_id=member.node_id,
        broker_epoch=-1,
        wheel=TimingWheel(clock.monotonic_ms()),
        loop=asyncio.get_running_loop(),
        executor=None,  # the virtual loop does such work itself
        long_look=asyncio.Lock(),
    )
    rules = TableRules(lambda: member.broker.config)
    context = ControllerContext(rules, SeededRandom(1), member.node_id, "the-cluster")
    controller = LocalController(cast("Any", broker), context, BrokerSessions(9_000))
    controller._active_epoch = quorum.epoch
    member.broker.controller = controller
    return controller
