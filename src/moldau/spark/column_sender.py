"""Rows into topics as columns: batches are built from Arrow and sent by our own client, nothing is done per record.

For what is usual: one topic, no headers, settings that are known here. Everything else is librdkafka's (`producing`),
to which a task turns when a batch is not of that kind; in a transaction it cannot, so there the columns' names decide.

Invariants: of a partition one batch is under way at a time, and a later one is sent when it is acknowledged, so order
is kept; it is numbered as an idempotent producer's, so a lost answer doubles nothing. `finish` returns only when all is
acknowledged. Memory is bounded: one round of batches is under way while the next is made.
"""

import secrets
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Self

import numpy as np
import pyarrow as pa

from moldau.client.cluster import Address, Cluster, Topics
from moldau.client.connection import BrokerError, ClientError, Connection, Disconnected
from moldau.client.transactions import PRODUCE_LAST, ProducerIdentity, Transaction, raise_if_over
from moldau.records.batch import MAX_SEQUENCE, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from moldau.records.codecs import Codec
from moldau.spark.broker_outage import Waiting
from moldau.spark.producing import DeliveryFailed
from moldau.spark.record_columns import batch_parts, murmur2, record_bytes, sizes_at_most
from moldau.spark.sink_columns import measure
from moldau.spark.sink_options import SinkOptions
from moldau.wire import ErrorCode, apis, decode
from moldau.wire.messages import InitProducerIdRequest, InitProducerIdResponse, ProduceRequest, ProduceResponse
from moldau.wire.primitives import encode_uvarint

_BY_NAME = 12  # version 13 of Produce names topics by id
_COMPACT = 9
_BATCH_BYTES_MAX = 1_000_000  # librdkafka's message.max.bytes, and below the brokers' max.message.bytes
_ROUND_BYTES_MAX = 8 << 20
# Batches as large as ours become smaller at zstd's level 1 than those of 16 KB, as Java's producer makes them, at its
# level 3, in three quarters of the time (docs/spark.md).
_ZSTD_LEVEL_OF_LARGE, _LARGE_BYTES = 1, 128 << 10
_ROWS_PER_PARTITION_MIN = 50  # fewer make batches so small that librdkafka, which gathers, is better
_PAUSE_SECONDS = 0.2
_CREATION_PAUSE_SECONDS = 0.03
_CREATION_SECONDS = 1.0
_PATIENCE_SECONDS = 5.0
_TRIES_UNSAID = 5  # a topic just made, or a leader that moves, is no outage
_IGNORED = {
    "delivery.timeout.ms",
    "linger.ms",
    "queue.buffering.max.messages",
    "queue.buffering.max.kbytes",
    "message.max.bytes",
    "client.id",
    "request.timeout.ms",
}
_CODECS = {each.name.lower(): each for each in Codec}
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_NOWHERE: Address = ("", 0)


@dataclass(slots=True)
class _Chunk:
    """Rows of one partition that make one batch."""

    partition: int
    keys: Any
    values: Any
    sequence: int  # of its first row
    batch: tuple[bytes, bytes | memoryview]  # header and payload

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.batch))


@dataclass(slots=True)
class _Failed:
    """What of a request must be sent again, and why."""

    again: list[_Chunk] = field(default_factory=list)
    error: ClientError | None = None
    too_large: list[_Chunk] = field(default_factory=list)


def opened(options: SinkOptions, first: Any) -> "ColumnSender | None":
    """A sender for a task whose first batch this is, or None where librdkafka is to write."""
    sender = _reached(options) if has_no_headers(first) else None
    if sender is None:
        return None
    if first.num_rows < _ROWS_PER_PARTITION_MIN * min(sender.partitions, first.num_rows):
        sender.close()
        return None
    return sender


def opened_for_transaction(options: SinkOptions, first: Any, transactional_id: str) -> "ColumnSender | None":
    """The same for a task that writes in a transaction of this id, which the caller begins and ends."""
    if "headers" in first.schema.names:  # any later batch may have some
        return None
    return _reached(options, transactional_id)


def _reached(options: SinkOptions, transactional_id: str | None = None) -> "ColumnSender | None":
    settings = _settings(options)
    if settings is None or options.topic is None:
        return None
    with ExitStack() as closing:
        cluster = closing.enter_context(
            Cluster(options.client, attempts=1, pause_s=_CREATION_PAUSE_SECONDS, patience_s=_PATIENCE_SECONDS)
        )
        try:
            topics = _there(cluster, options.topic)
            if topics is None:
                return None
            sender = closing.enter_context(ColumnSender(options, settings, cluster, topics, transactional_id))
            sender.begin()
        except ClientError:  # librdkafka has the patience and the words
            return None
        closing.pop_all()
        return sender


def _there(cluster: Cluster, topic: str) -> Topics | None:
    """The topic, which brokers create for writers if they are set up to; None if that takes too long."""
    deadline = time.monotonic() + _CREATION_SECONDS
    while True:
        topics = cluster.topics([topic], may_create=True)
        if topics.leaders:
            return topics
        if time.monotonic() > deadline:
            return None
        time.sleep(_CREATION_PAUSE_SECONDS)  # brokers tell nobody when a topic is there


@dataclass(slots=True, frozen=True)
class _Settings:
    codec: Codec
    level: int | None
    acks: int
    idempotent: bool
    bytes_max: int
    patience_s: float


def _settings(options: SinkOptions) -> _Settings | None:
    """What the producer's settings mean here; None if one of them is not known here."""
    given = {name: value.strip().lower() for name, value in options.producer.items() if name not in options.connection}
    if given.pop("partitioner", "") != "murmur2_random":
        return None
    acks = given.pop("acks", given.pop("request.required.acks", "all"))
    codec = given.pop("compression.type", given.pop("compression.codec", "none"))
    level = given.pop("compression.level", None)
    idempotent = given.pop("enable.idempotence", "true")
    if set(given) - _IGNORED or acks not in ("all", "-1", "1") or codec not in _CODECS:
        return None
    limit = given.get("message.max.bytes", str(_BATCH_BYTES_MAX))
    if not (limit.isdecimal() and idempotent in ("true", "false") and (level is None or level.isdecimal())):
        return None
    return _Settings(
        codec=_CODECS[codec],
        level=None if level is None else int(level),
        acks=1 if acks == "1" else -1,
        idempotent=idempotent == "true",
        bytes_max=int(limit),
        patience_s=int(given["delivery.timeout.ms"]) / 1000,
    )


def _level(settings: _Settings, size_bytes: int) -> int | None:
    """The level that was asked for; else the codec's own, or one that fits what is compressed."""
    if settings.level is None and settings.codec is Codec.ZSTD and size_bytes >= _LARGE_BYTES:
        return _ZSTD_LEVEL_OF_LARGE
    return settings.level


def has_no_headers(batch: Any) -> bool:
    return "headers" not in batch.schema.names or batch.column("headers").null_count == batch.num_rows


def _binary(batch: Any, name: str) -> Any:
    """The column as plain binary, or None if it is not there or has nothing but nulls."""
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    if name == "key" and column.null_count == len(column):
        return None
    return column if column.type == pa.binary() else column.cast(pa.binary())


class ColumnSender:
    """Sends the rows of one task to one topic."""

    def __init__(
        self,
        options: SinkOptions,
        settings: _Settings,
        cluster: Cluster,
        topics: Topics,
        transactional_id: str | None = None,
    ) -> None:
        self._topic = options.topic or ""
        self._client = options.client
        self._settings = settings
        self._cluster = cluster
        self._topics = topics
        self.partitions = len(topics.leaders)
        self.transaction: Transaction | None = None
        if transactional_id is not None:
            self.transaction = Transaction(cluster, transactional_id, lambda: Waiting(options.max_block_ms / 1000))
        self._connections: dict[Address, Connection] = {}
        self._under_way: list[tuple[Address, list[_Chunk]]] = []
        self._sticky = secrets.randbelow(self.partitions)
        self._sequences: dict[int, int] = {}
        self._producer = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        self.rows = 0
        self.size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._cluster.close()
        for connection in self._connections.values():
            connection.close()

    def begin(self) -> None:
        """Ask a broker whether it is new enough, and for an id."""
        connection = self._connection(next(iter(self._topics.brokers.values())))
        if connection.version(apis()[ProduceRequest.number], self._newest_version) < _COMPACT:
            raise ClientError(f"{connection.peer} is older than Apache Kafka 2.4")
        if self._settings.idempotent and self.transaction is None:
            self._producer = _named(connection)

    def fence(self, timeout_ms: int) -> None:
        """Begin as the only producer of the transactional id."""
        assert self.transaction is not None, "opened for one"
        self.transaction.fence(timeout_ms)
        self._producer = self.transaction.producer

    def send(self, batch: Any) -> bool:
        """Hand over rows; True when all but the last of them are acknowledged. False, and nothing was done, if they
        cannot go this way: after `finish`, librdkafka may write them."""
        keys, values = _binary(batch, "key"), _binary(batch, "value")
        numbers = self._numbers(batch, keys) if has_no_headers(batch) else None
        if numbers is None:
            return False
        if self.transaction is not None:
            self.transaction.add((self._topic, int(number)) for number in np.unique(numbers))
        for turn in self._rounds(keys, values, numbers):
            self._await_acknowledgements()
            self._post(turn)
        self.rows += batch.num_rows
        self.size_bytes += measure(batch)
        return True

    def finish(self) -> None:
        """Wait until everything is acknowledged."""
        self._await_acknowledgements()

    # ---- rows into batches ------------------------------------------------------------------------------------------

    def _numbers(self, batch: Any, keys: Any) -> Any:
        """Each row's partition: the one it names, else that of its key; None if there is no such partition."""
        # Rows without either go to one partition after the other, each a run of them, so that batches are large.
        share = max(batch.num_rows // self.partitions, _ROWS_PER_PARTITION_MIN)
        numbers = (self._sticky + np.arange(batch.num_rows) // share) % self.partitions
        self._sticky = int(numbers[-1] + 1) % self.partitions
        if keys is not None:
            hashed = (murmur2(keys) & np.uint32(0x7FFFFFFF)).astype(np.int64) % self.partitions
            numbers = np.where(keys.is_valid().to_numpy(zero_copy_only=False), hashed, numbers)
        if "partition" in batch.schema.names:
            column = batch.column("partition")
            named = column.fill_null(0).to_numpy(zero_copy_only=False)
            if named.min() < 0 or named.max() >= self.partitions:
                return None
            numbers = np.where(column.is_valid().to_numpy(zero_copy_only=False), named, numbers)
        return numbers

    def _rounds(self, keys: Any, values: Any, numbers: Any) -> Iterator[list[_Chunk]]:
        """Batches to be sent together: of each partition one, and not too many bytes."""
        parts = []
        if numbers[0] == numbers[-1] and (numbers == numbers[0]).all():
            parts.append(self._chunks(int(numbers[0]), keys, values))
        else:
            order = np.argsort(numbers, kind="stable")
            sorted_numbers = numbers[order]
            starts = np.flatnonzero(np.diff(sorted_numbers, prepend=-1))
            for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
                rows = pa.array(order[start:end])
                own = None if keys is None else keys.take(rows)
                parts.append(self._chunks(int(sorted_numbers[start]), own, values.take(rows)))
        for together in zip_longest(*parts):
            turn, size = [], 0
            for chunk in together:
                if chunk is None:
                    continue
                turn.append(chunk)
                size += chunk.size_bytes
                if size >= _ROUND_BYTES_MAX:
                    yield turn
                    turn, size = [], 0
            if turn:
                yield turn

    def _chunks(self, partition: int, keys: Any, values: Any) -> Iterator[_Chunk]:
        ends = np.cumsum(sizes_at_most(keys, values))
        start, done = 0, 0
        while start < len(ends):
            end = max(int(np.searchsorted(ends, done + self._settings.bytes_max, "right")), start + 1)
            own = None if keys is None else keys.slice(start, end - start)
            sequence = self._sequences.get(partition, 0)
            self._sequences[partition] = (sequence + end - start) & MAX_SEQUENCE
            yield self._chunk(partition, own, values.slice(start, end - start), sequence)
            start, done = end, int(ends[end - 1])

    def _chunk(self, partition: int, keys: Any, values: Any, sequence: int) -> _Chunk:
        records, settings = record_bytes(keys, values), self._settings
        if len(values) == 1 and len(records) > settings.bytes_max:
            raise self._too_large()
        producer = (self._producer.id, self._producer.epoch, sequence if settings.idempotent else NO_SEQUENCE)
        batch = batch_parts(
            records,
            len(values),
            time.time_ns() // 1_000_000,
            settings.codec,
            _level(settings, len(records)),
            producer=producer,
            transactional=self.transaction is not None,
        )
        return _Chunk(partition, keys, values, sequence, batch)

    def _too_large(self) -> DeliveryFailed:
        advice = "raise kafka.max.request.size, and max.message.bytes of the topic"
        return DeliveryFailed(f"a record of {self._topic} is too large: {advice}")

    # ---- batches to brokers -----------------------------------------------------------------------------------------

    @property
    def _newest_version(self) -> int:
        return _BY_NAME if self.transaction is None else PRODUCE_LAST

    def _connection(self, address: Address) -> Connection:
        found = self._connections.get(address)
        if found is None:
            found = self._connections[address] = Connection(*address, self._client)
        return found

    def _post(self, chunks: list[_Chunk]) -> None:
        """Send each to its leader, and wait for nobody. `_await_acknowledgements` finds what could not be sent."""
        by_leader: dict[Address | None, list[_Chunk]] = {}
        for chunk in chunks:
            by_leader.setdefault(self._topics.address((self._topic, chunk.partition)), []).append(chunk)
        for address, own in by_leader.items():
            try:
                if address is not None:
                    self._request(address, own)
                self._under_way.append((address or _NOWHERE, own))
            except Disconnected:
                self._drop(address or _NOWHERE)
                self._under_way.append((_NOWHERE, own))

    def _request(self, address: Address, chunks: list[_Chunk]) -> None:
        connection = self._connection(address)
        api = apis()[ProduceRequest.number]
        version = connection.version(api, self._newest_version)
        connection.send(api, version, *self._request_parts(chunks))

    def _request_parts(self, chunks: list[_Chunk]) -> Iterator[bytes | memoryview]:
        """Versions 9 to 12 of Produce, which differ in the answer only; the payloads are not copied."""
        name = self._topic.encode()
        own_id = b"" if self.transaction is None else self.transaction.transactional_id.encode()
        yield encode_uvarint(len(own_id) + 1 if own_id else 0) + own_id
        head = struct.pack(">hib", self._settings.acks, int(self._client.request_timeout_s * 1000), 2)
        yield head + encode_uvarint(len(name) + 1) + name + encode_uvarint(len(chunks) + 1)
        for chunk in chunks:
            batch_head, payload = chunk.batch
            yield chunk.partition.to_bytes(4, "big") + encode_uvarint(chunk.size_bytes + 1) + batch_head
            yield payload
            yield b"\0"
        yield b"\0\0"

    def _drop(self, address: Address) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def _await_acknowledgements(self) -> None:
        """Until everything under way is acknowledged: what failed and may succeed later is sent again."""
        waiting: Waiting | None = None
        tries = 0
        while self._under_way:
            under_way, self._under_way = self._under_way, []
            # All answers are read before anything else is sent: a connection has one request at a time.
            answers = [self._answered(address, chunks) for address, chunks in under_way]
            for chunk in (each for failed in answers for each in failed.too_large):
                self._send_halves(chunk)
            again = [chunk for failed in answers for chunk in failed.again]
            if not again:
                return
            error = next(failed.error for failed in answers if failed.error is not None)
            if waiting is None:
                waiting = Waiting(self._settings.patience_s)
            if waiting.is_over():
                raise _not_written(again, f"{self._topic}-{again[0].partition}", error)
            if tries >= _TRIES_UNSAID:
                waiting.say(error)
            tries += 1
            time.sleep(_PAUSE_SECONDS)  # nobody is told when a broker is back, or a leader known
            try:
                self._topics = self._cluster.topics([self._topic])
            except ClientError:
                self._under_way = [(_NOWHERE, again)]
            else:
                self._post(again)

    def _answered(self, address: Address, chunks: list[_Chunk]) -> _Failed:
        connection = self._connections.get(address)
        if connection is None:
            return _Failed(chunks, Disconnected(f"the leader of {self._topic}-{chunks[0].partition} cannot be reached"))
        api = apis()[ProduceRequest.number]
        version = connection.version(api, self._newest_version)
        try:
            frame, position = connection.receive(api, version)
        except Disconnected as error:
            self._drop(address)
            return _Failed(chunks, error)
        answer = decode(ProduceResponse, version, frame[position:])
        codes = {row.index: row.error_code for topic in answer.responses for row in topic.partition_responses}
        failed = _Failed()
        for chunk in chunks:
            code = ErrorCode(codes.get(chunk.partition, ErrorCode.UNKNOWN_SERVER_ERROR))
            place = f"{self._topic}-{chunk.partition}"
            if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                continue
            if code in _TOO_LARGE:
                failed.too_large.append(chunk)
            elif code.retriable:
                failed.again.append(chunk)
                failed.error = BrokerError(code, place)
            else:
                if self.transaction is not None:
                    raise_if_over(code, self.transaction.transactional_id)
                raise _not_written([chunk], place, f"{code.meaning} ({code.name})")
        return failed

    def _send_halves(self, chunk: _Chunk) -> None:
        """The topic takes smaller batches only. Nothing of it was written, so the halves have its numbers."""
        count = len(chunk.values)
        if count == 1:
            raise self._too_large()
        for start, end in ((0, count // 2), (count // 2, count)):
            keys = None if chunk.keys is None else chunk.keys.slice(start, end - start)
            values = chunk.values.slice(start, end - start)
            self._post([self._chunk(chunk.partition, keys, values, (chunk.sequence + start) & MAX_SEQUENCE)])
            self._await_acknowledgements()


def _named(connection: Connection) -> ProducerIdentity:
    """Who an idempotent producer is, from any broker."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        answer = connection.call(request, InitProducerIdResponse)
        if not answer.error_code:
            return ProducerIdentity(answer.producer_id, answer.producer_epoch)
        if not ErrorCode(answer.error_code).retriable or time.monotonic() > deadline:
            raise BrokerError(answer.error_code, "no id for an idempotent producer")
        time.sleep(_PAUSE_SECONDS)  # a broker that was just started has none to give away yet


def _not_written(chunks: list[_Chunk], place: str, why: object) -> DeliveryFailed:
    count = sum(len(each.values) for each in chunks)
    return DeliveryFailed(f"{count} or more records were not written; the first to {place}: {why}")
