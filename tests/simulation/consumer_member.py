"""A member of a consumer group of the new protocol (KIP-848) in the simulated world: heartbeats, takes what it gets,
gives up what is taken from it, reads, commits. Some leave, some just vanish, and come back as somebody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.simulation.client import SimClient
from tests.simulation.group_member import ask_coordinator, pause
from tests.simulation.history import Partition

SESSION_MS = 3_000
# Longer than any trouble: who does not answer is sent away by the end of its session, not for being slow.
_REBALANCE_MS = 60_000
_LEAVE = -1
_START_OVER = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND})
_FIND_COORDINATOR = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)


class ConsumerMember:
    """`coordinates(host, group)` says whether a host is the coordinator, for all that is committed; what a former one
    says which does not know yet binds nobody. `is_restless()`: whether members come and go now.
    """

    def __init__(
        self,
        client: SimClient,
        group: str,
        topic: str,
        coordinates: Callable[[str, str], bool],
        is_restless: Callable[[], bool],
    ) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._coordinates = coordinates
        self._is_restless = is_restless
        self._lives = 0
        self._member_id = ""
        self._epoch = 0
        self._heartbeat_s = 0.5
        # All is said in a first heartbeat, and after one of which nothing was heard.
        self._says_all = True
        self._reported: set[Partition] = set()
        self._held: set[Partition] = set()  # as the coordinator knows
        self.owned: dict[Partition, int] = {}  # and where it reads on
        self.positions: dict[Partition, int] = {}  # how far it ever committed

    async def run(self) -> None:
        """Until the client is told to stop."""
        while not self._client.is_stopping:
            self._lives += 1
            self._member_id = f"{self._client.name}-{self._lives}"
            self._held.clear()
            self._start_over()
            vanishes = await self._live()
            if vanishes:
                self.owned.clear()  # nobody is told: its partitions are its own until its session ends
            else:
                self._give_up(set(self.owned))
                self._let_go(set(self._held))  # what it got and had not taken yet goes with it
                await self._ask(m.ConsumerGroupHeartbeatRequest(self._group, self._member_id, _LEAVE))
            if not self._client.is_stopping:
                await asyncio.sleep(self._client.random.fraction() * 2)

    async def _live(self) -> bool:
        """One life. Whether it ends without a word."""
        client = self._client
        # One in three stays for good.
        ends_at = client.now_s() + 1 + client.random.fraction() * 5 if client.random.below(3) else float("inf")
        vanishes = not client.random.below(2)
        beat_at = client.now_s()
        while not client.is_stopping:
            now_s = client.now_s()
            if now_s > ends_at and self._is_restless():
                return vanishes
            if now_s >= beat_at:
                beat_at = now_s + (self._heartbeat_s if await self._beat() else 0.05)
            elif not await self._read():
                await asyncio.sleep(max(0.01, min(0.1, beat_at - client.now_s())))
        return False

    async def _ask(self, request: m.ConsumerGroupHeartbeatRequest) -> m.ConsumerGroupHeartbeatResponse | None:
        answer: m.ConsumerGroupHeartbeatResponse | None = await ask_coordinator(self._client, self._group, request)
        return answer

    # -- heartbeats

    async def _beat(self) -> bool:
        """Whether there is nothing to be said at once."""
        kind = m.ConsumerGroupHeartbeatRequest
        owned = set(self.owned)
        told = None
        if self._says_all or owned != self._reported:
            topic_id = self._client.topic_ids.get(self._topic, bytes(16))
            indexes = sorted(index for _, index in owned)
            told = [kind.TopicPartitions(topic_id, indexes)] if indexes else []
            self._let_go(self._held - owned)  # it got them, could not take them, and says so now
        request = kind(
            self._group,
            self._member_id,
            self._epoch,
            rebalance_timeout_ms=_REBALANCE_MS if self._says_all else -1,
            subscribed_topic_names=[self._topic] if self._says_all else None,
            topic_partitions=told,
        )
        sent_s = self._client.now_s()
        answer = await self._ask(request)
        if answer is None:
            self._says_all = True
            return True
        if answer.error_code:
            self._refused(answer.error_code)
            return False
        self._says_all = False
        self._reported = owned
        self._epoch = answer.member_epoch
        self._heartbeat_s = answer.heartbeat_interval_ms / 1000
        if answer.assignment is not None:
            given = {(self._topic, index) for each in answer.assignment.topic_partitions for index in each.partitions}
            self._give_up(set(self.owned) - given)
            for partition in given:
                self._client.history.owns(self._group, self._epoch, partition, self._member_id)
            self._hold(set(self.owned) | given, sent_s)
            await self._take(given - set(self.owned))
        else:
            self._hold(set(self.owned), sent_s)
        return set(self.owned) == self._reported

    def _refused(self, code: int) -> None:
        self._client._noted(ErrorCode(code).name)
        self._says_all = True
        if code in _START_OVER:
            self._start_over()
        elif code in _FIND_COORDINATOR:
            self._client._coordinators.pop((0, self._group), None)

    def _start_over(self) -> None:
        self._give_up(set(self.owned))
        self._epoch = 0
        self._says_all = True

    def _give_up(self, partitions: set[Partition]) -> None:
        for partition in sorted(partitions):
            del self.owned[partition]
        self._let_go(partitions)

    def _let_go(self, partitions: set[Partition]) -> None:
        self._held -= partitions
        for partition in sorted(partitions):
            self._client.history.gives_up(self._group, partition, self._member_id)

    def _hold(self, partitions: set[Partition], sent_s: float) -> None:
        """Until its session ends, counted from the heartbeat on that was just answered, nobody else gets them."""
        address = self._client._coordinators.get((0, self._group))
        if address is None or not self._coordinates(address[0], self._group):
            return
        for partition in sorted(partitions):
            self._held.add(partition)
            until_s = sent_s + SESSION_MS / 1000
            self._client.history.holds(self._group, partition, self._member_id, self._client.now_s(), until_s)

    async def _take(self, partitions: set[Partition]) -> None:
        """Go on where the group was. What is not known remains to be taken."""
        if not partitions:
            return
        client = self._client
        await client.refresh([self._topic])
        indexes = sorted(index for _, index in partitions)
        topic_id = client.topic_ids.get(self._topic, bytes(16))
        topics = [m.OffsetFetchRequest.OffsetFetchRequestTopics(self._topic, topic_id, indexes)]
        group = m.OffsetFetchRequest.OffsetFetchRequestGroup(self._group, self._member_id, self._epoch, topics)
        response = await ask_coordinator(client, self._group, m.OffsetFetchRequest(groups=[group], require_stable=True))
        answer = None if response is None else response.groups[0]
        if answer is None or answer.error_code:
            if answer is not None:
                self._refused(answer.error_code)
            self._says_all = True  # the assignment is told again then
            return
        for topic in answer.topics:
            for each in topic.partitions:
                partition = (self._topic, each.partition_index)
                if each.error_code:
                    self._says_all = True
                    continue
                client.history.offset_fetched(self._group, partition, each.committed_offset)
                self.owned[partition] = max(0, each.committed_offset)

    # -- work

    async def _read(self) -> bool:
        """Read and commit a little. Whether there was anything to do."""
        client = self._client
        partitions = sorted(self.owned)
        if not partitions:
            return False
        partition = partitions[client.random.below(len(partitions))]
        offset = self.owned[partition]
        found = await client.fetch(partition, offset, committed=True, max_wait_ms=300)
        if found is None or found[0] <= offset:
            return False
        if self._is_restless():
            await pause(client)
        code = await self._commit(partition, found[0])
        if not code:
            self.owned[partition] = self.positions[partition] = found[0]
            await asyncio.sleep(0.8 * client.random.fraction())
        return not code

    async def _commit(self, partition: Partition, offset: int) -> int:
        client = self._client
        each = m.OffsetCommitRequest.OffsetCommitRequestPartition(partition[1], offset, -1, "")
        topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(
            name=partition[0], topic_id=client.topic_ids[partition[0]], partitions=[each]
        )
        request = m.OffsetCommitRequest(self._group, self._epoch, self._member_id, None, -1, [topic])
        response = await ask_coordinator(client, self._group, request)
        if response is None:
            return int(ErrorCode.REQUEST_TIMED_OUT)
        code = int(response.topics[0].partitions[0].error_code)
        if code:
            self._refused(code)
        else:
            client.history.offset_committed(self._group, partition, offset)
        return code
