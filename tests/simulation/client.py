"""A small Kafka client on the network seam: it finds leaders and coordinators, retries as Kafka's clients do, and
writes down what happened in a `History`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from moldau.broker.channels import Channels
from moldau.records import BatchOptions, CorruptBatch, build_batch, iter_records
from moldau.records.codecs import Codec
from moldau.records.fetched import iter_fetched
from moldau.seams import Random
from moldau.seams.network import Disconnected, RequestTimedOut
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m
from tests.simulation.history import Fate, History, Outcome, Partition, Transaction, Write
from tests.simulation.network import SimNetwork
from tests.simulation.read_order import CommittedReader

_TIMEOUT_MS = 3_000
_BACKOFF_S = 0.1
_OUT_OF_ORDER_MAX = 100
_CODECS = (Codec.NONE, Codec.NONE, Codec.LZ4, Codec.GZIP, Codec.ZSTD, Codec.SNAPPY)
_NOT_RETRIABLE = {
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.TRANSACTION_ABORTABLE,
}


@dataclass(slots=True, frozen=True)
class Fetched:
    """What one fetch brought: (offset, key, value) of each record."""

    next_offset: int
    records: list[tuple[int, bytes | None, bytes]]
    high_watermark: int
    log_start: int
    is_out_of_range: bool = False
    preferred_replica: int = -1  # where the leader would rather have the reader read


class Fatal(Exception):
    """An error a client must not retry."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode(code).name)
        self.code = ErrorCode(code)


class SimClient:
    def __init__(
        self, name: str, network: SimNetwork, bootstrap: list[tuple[str, int]], history: History, random: Random
    ) -> None:
        self.name = name
        self.history = history
        self.random = random
        self.channels = Channels(network, name)
        self._bootstrap = bootstrap
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[Partition, tuple[int, int]] = {}
        self.topic_ids: dict[str, bytes] = {}
        self._coordinators: dict[tuple[int, str], tuple[str, int]] = {}
        self.errors: dict[str, int] = {}
        self.is_stopping = False
        # Told when a leader serves damaged records.
        self.report_damage: Callable[[Partition, int], None] = lambda partition, node_id: None
        self.progress = 0  # writes acknowledged, transactions ended

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _noted(self, what: str) -> None:
        self.errors[what] = self.errors.get(what, 0) + 1

    async def any_broker(self, request: Message, *, timeout_ms: float = _TIMEOUT_MS) -> Any:
        """Ask whoever answers."""
        while True:
            known = [*self._brokers.values(), *self._bootstrap]
            host, port = known[self.random.below(len(known))]
            try:
                return await self.channels.call(host, port, request, timeout_ms=timeout_ms)
            except (Disconnected, RequestTimedOut) as error:
                self._noted(type(error).__name__)
                await asyncio.sleep(_BACKOFF_S)

    async def refresh(self, topics: list[str]) -> None:
        request = m.MetadataRequest(
            topics=[m.MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
        )
        response = await self.any_broker(request)
        self._brokers = {each.node_id: (each.host, each.port) for each in response.brokers}
        for topic in response.topics:
            if topic.error_code:
                continue
            self.topic_ids[topic.name] = topic.topic_id
            for each in topic.partitions:
                self._leaders[topic.name, each.partition_index] = (each.leader_id, each.leader_epoch)

    async def to_leader(
        self, partition: Partition, request: Callable[[bytes, int], Message], node_id: int | None = None
    ) -> Any:
        """One try: the answer, or None after a failure (then the leader is looked up anew the next time). With
        `node_id`, another replica is asked."""
        if partition not in self._leaders:
            await self.refresh([partition[0]])
        leader, epoch = self._leaders.get(partition, (-1, -1))
        address = self._brokers.get(leader if node_id is None else node_id)
        if address is None:
            self._leaders.pop(partition, None)
            await asyncio.sleep(_BACKOFF_S)
            return None
        try:
            made = request(self.topic_ids[partition[0]], epoch)
            return await self.channels.call(*address, made, timeout_ms=_TIMEOUT_MS)
        except (Disconnected, RequestTimedOut) as error:
            self._noted(type(error).__name__)
            self._leaders.pop(partition, None)
            await asyncio.sleep(_BACKOFF_S)
            return None

    def leader_address(self, partition: Partition) -> tuple[str, int] | None:
        """As far as is known."""
        return self._brokers.get(self._leaders.get(partition, (-1, -1))[0])

    def lost_leader(self, partition: Partition, code: int) -> None:
        self._noted(ErrorCode(code).name)
        self._leaders.pop(partition, None)

    async def to_coordinator(
        self, kind: int, key: str, request: Message, codes: Callable[[Any], list[int]]
    ) -> tuple[Any, list[int]]:
        """Ask the coordinator until its answer is no error that is to be retried; raises Fatal."""
        while True:
            address = self._coordinators.get((kind, key)) or await self._find(kind, key)
            if address is not None:
                try:
                    response = await self.channels.call(*address, request, timeout_ms=_TIMEOUT_MS)
                except (Disconnected, RequestTimedOut) as error:
                    self._noted(type(error).__name__)
                else:
                    found = codes(response)
                    for code in found:
                        if code in _NOT_RETRIABLE:
                            raise Fatal(code)
                    if not any(found) or not any(_is_retriable(code) for code in found):
                        return response, found
                    self._noted(ErrorCode(next(code for code in found if code)).name)
            self._coordinators.pop((kind, key), None)
            await asyncio.sleep(_BACKOFF_S)

    async def _find(self, kind: int, key: str) -> tuple[str, int] | None:
        response = await self.any_broker(m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]))
        found = response.coordinators[0] if response.coordinators else None
        if found is None or found.error_code:
            return None
        self._coordinators[kind, key] = (found.host, found.port)
        return self._coordinators[kind, key]

    async def init_producer_id(self, transactional_id: str | None, timeout_ms: int = 5_000) -> tuple[int, int]:
        request = m.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        if transactional_id is not None:
            response, _ = await self.to_coordinator(1, transactional_id, request, lambda r: [r.error_code])
        else:
            while (response := await self.any_broker(request)).error_code:
                self._noted(ErrorCode(response.error_code).name)
                await asyncio.sleep(_BACKOFF_S)
        return response.producer_id, response.producer_epoch

    async def produce(
        self,
        writes: list[Write],
        producer_id: int,
        epoch: int,
        sequence: int,
        timestamp_ms: int,
        transactional_id: str | None = None,
        acks: int = -1,
    ) -> None:
        """Send until acknowledged. Raises Fatal."""
        partition = writes[0].partition
        options = BatchOptions(
            codec=_CODECS[self.random.below(len(_CODECS))],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional_id is not None,
        )
        batch = bytes(
            build_batch(
                [(place, timestamp_ms, write.key, write.value, ()) for place, write in enumerate(writes)], options
            )
        )

        def request(topic_id: bytes, _: int) -> Message:
            data = m.ProduceRequest.PartitionProduceData(partition[1], batch)
            topic = m.ProduceRequest.TopicProduceData(name=partition[0], topic_id=topic_id, partition_data=[data])
            return m.ProduceRequest(transactional_id, acks, _TIMEOUT_MS // 2, [topic])

        out_of_order = 0
        while True:
            response = await self.to_leader(partition, request)
            if response is None:
                continue
            result = response.responses[0].partition_responses[0]
            code = result.error_code
            if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                for place, write in enumerate(writes):
                    self.history.acked(write, result.base_offset + place if result.base_offset >= 0 else -1)
                return
            # A leader that was cut off and does not know yet that another one took its place misses what came since.
            out_of_order += code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            if code in _NOT_RETRIABLE and not 0 < out_of_order < _OUT_OF_ORDER_MAX:
                raise Fatal(code)
            self.lost_leader(partition, code)
            await asyncio.sleep(_BACKOFF_S)

    async def fetch(
        self, partition: Partition, offset: int, *, committed: bool, max_wait_ms: int = 200
    ) -> tuple[int, list[tuple[int, bytes]], int] | None:
        """(next offset, records, high watermark), or None if it has to be tried again."""
        found = await self.fetch_more(partition, offset, committed=committed, max_wait_ms=max_wait_ms)
        if found is None or found.is_out_of_range:
            return None
        return found.next_offset, [(at, value) for at, _, value in found.records], found.high_watermark

    async def fetch_more(
        self,
        partition: Partition,
        offset: int,
        *,
        committed: bool,
        max_wait_ms: int = 200,
        node_id: int | None = None,
        rack: str = "",
    ) -> Fetched | None:
        """One fetch from the leader, or from any replica; None if it has to be tried again. With `rack`, the leader may
        send the reader elsewhere."""

        def request(topic_id: bytes, epoch: int) -> Message:
            asked = m.FetchRequest.FetchPartition(
                partition=partition[1], current_leader_epoch=epoch, fetch_offset=offset, partition_max_bytes=1 << 20
            )
            return m.FetchRequest(
                max_wait_ms=max_wait_ms,
                min_bytes=1,
                max_bytes=1 << 20,
                isolation_level=1 if committed else 0,
                session_epoch=-1,
                rack_id=rack,
                topics=[m.FetchRequest.FetchTopic(topic=partition[0], topic_id=topic_id, partitions=[asked])],
            )

        frame = await self.to_leader(partition, request, node_id=node_id)
        if frame is None:
            return None
        answer = None if frame.error_code or not frame.topics else frame.topics[0][1][0]
        if answer is not None and answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return Fetched(offset, [], -1, -1, is_out_of_range=True)
        asked = self._leaders.get(partition, (-1, -1))[0] if node_id is None else node_id
        if answer is None or answer.error_code:
            if answer is not None and answer.error_code == ErrorCode.CORRUPT_MESSAGE:  # it cannot read it itself
                self.report_damage(partition, asked)
            self.lost_leader(partition, frame.error_code if answer is None else answer.error_code)
            await asyncio.sleep(_BACKOFF_S)
            return None
        data = b"".join(bytes(piece) for piece in answer.records)
        try:
            next_offset, records = _read(data, offset, (answer.aborted or ()) if committed else ())
        except CorruptBatch:
            self.report_damage(partition, asked)
            self.lost_leader(partition, ErrorCode.CORRUPT_MESSAGE)
            await asyncio.sleep(1.0)
            return None
        return Fetched(
            next_offset,
            records,
            answer.high_watermark,
            answer.log_start_offset,
            preferred_replica=answer.preferred_read_replica,
        )

    async def read_log(
        self, partition: Partition, *, committed: bool, node_id: int | None = None
    ) -> tuple[int, list[tuple[int, bytes | None, bytes]], int] | None:
        """(log start, everything visible, where it ended) in one go; None if that did not work this time."""
        everything: list[tuple[int, bytes | None, bytes]] = []
        offset = log_start = 0
        while True:
            found = await self.fetch_more(partition, offset, committed=committed, max_wait_ms=0, node_id=node_id)
            if found is None:
                return None
            if found.is_out_of_range:
                earliest = await self.earliest(partition, node_id)
                if earliest is None or earliest <= offset:
                    return None
                log_start = offset = earliest
                everything.clear()
                continue
            log_start = max(log_start, found.log_start)
            everything += found.records
            if found.next_offset == offset:
                return log_start, everything, offset
            offset = found.next_offset

    async def earliest(self, partition: Partition, node_id: int | None = None) -> int | None:
        """The log start offset, as a replica tells it."""

        def request(_: bytes, epoch: int) -> Message:
            asked = m.ListOffsetsRequest.ListOffsetsPartition(partition[1], epoch, -2)
            return m.ListOffsetsRequest(-1, 0, [m.ListOffsetsRequest.ListOffsetsTopic(partition[0], [asked])])

        answer = await self.to_leader(partition, request, node_id=None)
        found = None if answer is None else answer.topics[0].partitions[0]
        if found is None or found.error_code:
            self._leaders.pop(partition, None)
            return None
        offset: int = found.offset
        return offset

    async def close(self) -> None:
        await self.channels.close()


def _read(data: bytes, offset: int, aborted: Any) -> tuple[int, list[tuple[int, bytes | None, bytes]]]:
    """(next offset, visible records)."""
    next_offset = offset
    records: list[tuple[int, bytes | None, bytes]] = []
    for position, header, visible in iter_fetched(data, offset, aborted):
        next_offset = header.next_offset
        if visible:
            found = ((record.offset, record.key, record.value or b"") for record in iter_records(data, position))
            records += [each for each in found if each[0] >= offset]
    return next_offset, records


def _is_retriable(code: int) -> bool:
    return code in {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }


def no_key(_: Random) -> bytes | None:
    return None


class OffsetBook:
    """Offsets that one producer commits for a group in its transactions, always greater ones."""

    def __init__(self, group: str, partition: Partition) -> None:
        self.group = group
        self.partition = partition
        self._last = 0
        self.committed = -1
        self.aborted: set[int] = set()

    def begin(self) -> int:
        self._last += 1
        return self._last

    def ended(self, offset: int, *, is_committed: bool) -> None:
        if is_committed:
            self.committed = offset
        else:
            self.aborted.add(offset)


@dataclass(slots=True, frozen=True)
class TransactionKind:
    """How a transactional producer goes about it. A modern one lets the partition leaders add partitions (KIP-890)."""

    is_modern: bool = False
    key: Callable[[Random], bytes | None] = no_key
    is_judged_whole: bool = True  # not where compaction may take part of it away
    dawdles: bool = False
    offsets: OffsetBook | None = None


async def write_idempotently(
    client: SimClient,
    partitions: list[Partition],
    values: Iterator[bytes],
    now_ms: Callable[[], int],
    key: Callable[[Random], bytes | None] = no_key,
) -> None:
    """Write values with acks=all and a producer id, one batch at a time per partition, until told to stop."""
    producer_id, epoch = await client.init_producer_id(None)
    incarnation = f"{client.name}/{producer_id}"
    sequences = dict.fromkeys(partitions, 0)
    number = 0
    while not client.is_stopping:
        value = next(values)
        partition = partitions[client.random.below(len(partitions))]
        count = 1 + client.random.below(5)
        writes = []
        for place in range(count):
            number += 1
            write = Write(partition, b"%s.%d" % (value, place), incarnation, number, key=key(client.random))
            writes.append(client.history.written(write))
        try:
            await client.produce(writes, producer_id, epoch, sequences[partition], now_ms())
        except Fatal as error:
            client.history.violated("an idempotent producer is not refused", f"{client.name} {partition}: {error}")
            return
        sequences[partition] += count
        client.progress += 1
        await asyncio.sleep(0.8 * client.random.fraction())


async def write_transactionally(
    client: SimClient,
    transactional_id: str,
    partitions: list[Partition],
    values: Iterator[bytes],
    now_ms: Callable[[], int],
    kind: TransactionKind | None = None,
) -> None:
    """Transactions over some partitions, committed or aborted at random, until told to stop."""
    kind = kind or TransactionKind()
    number = 0
    while not client.is_stopping:
        try:
            producer_id, epoch = await client.init_producer_id(transactional_id)
            sequences: dict[Partition, int] = {}
            while not client.is_stopping:
                number += 1
                name = f"{transactional_id}#{number}"
                transaction = Transaction(name)
                if kind.is_judged_whole:
                    client.history.transactions.append(transaction)
                count = 1 + client.random.below(len(partitions))
                start = client.random.below(len(partitions))
                chosen = sorted({partitions[(start + place) % len(partitions)] for place in range(count)})
                try:
                    epoch_after = await _one_transaction(
                        client,
                        transactional_id,
                        producer_id,
                        epoch,
                        chosen,
                        sequences,
                        transaction,
                        values,
                        now_ms,
                        kind,
                    )
                except Fatal:
                    if transaction.outcome is Outcome.OPEN:
                        transaction.outcome = Outcome.UNKNOWN
                    raise
                client.progress += 1
                if epoch_after != epoch:
                    epoch, sequences = epoch_after, {}
                await asyncio.sleep(0.7 * client.random.fraction())
        except Fatal as error:
            client._noted(f"begins anew after {error}")
            await asyncio.sleep(_BACKOFF_S)


async def _one_transaction(
    client: SimClient,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    partitions: list[Partition],
    sequences: dict[Partition, int],
    transaction: Transaction,
    values: Iterator[bytes],
    now_ms: Callable[[], int],
    kind: TransactionKind,
) -> int:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    add = m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[
            m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name, indexes) for name, indexes in topics.items()
        ],
    )
    if not kind.is_modern:
        await _add_partitions(client, transactional_id, add)
    for partition in partitions:
        value = next(values)
        place = sequences.get(partition, 0)
        key = kind.key(client.random)
        write = Write(partition, value, f"{transactional_id}/{producer_id}/{epoch}", place, transaction, key=key)
        client.history.written(write)
        await client.produce([write], producer_id, epoch, place, now_ms(), transactional_id)
        sequences[partition] = place + 1
    offset = await _commit_offset(client, transactional_id, producer_id, epoch, kind)
    if kind.dawdles and not client.random.below(4):  # meanwhile, segments are rolled and cleaned
        await asyncio.sleep(3 * client.random.fraction())
    commit = client.random.below(3) > 0
    end = m.EndTxnRequest(transactional_id, producer_id, epoch, commit)
    transaction.outcome = Outcome.UNKNOWN
    response, codes = await client.to_coordinator(1, transactional_id, end, lambda r: [r.error_code])
    if any(codes):
        raise Fatal(codes[0])
    transaction.outcome = Outcome.COMMITTED if commit else Outcome.ABORTED
    if offset is not None and kind.offsets is not None:
        kind.offsets.ended(offset, is_committed=commit)
    return response.producer_epoch if response.producer_epoch >= 0 else epoch


async def _commit_offset(
    client: SimClient, transactional_id: str, producer_id: int, epoch: int, kind: TransactionKind
) -> int | None:
    """In some transactions, an offset of a group: TxnOffsetCommit, without AddOffsetsToTxn, as of KIP-890."""
    book = kind.offsets
    if book is None or client.random.below(2):
        return None
    offset = book.begin()
    request = m.TxnOffsetCommitRequest
    each = request.TxnOffsetCommitRequestPartition(book.partition[1], offset, -1, "")
    topic = request.TxnOffsetCommitRequestTopic(book.partition[0], [each])
    asked = request(transactional_id, book.group, producer_id, epoch, -1, "", None, [topic])
    _, codes = await client.to_coordinator(0, book.group, asked, lambda r: [r.topics[0].partitions[0].error_code])
    if any(codes):
        raise Fatal(codes[0])
    return offset


async def _add_partitions(client: SimClient, transactional_id: str, request: m.AddPartitionsToTxnRequest) -> None:
    """As clients older than KIP-890 do, in version 3; newer ones let the partition leader do it."""
    while True:
        address = client._coordinators.get((1, transactional_id)) or await client._find(1, transactional_id)
        if address is not None:
            try:
                response = await client.channels.call(*address, request, timeout_ms=_TIMEOUT_MS, version=3)
            except (Disconnected, RequestTimedOut) as error:
                client._noted(type(error).__name__)
            else:
                codes = [
                    each.partition_error_code
                    for topic in response.results_by_topic_v3_and_below
                    for each in topic.results_by_partition
                ]
                bad = [code for code in codes if code in _NOT_RETRIABLE]
                if bad:
                    raise Fatal(bad[0])
                if not any(codes):
                    return
        client._coordinators.pop((1, transactional_id), None)
        await asyncio.sleep(_BACKOFF_S)


async def read_on(
    client: SimClient, partition: Partition, *, committed: bool, order: CommittedReader | None = None
) -> None:
    """Read a partition from its beginning, on and on, until told to stop."""
    offset = 0
    reader = f"{client.name}{'/committed' if committed else ''}"
    while not client.is_stopping:
        found = await client.fetch(partition, offset, committed=committed, max_wait_ms=500)
        if found is None:
            continue
        offset, records, high_watermark = found
        client.history.high_watermark(reader, partition, offset, high_watermark)
        for at, value in records:
            client.history.read(reader, partition, at, value)
            if order is not None:
                order.read(at, value)
        await asyncio.sleep(0.5 * client.random.fraction())


async def read_all(client: SimClient, partition: Partition, *, committed: bool) -> list[tuple[int, bytes]]:
    """Everything from the beginning to the high watermark (or the last stable offset, which is the same when idle)."""
    offset, everything = 0, []
    while True:
        found = await client.fetch(partition, offset, committed=committed, max_wait_ms=0)
        if found is None:
            continue
        next_offset, records, high_watermark = found
        everything += records
        if next_offset >= high_watermark:
            return everything
        if next_offset == offset:  # open transactions hold a read_committed reader back; they end
            await asyncio.sleep(_BACKOFF_S)
        offset = next_offset


__all__ = ["Fatal", "Fate", "SimClient", "read_all", "read_on", "write_idempotently", "write_transactionally"]
