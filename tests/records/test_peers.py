"""Round trips with code we did not write, both directions: kafka-python, aiokafka, librdkafka.

librdkafka has no record API of its own, so its batches are taken from live Produce requests to its mock cluster, and
ours are put there with a Produce request of our own and consumed by its consumer.
"""

import socket
import struct
from collections.abc import Iterator
from typing import Any

import kafka.codec
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaReader
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from moldau.records import (
    BatchBuilder,
    BatchOptions,
    Codec,
    EndTransactionMarker,
    Record,
    build_end_transaction_marker,
    check_crc,
    iter_records,
    read_header,
)
from moldau.records.columns import read_columns
from moldau.wire import apis, decode, encode
from moldau.wire import messages as m
from moldau.wire.headers import encode_request_header
from moldau.wire.produce import decode_produce_request
from tests.records.samples import NOW_MS, batch_of, mixed_records, plain_records
from tests.support.capture import CapturingProxy, read_frame
from tests.support.librdkafka import mock_cluster

PRODUCE, PRODUCE_VERSION = 0, 9

# kafka-python brings no compression but gzip; the rest it has where their libraries are installed.
KAFKA_PYTHON_CODECS = [
    codec
    for codec, present in (
        (Codec.NONE, True),
        (Codec.GZIP, kafka.codec.has_gzip()),
        (Codec.SNAPPY, kafka.codec.has_snappy()),
        (Codec.LZ4, kafka.codec.has_lz4()),
        (Codec.ZSTD, kafka.codec.has_zstd()),
    )
    if present
]


def samples(base_offset: int = 0) -> list[Record]:
    """Small and large, with and without everything; header names are text, as the peers insist."""
    return [
        *mixed_records(base_offset),
        *plain_records(2000, base_offset=base_offset + len(mixed_records())),
    ]


def peer_headers(record: Record) -> list[tuple[str, bytes | None]]:
    return [(name.decode(), value) for name, value in record.headers]


def from_peer(record: Any) -> Record:
    headers = tuple((name.encode(), None if value is None else bytes(value)) for name, value in record.headers)
    key = None if record.key is None else bytes(record.key)
    value = None if record.value is None else bytes(record.value)
    return Record(record.offset, record.timestamp, key, value, headers)


def build_with(peer: Any, codec: Codec, records: list[Record]) -> bytes:
    builder = peer(
        magic=2,
        compression_type=int(codec),
        is_transactional=True,
        producer_id=123456,
        producer_epoch=7,
        base_sequence=50,
        batch_size=10_000_000,
    )
    for record in records:
        added = builder.append(
            record.offset, timestamp=record.timestamp, key=record.key, value=record.value, headers=peer_headers(record)
        )
        assert added is not None
    return bytes(builder.build())


def our_batch(codec: Codec, base_offset: int = 0) -> bytearray:
    builder = BatchBuilder(
        BatchOptions(
            base_offset=base_offset,
            codec=codec,
            leader_epoch=3,
            producer_id=123456,
            producer_epoch=7,
            base_sequence=50,
            transactional=True,
        )
    )
    builder.extend(samples(base_offset))
    return builder.finish()


def check_theirs(batch: bytes, codec: Codec) -> None:
    header = read_header(batch)
    check_crc(batch, 0, header)
    assert header.codec is codec
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (123456, 7, 50)
    assert header.is_transactional
    assert header.max_timestamp == max(record.timestamp for record in samples())
    assert list(iter_records(batch)) == samples()
    assert read_columns(batch).offsets.tolist() == [record.offset for record in samples()]


@pytest.mark.parametrize("codec", KAFKA_PYTHON_CODECS)
def test_kafka_python_reads_ours(codec: Codec) -> None:
    records = MemoryRecords(bytes(our_batch(codec, 1000)))
    batch = records.next_batch()
    assert batch.validate_crc()
    assert (batch.base_offset, batch.leader_epoch, batch.last_offset_delta) == (1000, 3, len(samples()) - 1)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (123456, 7, 50)
    assert batch.is_transactional
    assert [from_peer(record) for record in batch] == samples(1000)
    assert not records.has_next()


@pytest.mark.parametrize("codec", KAFKA_PYTHON_CODECS)
def test_we_read_kafka_pythons(codec: Codec) -> None:
    check_theirs(build_with(KafkaPythonBuilder, codec, samples()), codec)


@pytest.mark.parametrize("codec", Codec)
def test_aiokafka_reads_ours(codec: Codec) -> None:
    batch = AiokafkaReader(bytes(our_batch(codec, 1000)))
    assert batch.validate_crc()
    assert (batch.base_offset, batch.next_offset) == (1000, 1000 + len(samples()))
    assert (batch.producer_id, batch.is_transactional) == (123456, True)
    assert [from_peer(record) for record in batch] == samples(1000)


@pytest.mark.parametrize("codec", Codec)
def test_we_read_aiokafkas(codec: Codec) -> None:
    check_theirs(build_with(AiokafkaBuilder, codec, samples()), codec)


@pytest.mark.parametrize("peer", [KafkaPythonBuilder, AiokafkaBuilder])
def test_without_compression_the_bytes_are_the_same(peer: Any) -> None:
    ours = our_batch(Codec.NONE)
    theirs = build_with(peer, Codec.NONE, samples())
    assert ours[61:] == theirs[61:]
    ignored = {"leader_epoch"}
    ours_header, theirs_header = read_header(ours), read_header(theirs)
    assert {
        name for name in ours_header._fields if getattr(ours_header, name) != getattr(theirs_header, name)
    } <= ignored


@pytest.mark.parametrize("committed", [True, False])
def test_peers_see_our_markers(committed: bool) -> None:
    batch = build_end_transaction_marker(
        EndTransactionMarker(committed, 4), producer_id=1, producer_epoch=0, timestamp_ms=NOW_MS
    )
    by_kafka_python = MemoryRecords(bytes(batch)).next_batch()
    assert by_kafka_python.is_control_batch
    (record,) = by_kafka_python
    assert (record.commit, record.abort) == (committed, not committed)
    assert AiokafkaReader(bytes(batch)).is_control_batch


@pytest.fixture(scope="module")
def cluster() -> Iterator[CapturingProxy]:
    with mock_cluster() as address, CapturingProxy(address) as proxy:
        yield proxy


def librdkafka_samples() -> list[Record]:
    """What librdkafka takes as well: header names with a letter at least, timestamps that are some day."""
    return [
        record._replace(timestamp=NOW_MS + record.offset, headers=tuple(each for each in record.headers if each[0]))
        for record in samples()
    ]


@pytest.mark.parametrize("codec", Codec)
def test_we_read_librdkafkas(cluster: CapturingProxy, codec: Codec) -> None:
    topic = f"theirs-{codec.name.lower()}"
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "compression.type": codec.name.lower(),
            "linger.ms": 100,
            "log_level": 0,
        }
    )
    for record in librdkafka_samples():
        producer.produce(
            topic,
            record.value,
            record.key,
            partition=0,
            timestamp=record.timestamp,
            headers=peer_headers(record),  # type: ignore[arg-type]  # its stubs forget null values
        )
    assert producer.flush(20) == 0
    batches = [
        bytes(records or b"")
        for exchange in cluster.exchanges
        if exchange.api_key == PRODUCE
        for name, partitions in decode_produce_request(memoryview(exchange.asked), 0, exchange.version).topics
        if name == topic
        for _, records in partitions
    ]
    assert batches
    seen: list[Record] = []
    for batch in batches:
        header = read_header(batch)
        check_crc(batch, 0, header)
        assert header.codec in (codec, Codec.NONE)  # it sends a batch as it is if compression does not help
        seen += [record._replace(offset=len(seen) + record.offset) for record in iter_records(batch)]
    assert seen == librdkafka_samples()
    assert any(read_header(batch).codec is codec for batch in batches)


def produce(address: tuple[str, int], topic: str, batch: bytes) -> None:
    """One Produce request, by hand."""
    data = m.ProduceRequest.TopicProduceData(topic, partition_data=[m.ProduceRequest.PartitionProduceData(0, batch)])
    body = encode(m.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data]), PRODUCE_VERSION)
    frame = encode_request_header(apis()[PRODUCE], PRODUCE_VERSION, 1, "moldau") + body
    with socket.create_connection(address, 20) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        answer = read_frame(connection)
    assert answer is not None
    response = decode(m.ProduceResponse, PRODUCE_VERSION, answer[5:])  # behind the header: correlation id, no tags
    assert response.responses[0].partition_responses[0].error_code == 0


def from_librdkafka(message: Message) -> Record:
    assert message.error() is None
    fields: Any = message  # its stubs allow text, where these are bytes
    headers = tuple((name.encode(), value) for name, value in fields.headers() or [])
    return Record(fields.offset(), fields.timestamp()[1], fields.key(), fields.value(), headers)


@pytest.mark.parametrize("codec", Codec)
def test_librdkafka_reads_ours(cluster: CapturingProxy, codec: Codec) -> None:
    topic = f"ours-{codec.name.lower()}"
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "g",
            "check.crcs": True,
            "enable.auto.commit": False,
            "allow.auto.create.topics": True,
            "log_level": 0,
        }
    )
    consumer.list_topics(topic, timeout=20)  # creates it
    produce(("127.0.0.1", cluster.port), topic, batch_of(librdkafka_samples(), codec))
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen: list[Record] = []
    while missing := len(librdkafka_samples()) - len(seen):
        messages = consumer.consume(min(missing, 1000), timeout=20)
        assert messages
        seen += map(from_librdkafka, messages)
    consumer.close()
    assert seen == librdkafka_samples()
    assert cluster.failures == []
