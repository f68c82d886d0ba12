"""Those on whom the failures of others must have no effect: a member of a classic group and one of the new protocol
that only say that they are alive, and a transaction that is open meanwhile. In a world whose only trouble is that
appends of coordinators fail, they hear no error, are asked to do nothing, and the transaction can be committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from moldau.log.checkpoints import uuid_text
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.simulation.client import SimClient
from tests.simulation.group_member import ask_coordinator
from tests.simulation.history import Outcome, Partition, Transaction, Write

_BEAT_S = 0.3
_LONG_MS = 60_000
_RULE = "the failures of others have no effect"


class Bystanders:
    def __init__(self, client: SimClient, partition: Partition, now_ms: Callable[[], int]) -> None:
        self._client = client
        self._partition = partition
        self._now_ms = now_ms
        self._generation, self._member = -1, ""
        self._epoch, self._id = -1, ""
        self._producer = (-1, -1)
        self._transaction = Transaction("bystander#1")

    async def begin(self) -> None:
        """Before anything fails."""
        await self._join_classic()
        await self._join_new()
        await self._begin_transaction()

    async def stand_by(self, is_troubled: Callable[[], bool]) -> None:
        while is_troubled():
            beat = await ask_coordinator(
                self._client, "bystanders", m.HeartbeatRequest("bystanders", self._generation, self._member)
            )
            if beat is None or beat.error_code:
                self._heard("the classic member", None if beat is None else beat.error_code)
            answer = await self._beat_new(joins=False)
            if answer is None or answer.error_code or answer.member_epoch != self._epoch:
                self._heard("the member of the new protocol", None if answer is None else answer.error_code)
            await asyncio.sleep(_BEAT_S)

    async def end(self) -> None:
        """When all is well again, what was begun before can be ended."""
        producer_id, epoch = self._producer
        end = m.EndTxnRequest("bystander", producer_id, epoch, True)
        self._transaction.outcome = Outcome.UNKNOWN
        _, codes = await self._client.to_coordinator(1, "bystander", end, lambda answer: [answer.error_code])
        if any(codes):
            self._heard("the transaction", codes[0])
        else:
            self._transaction.outcome = Outcome.COMMITTED

    def _heard(self, who: str, code: int | None) -> None:
        self._client.history.violated(_RULE, f"{who} heard {'nothing' if code is None else ErrorCode(code).name}")

    async def _join_classic(self) -> None:
        while True:
            kind = m.JoinGroupRequest
            joined = await ask_coordinator(
                self._client,
                "bystanders",
                kind(
                    group_id="bystanders",
                    session_timeout_ms=_LONG_MS // 10,
                    rebalance_timeout_ms=_LONG_MS // 10,
                    member_id=self._member,
                    protocol_type="consumer",
                    protocols=[kind.JoinGroupRequestProtocol("range", b"")],
                ),
            )
            if joined is not None:
                self._member = joined.member_id or self._member
            if joined is not None and not joined.error_code:
                each = m.SyncGroupRequest.SyncGroupRequestAssignment(self._member, b"")
                sync = m.SyncGroupRequest(
                    "bystanders", joined.generation_id, self._member, None, "consumer", "range", [each]
                )
                synced = await ask_coordinator(self._client, "bystanders", sync)
                if synced is not None and not synced.error_code:
                    self._generation = joined.generation_id
                    return
            await asyncio.sleep(_BEAT_S)

    async def _beat_new(self, *, joins: bool) -> Any:
        kind = m.ConsumerGroupHeartbeatRequest
        request = kind(
            group_id="new-bystanders",
            member_id=self._id,
            member_epoch=0 if joins else self._epoch,
            rebalance_timeout_ms=_LONG_MS if joins else -1,
            subscribed_topic_names=[self._partition[0]] if joins else None,
            topic_partitions=[] if joins else None,
        )
        return await ask_coordinator(self._client, "new-bystanders", request)

    async def _join_new(self) -> None:
        self._id = uuid_text(self._client.random.uuid())
        answer = None
        while answer is None or answer.error_code:
            answer = await self._beat_new(joins=True)
            await asyncio.sleep(_BEAT_S)
        self._epoch = answer.member_epoch
        owned = answer.assignment.topic_partitions if answer.assignment is not None else []
        kind = m.ConsumerGroupHeartbeatRequest
        confirm = kind(
            group_id="new-bystanders",
            member_id=self._id,
            member_epoch=self._epoch,
            topic_partitions=[kind.TopicPartitions(each.topic_id, each.partitions) for each in owned],
        )
        answer = None
        while answer is None or answer.error_code:
            answer = await ask_coordinator(self._client, "new-bystanders", confirm)
            await asyncio.sleep(_BEAT_S)

    async def _begin_transaction(self) -> None:
        client, history = self._client, self._client.history
        self._producer = await client.init_producer_id("bystander", _LONG_MS)
        history.transactions.append(self._transaction)
        write = Write(self._partition, b"bystander-0", "bystander", 0, self._transaction)
        # Partitions are added by their leader (KIP-890).
        await client.produce([history.written(write)], *self._producer, 0, self._now_ms(), "bystander")
