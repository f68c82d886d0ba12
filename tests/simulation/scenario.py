"""One seed: a world, a workload, trouble, peace, and the verdict."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.simulation.client import SimClient, read_all, read_on, write_idempotently, write_transactionally
from tests.simulation.faults import Faults
from tests.simulation.group_member import GroupMember
from tests.simulation.history import Partition
from tests.simulation.observer import Observer
from tests.simulation.world import World

# Virtual seconds: after the trouble has ended, everything works again within this time.
CATCH_UP_S = 90.0


@dataclass(slots=True, frozen=True)
class Plan:
    """How much of what."""

    nodes: int = 3
    trouble_s: float = 8.0
    partitions: int = 2
    writers: int = 2
    transactional_writers: int = 1
    members: int = 2
    readers: bool = True
    kinds: tuple[str, ...] = ()
    power: bool = True


@dataclass(slots=True)
class Verdict:
    """What came out."""

    seed: int
    violations: list[str]
    virtual_s: float
    events: int
    acked: int
    transactions: int
    faults: Counter[str]
    trace: str
    lines: list[str] = field(repr=False, default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


def _values(name: str) -> Iterator[bytes]:
    return (f"{name}-{number}".encode() for number in count())


async def create_topic(client: SimClient, name: str, partitions: int, replicas: int) -> None:
    # A new segment every second or so: there are cold ones to rot, and to be read from.
    config = m.CreateTopicsRequest.CreatableTopicConfig("segment.ms", "1500")
    topic = m.CreateTopicsRequest.CreatableTopic(name, partitions, replicas, configs=[config])
    while True:
        response = await client.any_broker(m.CreateTopicsRequest(topics=[topic], timeout_ms=2_000))
        if response.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            return
        await asyncio.sleep(0.2)


class _Run:
    def __init__(self, seed: int, plan: Plan) -> None:
        self.plan = plan
        self.world = World(seed, plan.nodes)
        self.faults = Faults(self.world, kinds=list(plan.kinds) or None, power=plan.power and plan.nodes > 1)
        self.observer = Observer(self.world)
        self.world.on_start.append(self.observer.watch)
        self.writers: list[SimClient] = []
        self.readers: list[SimClient] = []
        self.members: list[GroupMember] = []
        self.tasks: list[asyncio.Task[object]] = []
        self.partitions: list[Partition] = [("events", index) for index in range(plan.partitions)]

    async def main(self) -> None:
        world = self.world
        for node in world.nodes.values():
            node.start()
        admin = world.client("admin")
        async with asyncio.timeout(CATCH_UP_S):
            await create_topic(admin, "events", self.plan.partitions, min(3, self.plan.nodes))
        watching = world.spawn("observer", self.observer.run)
        self._start_clients()
        await self.faults.run(self.plan.trouble_s)
        await self._until_everything_works()
        self._stop_clients()
        await self._until(lambda: all(task.done() for task in self.tasks), "clients come to an end")
        watching.cancel()
        await self._judge()

    def _start_clients(self) -> None:
        world = self.world
        for number in range(self.plan.writers):
            client = world.client(f"w{number}")
            self.writers.append(client)
            self._spawn(
                client,
                lambda client=client: write_idempotently(client, self.partitions, _values(client.name), self._now_ms),
            )
        for number in range(self.plan.transactional_writers):
            client = world.client(f"t{number}")
            self.writers.append(client)
            self._spawn(
                client,
                lambda client=client: write_transactionally(
                    client, client.name, self.partitions, _values(client.name), self._now_ms
                ),
            )
        for number in range(self.plan.members):
            client = world.client(f"g{number}")
            self.readers.append(client)
            member = GroupMember(client, "group", "events", self.plan.partitions)
            self.members.append(member)
            self._spawn(client, member.run)
        for partition in self.partitions if self.plan.readers else []:
            for committed in (False, True):
                client = world.client(f"r{partition[1]}{'c' if committed else 'u'}")
                self.readers.append(client)
                self._spawn(client, lambda client=client, p=partition, c=committed: read_on(client, p, committed=c))

    def _spawn(self, client: SimClient, make) -> None:  # type: ignore[no-untyped-def]  # a lambda per client
        self.tasks.append(self.world.spawn(client.name, make))

    def _now_ms(self) -> int:
        return 1_700_000_000_000 + int(self.world.loop.time() * 1000)

    def _stop_clients(self) -> None:
        for client in (*self.writers, *self.readers):
            client.is_stopping = True

    async def _until(self, condition, what: str) -> None:  # type: ignore[no-untyped-def]  # () -> bool
        deadline = self.world.loop.time() + CATCH_UP_S
        while not condition():
            if self.world.loop.time() > deadline:
                self.world.history.violated("after trouble, everything works again", f"not in time: {what}")
                return
            await asyncio.sleep(0.1)
            for node in self.world.nodes.values():
                if not node.is_up:  # whoever watches over it starts it again
                    node.start()

    async def _until_everything_works(self) -> None:
        nodes = self.world.nodes.values()
        await self._until(lambda: all(node.node is not None for node in nodes), "all nodes are up")
        await self._until(self.observer.everybody_in_sync, "all replicas are in sync, all nodes have one image")
        before = [client.progress for client in self.writers]
        await self._until(
            lambda: all(client.progress > was + 2 for client, was in zip(self.writers, before, strict=True)),
            "every writer makes progress",
        )
        where = self._group_positions()
        await self._until(
            lambda: not self.members or all(self._group_positions()[each] > where[each] for each in self.partitions),
            "the group goes on with every partition",
        )

    def _group_positions(self) -> dict[Partition, int]:
        return {
            partition: max((member.positions.get(partition, 0) for member in self.members), default=0)
            for partition in self.partitions
        }

    async def _judge(self) -> None:
        reader = self.world.client("judge")
        final, committed = {}, {}
        try:
            async with asyncio.timeout(CATCH_UP_S):
                for partition in self.partitions:
                    final[partition] = await read_all(reader, partition, committed=False)
                    committed[partition] = [value for _, value in await read_all(reader, partition, committed=True)]
        except TimeoutError:
            self.world.history.violated("after trouble, everything works again", "the final read did not end")
            return
        self.world.history.judge(final, committed)
        await self._until(self.observer.everybody_in_sync, "replicas are in sync at the end")
        self.observer.compare_replicas()


def play(seed: int, plan: Plan | None = None) -> Verdict:
    run = _Run(seed, plan or Plan())
    world = run.world
    try:
        world.run(run.main())
    except Exception as error:
        world.history.violated("the world ends well", repr(error))
    for task in run.tasks:
        if task.done() and not task.cancelled() and task.exception() is not None:
            world.history.violated("no client fails", repr(task.exception()))
    history = world.history
    errors: Counter[str] = Counter()
    for client in (*run.writers, *run.readers):
        errors.update(client.errors)
    trace = hashlib.sha256(
        "\n".join([*world.lines, *(f"{w.value!r}{w.fate}{w.offset}" for w in history.writes.values())]).encode()
    ).hexdigest()
    return Verdict(
        seed=seed,
        violations=[str(each) for each in history.violations],
        virtual_s=world.loop.time(),
        events=world.loop.events,
        acked=sum(write.fate.value == "acked" for write in history.writes.values()),
        transactions=len(history.transactions),
        faults=run.faults.counts,
        trace=trace,
        lines=world.lines,
        errors=errors,
    )
