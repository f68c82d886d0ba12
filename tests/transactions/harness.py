"""Requests in short form, and a broker around one shard that does nothing by itself: the tests say what happens
when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from moldau.transactions import (
    Append,
    Effects,
    Now,
    ProducerIdAllocator,
    Record,
    RequestContext,
    Response,
    TopicPartition,
    TransactionConfig,
    TransactionRequest,
    TransactionShard,
    TxnMarker,
)
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Struct

WALL_START_MS = 1_000_000

NEW_CLIENT = {"init": 5, "add": 5, "end": 5, "offsets": 4}
"""API versions of a client with KIP-890 part 2; its partitions are added by the brokers."""
OLD_CLIENT = {"init": 4, "add": 3, "end": 4, "offsets": 3}


def partitions(*names: str) -> frozenset[TopicPartition]:
    """t-0 is partition 0 of topic t."""
    return frozenset(TopicPartition(name.rpartition("-")[0], int(name.rpartition("-")[2])) for name in names)


def init(
    transactional_id: str | None = "a", *, timeout_ms: int = 60_000, producer_id: int = -1, epoch: int = -1
) -> m.InitProducerIdRequest:
    return m.InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
    )


def add(
    producer_id: int, epoch: int, *names: str, transactional_id: str = "a", verify_only: bool = False
) -> m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions(*names)):
        by_topic.setdefault(topic, []).append(partition)
    return m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        verify_only=verify_only,
        topics=[
            m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=ids)
            for topic, ids in by_topic.items()
        ],
    )


def end(producer_id: int, epoch: int, *, committed: bool, transactional_id: str = "a") -> m.EndTxnRequest:
    return m.EndTxnRequest(
        transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=committed
    )


def error_of(message: Struct) -> ErrorCode:
    """The one error of a response; all partitions of an AddPartitionsToTxn result must agree."""
    if isinstance(message, m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult):
        (code,) = {p.partition_error_code for topic in message.topic_results for p in topic.results_by_partition}
        return ErrorCode(code)
    assert isinstance(message, m.InitProducerIdResponse | m.EndTxnResponse | m.AddOffsetsToTxnResponse)
    return ErrorCode(message.error_code)


def allocator(start: int = 0, length: int = 1_000) -> ProducerIdAllocator:
    ids = ProducerIdAllocator()
    assert ids.poll(0)
    ids.on_response(m.AllocateProducerIdsResponse(producer_id_start=start, producer_id_len=length), 0)
    return ids


@dataclass
class Broker:
    """A shard, its log, and what it asked for. Appends and markers stay here until the test answers them."""

    config: TransactionConfig = field(default_factory=TransactionConfig)
    producer_ids: ProducerIdAllocator = field(default_factory=allocator)
    transaction_version: int = 2
    log: list[Record] = field(default_factory=list)
    elapsed_ms: int = 0

    def __post_init__(self) -> None:
        self.appends: dict[int, Append] = {}
        self.markers: list[TxnMarker] = []
        self.responses: list[Response] = []
        self.effects: list[Effects] = []
        self.request_id = 0
        self.shard = self._new_shard(0)
        self.take(self.shard.finish_load(self.now))

    def _new_shard(self, coordinator_epoch: int) -> TransactionShard:
        return TransactionShard(coordinator_epoch, self.config, self.producer_ids, self.transaction_version)

    @property
    def now(self) -> Now:
        return Now(self.elapsed_ms, WALL_START_MS + self.elapsed_ms)

    def take(self, effects: Effects) -> Effects:
        self.effects.append(effects)
        self.appends.update((append.token, append) for append in effects.appends)
        self.markers.extend(effects.markers)
        self.responses.extend(effects.responses)
        return effects

    def send(self, request: TransactionRequest, version: int, offsets_partition: int = -1) -> int:
        """Hand the request in; returns its id."""
        self.request_id += 1
        context = RequestContext(self.request_id, version, offsets_partition)
        self.take(self.shard.handle(request, context, self.now))
        return self.request_id

    def call(self, request: TransactionRequest, version: int, offsets_partition: int = -1) -> Struct:
        """Hand the request in, let its append succeed, and return the response."""
        request_id = self.send(request, version, offsets_partition)
        self.append_all()
        return self.response(request_id)

    def response(self, request_id: int) -> Struct:
        (response,) = [response for response in self.responses if response.request_id == request_id]
        return response.message

    def settle_append(self, token: int, error: ErrorCode = ErrorCode.NONE, *, is_kept: bool | None = None) -> None:
        """The append is done. A failed one may be in the log all the same (`is_kept`): nobody saw it committed."""
        append = self.appends.pop(token)
        if is_kept if is_kept is not None else error is ErrorCode.NONE:
            self.log.extend(append.records)
        self.take(self.shard.on_append(token, error, self.now))

    def append_all(self) -> None:
        for token in list(self.appends):
            self.settle_append(token)

    def mark(self, marker: TxnMarker, results: dict[TopicPartition, ErrorCode] | None = None) -> None:
        if results is None:
            results = dict.fromkeys(marker.partitions, ErrorCode.NONE)
        self.take(self.shard.on_marker_results(marker.transactional_id, marker.token, results, self.now))

    def finish(self) -> None:
        """Let every append and every marker succeed."""
        while self.appends or self.markers:
            self.append_all()
            markers, self.markers = self.markers, []
            for marker in markers:
                self.mark(marker)

    def wait(self, duration_ms: int) -> None:
        """Let time pass, ticking when the shard asks for it."""
        until_ms = self.elapsed_ms + duration_ms
        while (deadline_ms := self.shard.next_deadline_ms) is not None and deadline_ms <= until_ms:
            self.elapsed_ms = max(self.elapsed_ms, int(deadline_ms))
            self.take(self.shard.tick(self.now))
        self.elapsed_ms = until_ms

    def fail_over(self, *, is_load_finished: bool = True) -> None:
        """Another broker takes over with what is in the log; the old shard's appends and markers are void."""
        self.take(self.shard.resign())
        self.appends.clear()
        self.markers.clear()
        self.shard = self._new_shard(self.shard.coordinator_epoch + 1)
        for record in self.log:
            self.shard.replay(record.key, record.value)
        if is_load_finished:
            self.take(self.shard.finish_load(self.now))


def replayed(log: Iterable[Record], config: TransactionConfig | None = None) -> TransactionShard:
    """A shard that has read the log; what it then wants done is dropped."""
    shard = TransactionShard(0, config or TransactionConfig(), ProducerIdAllocator())
    for record in log:
        shard.replay(record.key, record.value)
    shard.finish_load(Now(0, 0))
    return shard
