"""One seed: a world, a workload, trouble, peace, and the verdict."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from moldau.seams.randomness import SeededRandom
from moldau.wire import messages as m
from tests.simulation.bystander import Bystanders
from tests.simulation.client import (
    OffsetBook,
    SimClient,
    TransactionKind,
    read_all,
    read_on,
    write_idempotently,
    write_transactionally,
)
from tests.simulation.consumer_member import ConsumerMember
from tests.simulation.faults import Faults
from tests.simulation.group_member import GroupMember, ask_coordinator
from tests.simulation.history import Partition
from tests.simulation.housekeeping import (
    COMPACTED,
    KEYS,
    SETTINGS,
    Compacted,
    MadeAgain,
    create_topic,
    some_key,
    write_loosely,
)
from tests.simulation.loop import EPOCH_MS
from tests.simulation.membership import MEMBERS_MIN
from tests.simulation.network import SimNetwork
from tests.simulation.observer import Observer
from tests.simulation.quiet_writer import QuietWriter
from tests.simulation.rack_reader import read_in_rack
from tests.simulation.read_order import CommittedReader
from tests.simulation.scribe import Scribe
from tests.simulation.witness import VoteWitness
from tests.simulation.world import TIMEOUT_MS, World, rack_of

# Virtual seconds: after the trouble has ended, everything works again within this time.
CATCH_UP_S = 90.0


@dataclass(slots=True, frozen=True)
class Plan:
    """How much of what."""

    nodes: int = 3
    # Nodes that may join and leave; None: the voters are fixed, and nobody comes or goes.
    spare_nodes: int | None = None
    trouble_s: float = 8.0
    partitions: int = 2
    writers: int = 2
    transactional_writers: int = 1
    members: int = 2  # of a classic group
    consumers: int = 2  # of a group of the new protocol
    readers: bool = True
    scribe: bool = False  # somebody who changes metadata all the time
    housekeeping: bool = False  # topics that are compacted, deleted, made again; see `housekeeping`
    dirs: int = 1  # log dirs of each node
    controllers: int = 0  # nodes that are nothing else, beside those that are brokers; 0: all are both
    racks: bool = False  # each broker stands in its own, and some readers read there
    quiet: bool = False  # a producer that asks for no answer
    hasty: bool = False  # a compacted topic is made again all the time
    broad: bool = False  # a topic of many partitions comes and goes
    flushes: bool = False  # what is acknowledged was flushed
    thoughtful: bool = False  # controllers decide on a thread what is not very short
    bystanders: bool = False  # whom the trouble must not concern: see `bystander`
    kinds: tuple[str, ...] = ()
    power: bool = True
    # Below 1, troubles are shorter and follow one another sooner, and so do the nodes' timeouts.
    pace: float = 1.0
    # Of every node, on top of the world's own.
    settings: tuple[tuple[str, str], ...] = ()


# Snapshots often enough that whoever joins, or was away, begins with one; and elections in which candidates meet.
SNAPSHOTS = (
    ("metadata.log.max.record.bytes.between.snapshots", "4000"),
    ("metadata.max.retention.bytes", "8000"),
    ("controller.quorum.fetch.snapshot.max.bytes", "1500"),
)
QUICK_ELECTIONS = (
    ("controller.quorum.election.timeout.ms", "150"),
    ("controller.quorum.fetch.timeout.ms", "400"),
    ("controller.quorum.election.backoff.max.ms", "150"),
)


_RARITIES = 1 << 40  # seeds of what each world has beside its kind


def plan_of(seed: int, *, nodes: int = 3, trouble_s: float = 10.0, pace: float = 0.5) -> Plan:
    """Worlds of three kinds, by turns: fixed voters; members that come and go; elections without end. Beside that, each
    may have something rare."""
    random = SeededRandom(_RARITIES + seed)
    if random.below(16) == 0:
        return Plan(nodes=nodes, trouble_s=trouble_s / 2, pace=pace, bystanders=True, kinds=("append failures",))
    plan = _kind_of(seed, nodes=nodes, trouble_s=trouble_s)
    plan = replace(plan, pace=pace, quiet=not random.below(3), flushes=not random.below(5))
    if plan.housekeeping:
        plan = replace(plan, broad=not random.below(4))
    elif nodes > 1:
        plan = replace(plan, racks=not random.below(4))
    if nodes >= MEMBERS_MIN and not plan.settings and not random.below(3):
        plan = replace(plan, controllers=3)
    return replace(plan, thoughtful=not random.below(2))


def _kind_of(seed: int, *, nodes: int, trouble_s: float) -> Plan:
    plan = Plan(nodes=nodes, trouble_s=trouble_s)
    if seed % 2:  # every other one keeps house, and has fewer readers and groups for it
        plan = replace(plan, housekeeping=True, dirs=1 + seed % 3, writers=1, readers=False)
        plan = replace(plan, members=0) if seed % 4 == 1 else replace(plan, consumers=0)
    if nodes < MEMBERS_MIN or seed % 3 == 0:
        return plan
    if seed % 3 == 1:
        return replace(plan, spare_nodes=2, settings=SNAPSHOTS)
    return replace(plan, settings=QUICK_ELECTIONS + SNAPSHOTS + (("replica.lag.time.max.ms", "1000"),))


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


def _timeouts(pace: float) -> dict[str, str]:
    """How long nodes wait before they give somebody up."""
    names = ("broker.session.timeout.ms", "replica.lag.time.max.ms")
    return {name: str(round(TIMEOUT_MS * pace)) for name in names if pace < 1}


def _values(name: str) -> Iterator[bytes]:
    return (f"{name}-{number}".encode() for number in count())


class _Run:
    def __init__(self, seed: int, plan: Plan) -> None:
        self.plan = plan
        settings = dict(SETTINGS if plan.housekeeping else ()) | _timeouts(plan.pace) | dict(plan.settings)
        if plan.flushes:
            settings["log.flush.interval.messages"] = "1"
        self.world = World(
            seed,
            plan.nodes,
            settings,
            spare_nodes=plan.spare_nodes,
            dirs=plan.dirs,
            controllers=plan.controllers,
            racks=plan.racks,
            thoughtful=plan.thoughtful,
        )
        power = plan.power and (plan.nodes > 1 or plan.flushes)
        self.faults = Faults(
            self.world, kinds=list(plan.kinds) or None, power=power, flushes=plan.flushes, pace=plan.pace
        )
        self.observer = Observer(self.world)
        self.votes = VoteWitness(
            self.world.fabric,
            self.world.history,
            self.world.disk_of,
            self.world.directory_of,
            self.world.durable,
        )
        self.world.on_start.append(self.observer.watch)
        self.writers: list[SimClient] = []
        self.readers: list[SimClient] = []
        self.members: list[GroupMember] = []
        self.consumers: list[ConsumerMember] = []
        self.scribes = [Scribe(self.world.client("scribe"))]
        if plan.thoughtful and plan.scribe:  # another, whose commands come between
            self.scribes.append(Scribe(self.world.client("second scribe"), "h"))
        self.is_troubled = True
        self.tasks: list[asyncio.Task[object]] = []
        self.partitions: list[Partition] = [("events", index) for index in range(plan.partitions)]
        self.compacted = Compacted(self.world.history, [(KEYS, 0), (KEYS, 1)])
        self.again = MadeAgain(
            self.world.client("owner"), min(3, plan.nodes), self._now_ms, is_broad=plan.broad, is_hasty=plan.hasty
        )
        self.orders: list[CommittedReader] = []
        self.quiet = QuietWriter(self.world.client("quiet"), SimNetwork(self.world.fabric, "quiet"), self.partitions)
        self.bystanders = Bystanders(self.world.client("bystander"), self.partitions[0], self._now_ms)
        self.offsets = OffsetBook("transactional", self.partitions[0])

    async def main(self) -> None:
        world = self.world
        if world.is_dynamic:
            async with asyncio.timeout(CATCH_UP_S):
                await self.faults.membership.found()
        else:
            for node in world.nodes.values():
                node.start()
        admin = world.client("admin")
        async with asyncio.timeout(CATCH_UP_S):
            # A new segment every second or so: there are cold ones to rot, and to be read from.
            replicas = min(3, self.plan.nodes)
            await create_topic(admin, "events", self.plan.partitions, replicas, {"segment.ms": "1500"})
            if self.plan.housekeeping:
                await create_topic(admin, KEYS, len(self.compacted.partitions), replicas, COMPACTED)
        watching = world.spawn("observer", self.observer.run)
        if self.plan.bystanders:
            async with asyncio.timeout(CATCH_UP_S):
                await self.bystanders.begin()
            self.tasks.append(world.spawn("bystander", lambda: self.bystanders.stand_by(lambda: self.is_troubled)))
        self._start_clients()
        await self.faults.run(self.plan.trouble_s)
        self.is_troubled = False
        if self.plan.bystanders:  # before others wait for its transaction
            async with asyncio.timeout(CATCH_UP_S):
                await self.bystanders.end()
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
        if self.plan.housekeeping:
            self._start_housekeeping()
        for scribe in self.scribes if self.plan.scribe else ():
            self.readers.append(scribe.client)
            self._spawn(scribe.client, scribe.run)
        for number in range(self.plan.members):
            client = world.client(f"g{number}")
            self.readers.append(client)
            member = GroupMember(client, "group", "events", self.plan.partitions, lambda: self.is_troubled)
            self.members.append(member)
            self._spawn(client, member.run)
        for number in range(self.plan.consumers):
            client = world.client(f"c{number}")
            self.readers.append(client)
            consumer = ConsumerMember(client, "consumers", "events", world.coordinates, lambda: self.is_troubled)
            self.consumers.append(consumer)
            self._spawn(client, consumer.run)
        for partition in self.partitions if self.plan.readers else []:
            for committed in (False, True):
                client = world.client(f"r{partition[1]}{'c' if committed else 'u'}")
                self.readers.append(client)
                order = self._order(client, partition) if committed else None
                self._spawn(
                    client,
                    lambda client=client, p=partition, c=committed, o=order: read_on(client, p, committed=c, order=o),
                )
        if self.plan.quiet:
            self.writers.append(self.quiet.client)
            self._spawn(self.quiet.client, lambda: self.quiet.run(self._now_ms))
        if self.plan.racks:
            self._start_rack_readers()

    def _order(self, client: SimClient, partition: Partition) -> CommittedReader:
        self.orders.append(CommittedReader(self.world.history, client.name, partition))
        return self.orders[-1]

    def _start_rack_readers(self) -> None:
        for partition in self.partitions:
            for node in self.world.brokers:
                client = self.world.client(f"k{partition[1]}-{node.node_id}")
                self.readers.append(client)
                order = self._order(client, partition) if self.world.random.below(2) else None
                rack = rack_of(node.node_id)
                self._spawn(
                    client,
                    lambda client=client, p=partition, r=rack, o=order: read_in_rack(client, p, r, o),
                )

    def _start_housekeeping(self) -> None:
        world, where = self.world, self.compacted.partitions
        client = world.client("wk")
        self.writers.append(client)
        self._spawn(client, lambda: write_idempotently(client, where, _values("wk"), self._now_ms, key=some_key))
        producer = world.client("tk")
        kind = TransactionKind(
            is_modern=bool(world.random.below(2)),
            key=some_key,
            is_judged_whole=False,
            dawdles=True,
            offsets=self.offsets,
        )
        self.writers.append(producer)
        self._spawn(producer, lambda: write_transactionally(producer, "tk", where, _values("tk"), self._now_ms, kind))
        watcher = world.client("watcher")
        self.readers.append(watcher)
        self._spawn(watcher, lambda: self.compacted.watch(watcher))
        self.readers.append(self.again.client)
        self._spawn(self.again.client, self.again.run)
        loose = world.client("loose")
        self.writers.append(loose)
        self._spawn(loose, lambda: write_loosely(loose, min(2, self.plan.nodes), self._now_ms))

    def _spawn(self, client: SimClient, make) -> None:  # type: ignore[no-untyped-def]  # a lambda per client
        self.tasks.append(self.world.spawn(client.name, make))

    def _now_ms(self) -> int:
        return EPOCH_MS + int(self.world.loop.time() * 1000)

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
            for node in self.world.members:  # whoever watches over them restarts what does not run with all its disks
                if node.lacks_dirs:
                    node.crash(power_lost=False)
                    node.mend_disk()
                if not node.is_up:
                    node.start()

    async def _until_everything_works(self) -> None:
        world, membership = self.world, self.faults.membership
        await self._until(lambda: all(node.node is not None for node in world.members), "all nodes are up")
        await self._until(lambda: membership.is_at_rest, "the operator's last change is carried out")
        membership.check()
        await self._until(self.observer.everybody_in_sync, "all replicas are in sync, all nodes have one image")
        before = [client.progress for client in self.writers]
        await self._until(
            lambda: all(client.progress > was + 2 for client, was in zip(self.writers, before, strict=True)),
            "every writer makes progress",
        )
        for group, what in ((self.members, "the group"), (self.consumers, "the group of the new protocol")):
            where = self._positions(group)
            await self._until(
                lambda group=group, where=where: (
                    not group or all(self._positions(group)[each] > where[each] for each in self.partitions)
                ),
                f"{what} goes on with every partition",
            )
        await self._until(self._everything_is_assigned, "every partition has one owner in the new protocol's group")

    def _positions(self, group: Sequence[GroupMember | ConsumerMember]) -> dict[Partition, int]:
        return {
            partition: max((member.positions.get(partition, 0) for member in group), default=0)
            for partition in self.partitions
        }

    def _everything_is_assigned(self) -> bool:
        owned = sorted(partition for member in self.consumers for partition in member.owned)
        return not self.consumers or owned == sorted(self.partitions)

    async def _judge(self) -> None:
        reader = self.world.client("judge")
        final, committed = {}, {}
        try:
            async with asyncio.timeout(CATCH_UP_S):
                for partition in self.partitions:
                    final[partition] = await read_all(reader, partition, committed=False)
                    committed[partition] = await read_all(reader, partition, committed=True)
        except TimeoutError:
            self.world.history.violated("after trouble, everything works again", "the final read did not end")
            return
        self.world.history.judge(
            final, {partition: [value for _, value in records] for partition, records in committed.items()}
        )
        for order in self.orders:
            order.judge(committed[order.partition])
        if self.plan.quiet:
            self.quiet.judge(final)
        if self.plan.housekeeping:
            await self._judge_housekeeping()
        await self._until(self.observer.everybody_in_sync, "replicas are in sync at the end")
        self.observer.compare_replicas()
        self.observer.compare_images(self.faults.kept_topics)
        for node in self.world.members:
            if node.node is not None:
                for scribe in self.scribes:
                    scribe.judge(node.node_id, node.node.broker.image)

    async def _judge_housekeeping(self) -> None:
        """Every replica is looked at, by reading it."""
        reader = self.world.client("inspector")
        try:
            async with asyncio.timeout(CATCH_UP_S):
                for partition in self.compacted.partitions:
                    for node_id in self._replicas(partition):
                        for committed in (False, True):
                            while not await self.compacted.check(
                                reader, partition, committed=committed, node_id=node_id
                            ):
                                await asyncio.sleep(0.1)
                for partition in self.again.current_partitions:
                    for each in (None, *self._replicas(partition)):
                        while not await self.again.check(partition, each):
                            await asyncio.sleep(0.1)
                await self._judge_offsets(reader)
        except TimeoutError:
            self.world.history.violated("after trouble, everything works again", "housekeeping was not read")

    def _replicas(self, partition: Partition) -> list[int | None]:
        newest = self.world.newest(*partition)
        return [] if newest is None else [None, *newest.replicas]

    async def _judge_offsets(self, client: SimClient) -> None:
        """What was committed in transactions is there; what was aborted is not."""
        book = self.offsets
        kind = m.OffsetFetchRequest
        await client.refresh([book.partition[0]])
        topics = [kind.OffsetFetchRequestTopics(book.partition[0], client.topic_ids[book.partition[0]], [0])]
        asked = kind(groups=[kind.OffsetFetchRequestGroup(book.group, None, -1, topics)], require_stable=True)
        while True:
            answer = await ask_coordinator(client, book.group, asked)
            found = None if answer is None or answer.groups[0].error_code else answer.groups[0].topics[0].partitions[0]
            if found is not None and not found.error_code:
                break
            await asyncio.sleep(0.1)
        if found.committed_offset < book.committed or found.committed_offset in book.aborted:
            self.world.history.violated(
                "offsets are committed with their transaction",
                f"{book.group}: {book.committed} was committed, found {found.committed_offset}",
            )


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
