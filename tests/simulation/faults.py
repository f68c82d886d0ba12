"""What goes wrong in a world, chosen by its seed. Every fault ends by itself or with `heal`."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from moldau.records import iter_batches
from moldau.records.batch import ATTRIBUTES_AT
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m
from tests.simulation.disk_trouble import DiskTrouble
from tests.simulation.membership import Membership
from tests.simulation.world import CLIENT_PORT, SimNode, World

MEMBERSHIP = ("node joins", "node leaves", "new disk")
# Those that end a node uncleanly, or make it lose something. What begins while another node misses something waits for
# a better time.
_UNCLEAN = {
    *("crash", "power", "full disk", "bit rot", "header rot", "file rot", "metadata rot", "new disk"),
    *("dir fails", "dir away", "dir unmounted", "dir vanishes", "voter's new disk", "blackout"),
}


class Faults:
    """One trouble after the other, sometimes several at once."""

    def __init__(
        self,
        world: World,
        *,
        kinds: list[str] | None = None,
        power: bool = True,
        flushes: bool = False,
        pace: float = 1.0,
    ) -> None:
        """`flushes`: whatever is acknowledged was flushed, so all machines may lose power at once. `pace`: how long
        troubles last, and the pauses between them."""
        self._world = world
        self._pace = pace
        self._random = world.random
        self._admin = world.client("operator")
        self._topics = 0
        self.kept_topics: list[str] = []  # created, as the controller said, and never deleted
        self.counts: Counter[str] = Counter()
        every: dict[str, Callable[[SimNode], Awaitable[None]]] = {
            "crash": self._crash,
            "power": self._power_loss,
            "restart": self._restart,
            "isolate": self._isolate,
            "one-way cut": self._one_way_cut,
            "pair cut": self._pair_cut,
            "reset": self._reset,
            "slow link": self._slow_link,
            "slow disk": self._slow_disk,
            "disk stall": self._disk_stall,
            "full disk": self._full_disk,
            "clock skew": self._clock_skew,
            "slow node": self._slow_node,
            "bit rot": self._bit_rot,
            "leader move": self._leader_move,
            "topic change": self._topic_change,
        }
        if len(world.dirs) > 1:
            every |= {
                "dir fails": self._dir_fails,
                "dir away": self._dir_away,
                "replica move": self._replica_move,
                "replica moves": self._replica_move,
            }
        self.disks = DiskTrouble(world, self.counts, pace)
        every |= self.disks.kinds() | {"append failures": self._append_failures}
        if flushes:
            every["blackout"] = self._blackout
        self.membership = Membership(world, self.counts)
        for change in MEMBERSHIP:
            every[change] = partial(self._membership, change)
        alone = {
            "crash",
            "restart",
            "reset",
            "slow link",
            "slow disk",
            "disk stall",
            "clock skew",
            "slow node",
            "topic change",
            "append failures",
            "blackout",
        }
        allowed = kinds or [
            kind
            for kind in every
            if kind not in MEMBERSHIP and (power or kind != "power") and (len(world.nodes) > 1 or kind in alone)
        ]
        if world.is_dynamic and not kinds:
            allowed += 2 * MEMBERSHIP
        self._kinds = [(kind, every[kind]) for kind in allowed]

    async def run(self, seconds: float) -> None:
        """Cause trouble for so long, then put everything right."""
        loop = self._world.loop
        end = loop.time() + seconds
        running: list[asyncio.Task[None]] = []
        while loop.time() < end:
            await asyncio.sleep(self._random.fraction() * 1.5 * self._pace)
            kind, cause = self._kinds[self._random.below(len(self._kinds))]
            if kind in _UNCLEAN and len(self._world.nodes) > 1 and not self._world.is_whole():
                continue
            nodes = self._world.members
            node = nodes[self._random.below(len(nodes))]
            if kind not in MEMBERSHIP:
                self.counts[kind] += 1
                self._world.log(f"{kind}: {node.host}")
            running.append(loop.create_task(cause(node)))
            if self._random.below(3):
                await running[-1]
        await asyncio.gather(*running)
        self.heal()

    def heal(self) -> None:
        self._world.log("everything is put right")
        self._world.fabric.heal()
        self._world.append_failures.hosts.clear()
        self.disks.heal()
        for node in self._world.members:
            node.disk_delay_ms = 0.0
            node.disk.heal()
            if not node.is_up:
                node.start()

    def _seconds(self, most: float) -> float:
        return 0.05 + self._random.fraction() * most * self._pace

    async def _down_for_a_while(self, node: SimNode) -> None:
        await asyncio.sleep(self._seconds(5.0))
        if not node.is_up:
            node.start()

    async def _crash(self, node: SimNode) -> None:
        node.crash(power_lost=False)
        await self._down_for_a_while(node)

    async def _power_loss(self, node: SimNode) -> None:
        # A record acknowledged by all in sync may be unflushed everywhere: Kafka's promise holds while not all of them
        # lose power at once, so one machine at a time does.
        if self._world.everybody_is_well():
            node.crash(power_lost=True)
            self._world.note_loss(node)
            await self._down_for_a_while(node)

    async def _blackout(self, _: SimNode) -> None:
        """All machines lose power at once."""
        for node in self._world.members:
            node.crash(power_lost=True)
        for node in self._world.members:
            await asyncio.sleep(self._seconds(0.5))
            if not node.is_up:
                node.start()

    async def _append_failures(self, node: SimNode) -> None:
        hosts = self._world.append_failures.hosts
        hosts.add(node.host)
        await asyncio.sleep(self._seconds(3.0))
        hosts.discard(node.host)

    async def _restart(self, node: SimNode) -> None:
        await node.stop()
        await asyncio.sleep(self._seconds(1.0))
        if not node.is_up:
            node.start()

    async def _isolate(self, node: SimNode) -> None:
        await self._cut([(node.host, other.host) for other in self._others(node)], both=True)

    async def _one_way_cut(self, node: SimNode) -> None:
        others = self._others(node)
        other = others[self._random.below(len(others))]
        await self._cut([(node.host, other.host)], both=False)

    async def _pair_cut(self, node: SimNode) -> None:
        others = self._others(node)
        other = others[self._random.below(len(others))]
        await self._cut([(node.host, other.host)], both=True)

    async def _cut(self, pairs: list[tuple[str, str]], *, both: bool) -> None:
        fabric = self._world.fabric
        made = [*pairs, *((target, source) for source, target in pairs if both)]
        fabric.cuts.update(made)
        await asyncio.sleep(self._seconds(6.0))
        for pair in made:
            fabric.cuts.discard(pair)
        fabric.end_broken()

    async def _reset(self, node: SimNode) -> None:
        fabric = self._world.fabric
        for link in list(fabric.links.values()):
            if node.host in (link.client_host, link.server_host) and self._random.below(2):
                link.reset("connection reset")

    async def _slow_link(self, node: SimNode) -> None:
        fabric = self._world.fabric
        for other in self._others(node):
            fabric.extra_ms[node.host, other.host] = self._random.fraction() * 300
        await asyncio.sleep(self._seconds(4.0))
        fabric.extra_ms.clear()

    async def _slow_disk(self, node: SimNode) -> None:
        node.disk_delay_ms = self._random.fraction() * 50
        await asyncio.sleep(self._seconds(4.0))
        node.disk_delay_ms = 0.0

    async def _disk_stall(self, node: SimNode) -> None:
        node.disk_delay_ms = 2_000.0
        await asyncio.sleep(self._seconds(0.5))
        node.disk_delay_ms = 0.0

    async def _full_disk(self, node: SimNode) -> None:
        """Its dir goes offline, and the machine is restarted with space."""
        with self._world.about_to_end():
            node.disk.space_left_bytes = self._random.below(4_000)
            await asyncio.sleep(self._seconds(3.0))
            node.crash(power_lost=False)
        node.disk.heal()
        await self._down_for_a_while(node)

    async def _clock_skew(self, node: SimNode) -> None:
        node.clock.skew_ms += self._random.below(120_000) - 60_000

    async def _slow_node(self, node: SimNode) -> None:
        slow = self._world.fabric.slow_hosts
        slow[node.host] = self._random.fraction() * 100
        await asyncio.sleep(self._seconds(4.0))
        slow.pop(node.host, None)

    async def _bit_rot(self, node: SimNode) -> None:
        """A bit turns in an old segment while the machine is off. Nobody notices until somebody reads it."""
        if self.counts["bit rot"] > 1 or not self._world.everybody_is_well():
            return  # one copy of three may rot; when it is the last that counts, nobody can help
        node.crash(power_lost=False)
        self._world.note_loss(node)
        rotten = node.disk.rot(self._random, lambda path: "/events-" in path and path.endswith(".log"), self._covered)
        self._world.log(f"bit rot in {rotten}")
        await self._down_for_a_while(node)

    def _covered(self, segment: bytes) -> int | None:
        """A place that a checksum covers."""
        batches = list(iter_batches(segment))
        if not batches:
            return None
        position, header = batches[self._random.below(len(batches))]
        return position + ATTRIBUTES_AT + self._random.below(header.size_bytes - ATTRIBUTES_AT)

    async def _membership(self, change: str, node: SimNode) -> None:
        self.membership.change(change)

    async def _leader_move(self, node: SimNode) -> None:
        """The preferred leader changes by a reassignment, and then leads."""
        ids = [each.node_id for each in self._world.brokers]
        turn = self._random.below(len(ids))
        replicas = (ids[turn:] + ids[:turn])[:3]
        partition = m.AlterPartitionReassignmentsRequest.ReassignablePartition(0, replicas)
        topic = m.AlterPartitionReassignmentsRequest.ReassignableTopic("events", [partition])
        elect = m.ElectLeadersRequest(
            election_type=0,
            topic_partitions=[m.ElectLeadersRequest.TopicPartitions("events", [0])],
            timeout_ms=1_000,
        )
        await self._try(m.AlterPartitionReassignmentsRequest(timeout_ms=1_000, topics=[topic]))
        await self._try(elect)

    async def _topic_change(self, node: SimNode) -> None:
        """Topics come and go."""
        self._topics += 1
        name = f"passing-{self._topics}"
        replicas = min(3, len(self._world.nodes))
        topic = m.CreateTopicsRequest.CreatableTopic(name, 1 + self._random.below(3), replicas)
        created = await self._try(m.CreateTopicsRequest(topics=[topic], timeout_ms=1_000))
        await asyncio.sleep(self._seconds(2.0))
        keeps = created is not None and created.topics[0].error_code == ErrorCode.NONE
        if self._random.below(2):
            keeps = False
            gone = m.DeleteTopicsRequest.DeleteTopicState(name=name)
            await self._try(m.DeleteTopicsRequest(topics=[gone], topic_names=[name], timeout_ms=1_000))
        if keeps:
            self.kept_topics.append(name)

    def _data_dir(self) -> str:
        """One without metadata: a node that loses those stops."""
        return self._world.dirs[1 + self._random.below(len(self._world.dirs) - 1)]

    async def _dir_fails(self, node: SimNode) -> None:
        """While the node runs; the rest of it goes on. Then the disk is mended, and the node restarted."""
        with self._world.about_to_end():
            node.disk.fail(self._data_dir() + "/")
            await asyncio.sleep(self._seconds(4.0))
            if self._random.below(2):
                await node.stop()
            else:
                node.crash(power_lost=False)
        node.disk.heal()
        await self._down_for_a_while(node)

    async def _dir_away(self, node: SimNode) -> None:
        """The node starts without one of its disks, and has it back after another restart."""
        if self._random.below(2):
            await node.stop()
        else:
            node.crash(power_lost=False)
        node.disk.fail(self._data_dir())
        await self._down_for_a_while(node)
        with self._world.about_to_end():
            await asyncio.sleep(self._seconds(5.0))
            if self._random.below(2):
                await node.stop()
            else:
                node.crash(power_lost=False)
        node.disk.heal()
        await self._down_for_a_while(node)

    async def _replica_move(self, node: SimNode) -> None:
        """Some of its replicas are to lie in another of its dirs."""
        if node.node is None or not node.is_broker:
            return
        replicas = sorted((each.topic, each.index) for each in node.node.broker.replicas)
        kind = m.AlterReplicaLogDirsRequest
        topics = [
            kind.AlterReplicaLogDirTopic(topic, [index]) for topic, index in replicas if not self._random.below(2)
        ]
        target = self._world.dirs[self._random.below(len(self._world.dirs))]
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(3.0):
                request = kind([kind.AlterReplicaLogDir(target, topics)])
                await self._admin.channels.call(node.host, CLIENT_PORT, request, timeout_ms=2_000)

    async def _try(self, request: Message) -> Any:
        """An operator's command: it may fail, and then it is not repeated."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(3.0):
                return await self._admin.any_broker(request)
        return None

    def _others(self, node: SimNode) -> list[SimNode]:
        return [other for other in self._world.members if other is not node]
