"""An operator who changes who belongs to the cluster while trouble goes on: nodes join it (as brokers and as voters of
the quorum), are decommissioned (drained, stopped, removed, unregistered), and lose their disk and come back with an
empty one, which makes them another voter.

One change at a time; each is pursued to its end, however long that takes, with commands that are repeated until they
are carried out. Wherever something is forgotten or done twice, the checks of the world show it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

from moldau.raft import ReplicaKey
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m
from tests.simulation.world import CONTROLLER_PORT, SimNode, World

MEMBERS_MIN = 3
_PAUSE_S = 0.2
_TRY_S = 4.0


class Membership:
    def __init__(self, world: World, counts: Counter[str]) -> None:
        self._world = world
        self._random = world.random
        self._admin = world.client("membership")
        self._counts = counts
        self._running: asyncio.Task[None] | None = None

    @property
    def is_at_rest(self) -> bool:
        return self._running is None or self._running.done()

    def check(self) -> None:
        """Raises what stopped the operator, if anything did."""
        if self._running is not None and self._running.done() and not self._running.cancelled():
            self._running.result()

    async def found(self) -> None:
        """The first node begins a cluster of its own, and two more join it."""
        first, *others = self._world.members
        first.start()
        await self._until(lambda: first.node is not None)
        self._world.is_founded = True
        for node in others:
            node.start()
        for node in others:
            await self._until(lambda node=node: node.node is not None)
            await self._vote(node)

    # -- changes, begun at random

    def change(self, what: str) -> None:
        if not self.is_at_rest:
            return
        self.check()
        spare = [node for node in self._world.nodes.values() if not node.is_member]
        members = self._world.members
        node = members[self._random.below(len(members))]
        if what == "node joins" and spare:
            # Sometimes all at once; the quorum takes in one after the other.
            chosen = spare if self._random.below(2) else [spare[self._random.below(len(spare))]]
            self._begin(what, self._join_all(chosen))
        elif what == "node leaves" and len(members) > MEMBERS_MIN:
            self._begin(what, self._leave(node))
        elif what == "new disk" and self._world.everybody_is_well():
            leader = next((each for each in members if each.node and each.node.broker.metadata_log.is_leader), node)
            self._begin(what, self._new_disk(leader if self._random.below(2) else node))

    def _begin(self, what: str, work: Any) -> None:
        self._counts[what] += 1
        self._running = self._world.spawn("operator", lambda: work)

    async def _join_all(self, nodes: list[SimNode]) -> None:
        for node in nodes:
            node.is_member = True
        await asyncio.gather(*(self._join(node) for node in nodes))

    async def _join(self, node: SimNode) -> None:
        self._world.log(f"{node.host} joins")
        if not node.is_up:
            node.start()
        await self._until(lambda: node.node is not None)
        await self._vote(node)
        self._world.log(f"{node.host} has joined")

    async def _leave(self, node: SimNode) -> None:
        self._world.log(f"{node.host} is decommissioned")
        await self._drain(node)
        key = await self._key_of(node)
        if not self._world.joins_by_itself and self._random.below(2):
            await self._remove(key)  # while it runs: it may lead the quorum
        node.is_member = False
        while node.is_up:
            await node.stop()
            await asyncio.sleep(_PAUSE_S)
        await self._drain(node)  # a topic may have been created meanwhile
        await self._remove(key)
        await self._command(
            m.UnregisterBrokerRequest(node.node_id), {ErrorCode.NONE, ErrorCode.BROKER_ID_NOT_REGISTERED}
        )
        await self._drain(node)  # until then another operator could still move something to it
        node.replace_disk()
        self._world.log(f"{node.host} has left")

    async def _new_disk(self, node: SimNode) -> None:
        if node.node is None or not self._world.everybody_is_well():
            return
        former = node.node.broker.metadata_log.raft.me
        node.crash(power_lost=False)
        self._world.log(f"{node.host} gets an empty disk")
        self._world.note_loss(node)
        node.replace_disk()
        if not node.is_up:
            node.start()
        if not self._world.joins_by_itself:
            await self._remove(former)
        await self._vote(node)
        self._world.log(f"{node.host} votes with its new disk")

    # -- commands, repeated until they are carried out

    async def _until(self, condition: Any) -> None:
        while not condition():
            await asyncio.sleep(_PAUSE_S)

    async def _key_of(self, node: SimNode) -> ReplicaKey:
        await self._until(lambda: node.node is not None)
        assert node.node is not None
        return node.node.broker.metadata_log.raft.me

    async def _vote(self, node: SimNode) -> None:
        """Make it a voter, unless it sees to that by itself."""
        while True:
            key = await self._key_of(node)
            if self._is_voter(key):
                return
            if self._world.joins_by_itself:
                await asyncio.sleep(_PAUSE_S)
                continue
            listener = m.AddRaftVoterRequest.Listener("CONTROLLER", node.host, CONTROLLER_PORT)
            await self._try(m.AddRaftVoterRequest(None, 2_000, key.id, key.directory_id, [listener]))

    def _is_voter(self, key: ReplicaKey) -> bool:
        """As far as is committed."""
        for each in self._world.nodes.values():
            if each.node is not None and each.node.broker.metadata_log.is_leader:
                quorum = each.node.broker.metadata_log
                return key in quorum.voters and quorum.files.history.latest_offset < quorum.high_watermark
        return False

    async def _remove(self, key: ReplicaKey) -> None:
        request = m.RemoveRaftVoterRequest(None, key.id, key.directory_id)
        await self._command(request, {ErrorCode.NONE, ErrorCode.VOTER_NOT_FOUND})

    async def _drain(self, node: SimNode) -> None:
        """Move all its replicas elsewhere."""
        while True:
            moves = self._moves_away(node)
            if moves is not None:
                if not moves:
                    return
                await self._try(m.AlterPartitionReassignmentsRequest(timeout_ms=1_000, topics=moves))
            await asyncio.sleep(_PAUSE_S)

    def _moves_away(self, node: SimNode) -> list[m.AlterPartitionReassignmentsRequest.ReassignableTopic] | None:
        """What is to be moved still; None while nobody leads."""
        kind = m.AlterPartitionReassignmentsRequest
        image = self._world.controllers_image()
        if image is None:
            return None
        ids = [each.node_id for each in self._world.members if each is not node and each.node_id in image.brokers]
        moves = []
        for topic in image.topics.values():
            concerned = []
            for index, partition in topic.partitions.items():
                if node.node_id in partition.replicas and node.node_id not in partition.removing_replicas:
                    others = [each for each in ids if each not in partition.replicas]
                    kept = [each for each in partition.replicas if each != node.node_id]
                    chosen = others[self._random.below(len(others))] if others else None
                    replicas = kept if chosen is None or len(kept) >= MEMBERS_MIN else [*kept, chosen]
                    concerned.append(kind.ReassignablePartition(index, replicas))
            if concerned:
                moves.append(kind.ReassignableTopic(topic.name, concerned))
        if moves:
            return moves
        busy = any(
            node.node_id in each.replicas for topic in image.topics.values() for each in topic.partitions.values()
        )
        return None if busy else []

    async def _command(self, request: Message, done: set[ErrorCode]) -> None:
        while True:
            answer = await self._try(request)
            if answer is not None and answer.error_code in done:
                return
            await asyncio.sleep(_PAUSE_S)

    async def _try(self, request: Message) -> Any:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TRY_S):
                return await self._admin.any_broker(request)
        return None
