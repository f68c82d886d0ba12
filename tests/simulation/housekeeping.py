"""Topics that nodes keep house in while everything goes wrong: a compacted one, one that is deleted and made again
under its name (with retention, DeleteRecords, more partitions), one whose owner prefers availability to safety.

What is promised of each is checked all the time and at the end, of every replica, by reading it:
- of a compacted topic: at every isolation level, the newest value of each key whose write was acknowledged (and whose
  transaction was committed) before the reading began, or a newer one;
- of a topic that was made again: everything acknowledged since, nothing of the former one; what was deleted stays
  deleted, and nothing else is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from moldau.records import BatchOptions, build_batch
from moldau.seams import Random
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m
from tests.simulation.client import SimClient
from tests.simulation.history import Fate, History, Outcome, Partition

KEYS, AGAIN, LOOSE = "keys", "again", "loose"
_KEYS_PER_PARTITION = 6
_BROAD = 17  # partitions: one more than are made at once
_PAUSE_S = 0.2
_TRY_S = 4.0

# Everything that is done now and then is done every second or so.
SETTINGS = (
    ("log.cleaner.backoff.ms", "400"),
    ("log.cleaner.threads", "2"),
    ("log.cleaner.dedupe.buffer.size", "4194304"),
    ("log.retention.check.interval.ms", "1000"),
    ("log.flush.offset.checkpoint.interval.ms", "700"),
    ("log.flush.start.offset.checkpoint.interval.ms", "900"),
    ("replica.high.watermark.checkpoint.interval.ms", "500"),
    ("log.roll.ms", "2500"),  # also of the internal topics
    ("log.cleaner.min.cleanable.ratio", "0.2"),
)
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "1200",
    "min.cleanable.dirty.ratio": "0.01",
    # Longer than any replica is away: one that lacks a marker when the others have removed it never gets it (seed
    # 14001413), in Kafka neither.
    "delete.retention.ms": "30000",
    "file.delete.delay.ms": "300",
}
_UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1", "segment.ms": "1500"}


def some_key(random: Random) -> bytes:
    return b"key-%d" % random.below(_KEYS_PER_PARTITION)


async def create_topic(client: SimClient, name: str, partitions: int, replicas: int, configs: dict[str, str]) -> None:
    """Until it is there."""
    kind = m.CreateTopicsRequest
    config = [kind.CreatableTopicConfig(key, value) for key, value in configs.items()]
    topic = kind.CreatableTopic(name, partitions, replicas, configs=config)
    while True:
        response = await client.any_broker(kind(topics=[topic], timeout_ms=2_000))
        if response.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            return
        await asyncio.sleep(_PAUSE_S)


# -- compacted


class Compacted:
    """What is known of a topic of keys; `History` has the writes."""

    def __init__(self, history: History, partitions: list[Partition]) -> None:
        self._history = history
        self.partitions = partitions
        self.checks = 0

    def _known(self, partition: Partition) -> list[tuple[bytes, int]]:
        """(key, offset) of each write that counts by now: what was aborted may be removed for everybody."""
        return [
            (write.key, write.offset)
            for write in self._history.writes.values()
            if write.partition == partition
            and write.key is not None
            and write.fate is Fate.ACKED
            and write.offset >= 0
            and (write.transaction is None or write.transaction.outcome is Outcome.COMMITTED)
        ]

    async def check(
        self, client: SimClient, partition: Partition, *, committed: bool, node_id: int | None = None
    ) -> bool:
        """Read it all and compare. Whether that worked."""
        known = self._known(partition)
        leader = client._leaders.get(partition)
        found = await client.read_log(partition, committed=committed, node_id=node_id)
        if found is None or client._leaders.get(partition) != leader:
            return False
        self.checks += 1
        _, records, end = found
        newest: dict[bytes, int] = {}
        for offset, key, value in records:
            if key is not None:
                newest[key] = offset
                self._history.read(f"{client.name}", partition, offset, value)
                self._not_aborted(partition, offset, value, committed=committed)
        promised: dict[bytes, int] = {}
        for key, offset in known:
            if offset < end:
                promised[key] = max(offset, promised.get(key, -1))
        for key, offset in promised.items():
            if newest.get(key, -1) < offset:
                self._history.violated(
                    "a compacted topic holds the newest value of every key",
                    f"{partition} {'committed' if committed else ''} on {node_id or 'the leader'}: {key!r} was written "
                    f"at {offset}, found {newest.get(key)} of {end}",
                )
        return True

    def _not_aborted(self, partition: Partition, offset: int, value: bytes, *, committed: bool) -> None:
        write = self._history.writes.get(value)
        transaction = None if write is None else write.transaction
        if committed and transaction is not None and transaction.outcome is Outcome.ABORTED:
            self._history.violated("an aborted transaction is never seen", f"{value!r} in {partition}@{offset}")

    async def watch(self, client: SimClient) -> None:
        """Look again and again, until the client is told to stop."""
        while not client.is_stopping:
            partition = self.partitions[client.random.below(len(self.partitions))]
            await self.check(client, partition, committed=bool(client.random.below(2)))
            await asyncio.sleep(client.random.fraction())


# -- deleted, and made again


@dataclass(slots=True)
class _Incarnation:
    topic_id: bytes
    keeps_all: bool  # no retention
    is_compacted: bool
    partitions: int
    acked: dict[Partition, list[tuple[int, bytes]]] = field(default_factory=dict)
    # Up to where it was asked to delete, and told that it did.
    asked: dict[Partition, int] = field(default_factory=dict)
    deleted: dict[Partition, int] = field(default_factory=dict)


class MadeAgain:
    """One topic, deleted and made again under its name, by one owner who remembers what each had."""

    def __init__(
        self,
        client: SimClient,
        replicas: int,
        now_ms: Callable[[], int],
        *,
        is_broad: bool = False,
        is_hasty: bool = False,
    ) -> None:
        """`is_broad`: it has so many partitions that a node makes and removes its replicas in turns. `is_hasty`: it is
        always compacted, rolled quickly, and made again while it is cleaned."""
        self._is_hasty = is_hasty
        self.client = client
        self._is_broad = is_broad
        self._replicas = replicas
        self._now_ms = now_ms
        self._numbers = count()
        self._current: _Incarnation | None = None
        self._stray = 0
        self.incarnations = 0
        self.checks = 0

    async def run(self) -> None:
        """Until the client is told to stop: the last one stays, to be looked at."""
        client = self.client
        while not client.is_stopping:
            current = await self._create()
            if current is None:
                continue
            self._current = current
            self.incarnations += 1
            for _ in range(2 + client.random.below(12)):
                await self._some(current)
                await asyncio.sleep((0.15 if self._is_hasty else 0.3) * client.random.fraction())
            await self._delete()

    async def _some(self, current: _Incarnation) -> None:
        """Mostly writes; now and then something else."""
        random = self.client.random
        what = random.below(12)
        partition = (AGAIN, random.below(current.partitions))
        if what < 8:
            await self._write(current, partition)
        elif what < 10:
            await self._delete_records(current, partition)
        elif what == 10 and current.partitions % _BROAD < 3:
            await self._grow(current)
        else:
            await self.check(partition)

    async def _create(self) -> _Incarnation | None:
        client, random = self.client, self.client.random
        keeps_all, is_compacted = bool(random.below(3)), self._is_hasty or not random.below(3)
        configs = {"segment.ms": "800", "file.delete.delay.ms": "300"}
        if is_compacted:
            configs, keeps_all = COMPACTED | ({"segment.ms": "150"} if self._is_hasty else {}), True
        elif not keeps_all:
            configs["retention.bytes"] = "400"
        partitions = 1 + random.below(2) + (_BROAD if self._is_broad and random.below(3) else 0)
        kind = m.CreateTopicsRequest
        config = [kind.CreatableTopicConfig(key, value) for key, value in configs.items()]
        topic = kind.CreatableTopic(AGAIN, partitions, self._replicas, configs=config)
        answer = await self._try(kind(topics=[topic], timeout_ms=2_000))
        if answer is None or answer.topics[0].error_code:
            # Perhaps it was made all the same, and we do not know how: begin again.
            await self._delete()
            return None
        client.topic_ids[AGAIN] = answer.topics[0].topic_id
        self._forget()
        return _Incarnation(answer.topics[0].topic_id, keeps_all, is_compacted, partitions)

    def _forget(self) -> None:
        for partition in [each for each in self.client._leaders if each[0] == AGAIN]:
            del self.client._leaders[partition]

    async def _delete(self) -> None:
        """Until it is gone; but the last one stays."""
        kind = m.DeleteTopicsRequest
        if not self.client.is_stopping:
            self._current = None
        while not self.client.is_stopping:
            # By its id: a request that was given up may still be carried out, and must not hit the next one.
            self.client.topic_ids.pop(AGAIN, None)
            await self.client.refresh([AGAIN])
            topic_id = self.client.topic_ids.get(AGAIN)
            if topic_id is None:
                return
            answer = await self._try(kind(topics=[kind.DeleteTopicState(None, topic_id)], timeout_ms=2_000))
            if answer is not None and answer.responses[0].error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID):
                return
            await asyncio.sleep(_PAUSE_S)

    async def _try(self, request: Message) -> Any:
        try:
            async with asyncio.timeout(_TRY_S):
                return await self.client.any_broker(request)
        except TimeoutError:
            return None

    def _is_stale(self, current: _Incarnation) -> bool:
        """A broker may still know the former topic, and its id."""
        if self.client.topic_ids.get(AGAIN) != current.topic_id:
            self.client.topic_ids[AGAIN] = current.topic_id
            self._forget()
            return True
        return False

    async def _write(self, current: _Incarnation, partition: Partition) -> None:
        client = self.client
        value = b"again-%d" % next(self._numbers)
        batch = bytes(build_batch([(0, self._now_ms(), value, value, ())], BatchOptions()))

        def request(_: bytes, __: int) -> Message:
            data = m.ProduceRequest.PartitionProduceData(partition[1], batch)
            topic = m.ProduceRequest.TopicProduceData(name=AGAIN, topic_id=current.topic_id, partition_data=[data])
            return m.ProduceRequest(None, -1, 1_500, [topic])

        for _ in range(20):
            answer = await client.to_leader(partition, request)
            if answer is not None and not self._is_stale(current):
                result = answer.responses[0].partition_responses[0]
                if not result.error_code:
                    current.acked.setdefault(partition, []).append((result.base_offset, value))
                    client.progress += 1
                    return
                client.lost_leader(partition, result.error_code)
            await asyncio.sleep(0.1)

    async def _delete_records(self, current: _Incarnation, partition: Partition) -> None:
        acked = current.acked.get(partition)
        if not acked or current.is_compacted:
            return
        upto = acked[self.client.random.below(len(acked))][0]
        current.asked[partition] = max(upto, current.asked.get(partition, 0))
        kind = m.DeleteRecordsRequest

        def request(_: bytes, __: int) -> Message:
            each = kind.DeleteRecordsPartition(partition[1], upto)
            return kind([kind.DeleteRecordsTopic(AGAIN, [each])], 2_000)

        answer = await self.client.to_leader(partition, request)
        if answer is None:
            self._stray = max(self._stray, upto)  # it goes by the name, and may be carried out at any time
        else:
            result = answer.topics[0].partitions[0]
            if not result.error_code:
                told = max(upto, result.low_watermark)
                current.deleted[partition] = max(told, current.deleted.get(partition, 0))

    async def _grow(self, current: _Incarnation) -> None:
        kind = m.CreatePartitionsRequest
        more = _BROAD if self._is_broad and not self.client.random.below(3) else 1
        topic = kind.CreatePartitionsTopic(AGAIN, current.partitions + more, None)
        answer = await self._try(kind([topic], 2_000, False))
        if answer is not None and not answer.results[0].error_code:
            current.partitions += more

    async def check(self, partition: Partition, node_id: int | None = None) -> bool:
        """All that was acknowledged since it was made, and not deleted, is there."""
        current, client = self._current, self.client
        if current is None:
            return True
        acked = list(current.acked.get(partition, ()))
        deleted = current.deleted.get(partition, 0)
        found = await client.read_log(partition, committed=False, node_id=node_id)
        if found is None or self._current is not current or self._is_stale(current):
            return False
        self.checks += 1
        log_start, records, end = found
        where = f"{partition} on {node_id or 'the leader'}"
        if current.keeps_all and log_start > max(self._stray, current.asked.get(partition, 0)):
            client.history.violated(
                "only what was deleted is gone", f"{where} starts at {log_start}, asked for {current.asked}"
            )
        if node_id is None and log_start < deleted:
            client.history.violated(
                "what was deleted stays deleted", f"{where} starts at {log_start}, deleted up to {deleted}"
            )
        there = {offset: value for offset, _, value in records}
        for offset, value in acked:
            if log_start <= offset and there.get(offset) != value and (node_id is None or offset < end):
                client.history.violated(
                    "no acknowledged record is lost",
                    f"{where} of {current.partitions} partitions, {len(acked)} records: {value!r} at {offset}, "
                    f"found {there.get(offset)!r}; it goes from {log_start} to {end}",
                )
                return True
        return True

    @property
    def current_partitions(self) -> list[Partition]:
        return [] if self._current is None else [(AGAIN, index) for index in range(self._current.partitions)]


# -- availability before safety


async def write_loosely(client: SimClient, replicas: int, now_ms: Callable[[], int]) -> None:
    """With acks=1, or none, to a topic whose leader may be anybody: nothing is promised but that it goes on."""
    await create_topic(client, LOOSE, 1, replicas, _UNCLEAN)
    for number in count():
        if client.is_stopping:
            return
        partition = (LOOSE, 0)
        batch = bytes(build_batch([(0, now_ms(), None, b"loose-%d" % number, ())], BatchOptions()))

        def request(topic_id: bytes, _: int, batch: bytes = batch) -> Message:
            data = m.ProduceRequest.PartitionProduceData(0, batch)
            topic = m.ProduceRequest.TopicProduceData(name=LOOSE, topic_id=topic_id, partition_data=[data])
            return m.ProduceRequest(None, 1, 1_500, [topic])

        answer = await client.to_leader(partition, request)
        if answer is not None:
            code = answer.responses[0].partition_responses[0].error_code
            if code:
                client.lost_leader(partition, code)
            else:
                client.progress += 1
        await asyncio.sleep(client.random.fraction())
