"""A member of a classic consumer group in the simulated world: joins, reads what it is given, commits, leaves."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from moldau.seams.network import Disconnected, RequestTimedOut
from moldau.wire import ErrorCode, Message, decode, encode
from moldau.wire import messages as m
from tests.simulation.client import SimClient
from tests.simulation.history import Partition

_SESSION_MS, _REBALANCE_MS = 3_000, 5_000
_HEARTBEAT_S = 0.5
_TRY_AGAIN_S = 0.1


async def ask_coordinator(client: SimClient, group: str, request: Message, timeout_ms: float = 3_000) -> Any:
    """One try; None after a failure."""
    key = (0, group)
    address = client._coordinators.get(key) or await client._find(*key)
    if address is not None:
        try:
            return await client.channels.call(*address, request, timeout_ms=timeout_ms, lane=group)
        except (Disconnected, RequestTimedOut) as error:
            client._noted(type(error).__name__)
    client._coordinators.pop(key, None)
    await asyncio.sleep(_TRY_AGAIN_S)
    return None


async def pause(client: SimClient) -> None:
    """Sometimes a process stands still between reading and committing, so long that others take it for dead."""
    if not client.random.below(30):
        await asyncio.sleep(client.random.fraction() * 2 * _SESSION_MS / 1000)


class GroupMember:
    def __init__(
        self, client: SimClient, group: str, topic: str, partitions: int, is_restless: Callable[[], bool]
    ) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._partitions = partitions
        self._is_restless = is_restless
        self._member_id = ""
        self._generation = -1
        self.positions: dict[Partition, int] = {}

    async def run(self) -> None:
        """Until the client is told to stop."""
        while not self._client.is_stopping:
            assigned = await self._join()
            if assigned is not None:
                await self._work(assigned)
        await self._ask(
            m.LeaveGroupRequest(group_id=self._group, members=[m.LeaveGroupRequest.MemberIdentity(self._member_id)])
        )

    async def _ask(self, request: Message, timeout_ms: float = 3_000) -> Any:
        return await ask_coordinator(self._client, self._group, request, timeout_ms)

    def _failed(self, code: int) -> None:
        self._client._noted(ErrorCode(code).name)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID):
            self._member_id, self._generation = "", -1
        elif code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self._client._coordinators.pop((0, self._group), None)

    async def _join(self) -> list[Partition] | None:
        subscription = struct.pack(">h", 1) + encode(m.ConsumerProtocolSubscription(topics=[self._topic]), 1)
        request = m.JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=_REBALANCE_MS,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol("range", subscription)],
        )
        joined = await self._ask(request, _REBALANCE_MS + 3_000)
        if joined is None:
            return None
        if joined.error_code:
            self._failed(joined.error_code)
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = joined.member_id
            else:
                await asyncio.sleep(_TRY_AGAIN_S)
            return None
        self._member_id, self._generation = joined.member_id, joined.generation_id
        plan = self._plan([each.member_id for each in joined.members]) if joined.leader == self._member_id else {}
        sync = m.SyncGroupRequest(
            group_id=self._group,
            generation_id=self._generation,
            member_id=self._member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[m.SyncGroupRequest.SyncGroupRequestAssignment(who, what) for who, what in plan.items()],
        )
        synced = await self._ask(sync, _REBALANCE_MS + 3_000)
        if synced is None:
            return None
        if synced.error_code:
            self._failed(synced.error_code)
            await asyncio.sleep(_TRY_AGAIN_S)
            return None
        if len(synced.assignment) < 2:
            return []
        assignment = decode(m.ConsumerProtocolAssignment, 1, synced.assignment[2:])
        owned = [(each.topic, index) for each in assignment.assigned_partitions for index in each.partitions]
        for partition in owned:
            self._client.history.owns(self._group, self._generation, partition, self._member_id)
        return owned

    def _plan(self, members: list[str]) -> dict[str, bytes]:
        plan: dict[str, list[int]] = {member: [] for member in sorted(members)}
        names = list(plan)
        for index in range(self._partitions):
            plan[names[index % len(names)]].append(index)
        return {member: self._encoded(indexes) for member, indexes in plan.items()}

    def _encoded(self, indexes: list[int]) -> bytes:
        topics = [m.ConsumerProtocolAssignment.TopicPartition(self._topic, indexes)] if indexes else []
        return struct.pack(">h", 1) + encode(m.ConsumerProtocolAssignment(topics), 1)

    async def _work(self, assigned: list[Partition]) -> None:
        """Read and commit until the group rebalances."""
        client = self._client
        positions = await self._committed(assigned)
        if positions is None:
            return
        heartbeat_at = client.now_s() + _HEARTBEAT_S
        while not client.is_stopping:
            for partition in assigned:
                found = await client.fetch(partition, positions[partition], committed=True, max_wait_ms=300)
                if found is not None and found[0] > positions[partition]:
                    positions[partition] = found[0]
                    if self._is_restless():
                        await pause(client)
                    code = await self._commit(partition, found[0])
                    if code:
                        return
                    self.positions[partition] = found[0]
                    await asyncio.sleep(0.8 * client.random.fraction())
            if not assigned:
                await asyncio.sleep(_HEARTBEAT_S)
            if client.now_s() >= heartbeat_at:
                heartbeat_at = client.now_s() + _HEARTBEAT_S
                beat = await self._ask(m.HeartbeatRequest(self._group, self._generation, self._member_id))
                if beat is not None and beat.error_code:
                    self._failed(beat.error_code)
                    return

    async def _committed(self, assigned: list[Partition]) -> dict[Partition, int] | None:
        client = self._client
        await client.refresh([self._topic])
        topic_id = client.topic_ids.get(self._topic, bytes(16))
        topics = [
            m.OffsetFetchRequest.OffsetFetchRequestTopics(self._topic, topic_id, [index for _, index in assigned])
        ]
        group = m.OffsetFetchRequest.OffsetFetchRequestGroup(self._group, self._member_id, self._generation, topics)
        response = await self._ask(m.OffsetFetchRequest(groups=[group], require_stable=True))
        if response is None:
            return None
        answer = response.groups[0]
        if answer.error_code:
            self._failed(answer.error_code)
            return None
        positions = {}
        for topic in answer.topics:
            for each in topic.partitions:
                if each.error_code:
                    self._failed(each.error_code)
                    return None
                partition = (self._topic, each.partition_index)
                client.history.offset_fetched(self._group, partition, each.committed_offset)
                positions[partition] = max(0, each.committed_offset)
        return positions

    async def _commit(self, partition: Partition, offset: int) -> int:
        """Nonzero: the group went on without us, or nobody knows."""
        client = self._client
        each = m.OffsetCommitRequest.OffsetCommitRequestPartition(partition[1], offset, -1, "")
        topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(
            name=partition[0], topic_id=client.topic_ids[partition[0]], partitions=[each]
        )
        request = m.OffsetCommitRequest(self._group, self._generation, self._member_id, None, -1, [topic])
        response = await self._ask(request)
        if response is None:
            return int(ErrorCode.REQUEST_TIMED_OUT)
        code = int(response.topics[0].partitions[0].error_code)
        if code:
            self._failed(code)
        else:
            client.history.offset_committed(self._group, partition, offset)
        return code
