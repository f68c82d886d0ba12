"""Records through the broker with three stock clients: what one sends, in any codec, all others read unchanged."""

import time
from pathlib import Path

import pytest
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kafka.errors import KafkaError as PythonKafkaError

from moldau.records import iter_batches
from moldau.testing import Broker
from tests.support.clients import (
    CLIENTS,
    CONFLUENT,
    Client,
    Deliveries,
    Sent,
    create_topic,
    fresh,
    quiet,
    read_all,
)

# Errors of the three clients; librdkafka's come through the delivery report.
REFUSED = (AssertionError, PythonKafkaError, AioKafkaError)
CREATE_TIME, LOG_APPEND_TIME = 0, 1
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
every_client = pytest.mark.parametrize("client", CLIENTS, ids=[client.name for client in CLIENTS])
every_codec = pytest.mark.parametrize("codec", CODECS)

_BASE_MS = int(time.time()) * 1000 - 60_000
ODD_RECORDS = [
    Sent(b"plain", b"key", timestamp_ms=_BASE_MS),
    Sent(b"no key", timestamp_ms=_BASE_MS + 1),
    Sent(None, b"no value", timestamp_ms=_BASE_MS + 2),
    Sent(b"", b"", timestamp_ms=_BASE_MS + 4),
    Sent(b"headers", b"h", (("a", b"1"), ("a", b"2"), ("empty", b""), ("ü", b"\xff")), _BASE_MS + 5),
    Sent(b"earlier than its neighbours", b"t", timestamp_ms=_BASE_MS - 3_600_000),
    *(Sent(b"text that compresses well " * 40, b"%d" % n, timestamp_ms=_BASE_MS + 10 + n) for n in range(100)),
]


# What only librdkafka will send: neither key nor value, and a header without value.
ODDER_RECORDS = [Sent(None, None, timestamp_ms=_BASE_MS + 3), Sent(b"v", None, (("null", None),), _BASE_MS + 4)]


@pytest.mark.parametrize("sender", CLIENTS, ids=[client.name for client in CLIENTS])
@every_codec
def test_every_codec_of_every_client_is_read_by_all(bootstrap: str, sender: Client, codec: str) -> None:
    topic = create_topic(bootstrap, "codec")
    records = ODD_RECORDS + ODDER_RECORDS if sender is CONFLUENT else ODD_RECORDS
    assert sender.send(bootstrap, topic, records, codec) == list(range(len(records)))
    expected = [(n, sent.value, sent.key, sent.headers, sent.timestamp_ms, 0) for n, sent in enumerate(records)]
    for reader in CLIENTS:
        assert reader.read(bootstrap, topic, len(records), 0) == expected, reader.name


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_a_topic_has_its_own_codec(broker: Broker, bootstrap: str, codec: str) -> None:
    topic = create_topic(bootstrap, "recompressed", compression_type=codec)
    for sent_as in ("none", "gzip", "zstd"):
        CONFLUENT.send(bootstrap, topic, ODD_RECORDS, sent_as)
    stored = Path(broker.data_dir, f"{topic}-0", f"{0:020}.log").read_bytes()
    assert {header.codec.name.lower() for _, header in iter_batches(stored)} == {codec.replace("uncompressed", "none")}
    for reader in CLIENTS:
        records = reader.read(bootstrap, topic, 3 * len(ODD_RECORDS), 0)
        assert [record.value for record in records] == 3 * [sent.value for sent in ODD_RECORDS], reader.name
        assert [record.offset for record in records] == list(range(3 * len(ODD_RECORDS)))


@every_client
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_reading_may_begin_in_the_middle_of_a_batch(bootstrap: str, client: Client, codec: str) -> None:
    topic = create_topic(bootstrap, "middle")
    CONFLUENT.send(bootstrap, topic, [Sent(b"%d" % n) for n in range(50)], codec)
    for start in (1, 25, 49):
        records = client.read(bootstrap, topic, 50 - start, start)
        assert [(record.offset, record.value) for record in records] == [(n, b"%d" % n) for n in range(start, 50)]


@every_client
def test_log_append_time_is_the_brokers(bootstrap: str, client: Client) -> None:
    topic = create_topic(bootstrap, "stamped", message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    client.send(bootstrap, topic, [Sent(b"v", timestamp_ms=1_000_000), Sent(b"w", timestamp_ms=2_000_000)], "gzip")
    after_ms = int(time.time() * 1000) + 1
    for reader in CLIENTS:
        for record in reader.read(bootstrap, topic, 2, 0):
            assert record.timestamp_type == LOG_APPEND_TIME
            assert before_ms <= record.timestamp_ms <= after_ms


@every_client
def test_create_time_without_a_timestamp_is_the_clients_clock(bootstrap: str, client: Client) -> None:
    topic = create_topic(bootstrap, "created")
    before_ms = int(time.time() * 1000)
    client.send(bootstrap, topic, [Sent(b"v")], "none")
    (record,) = client.read(bootstrap, topic, 1, 0)
    assert record.timestamp_type == CREATE_TIME
    assert before_ms <= record.timestamp_ms <= int(time.time() * 1000)


@every_client
def test_a_large_message_passes_where_the_topic_allows_it(bootstrap: str, client: Client) -> None:
    topic = create_topic(bootstrap, "large", max_message_bytes="12000000")
    value = bytes(range(256)) * 40_000
    client.send(bootstrap, topic, [Sent(value, b"first"), Sent(b"small", b"second")], "none")
    for reader in CLIENTS:
        first, second = reader.read(bootstrap, topic, 2, 0)
        assert first.value == value, reader.name
        assert second.value == b"small"


@every_client
def test_a_message_above_max_message_bytes_is_refused(bootstrap: str, client: Client) -> None:
    topic = create_topic(bootstrap, "limited", max_message_bytes="20000")
    with pytest.raises(REFUSED, match=r"(?i)too large|larger|MSG_SIZE_TOO_LARGE|MessageSizeTooLarge"):
        client.send(bootstrap, topic, [Sent(b"x" * 30_000)], "none")
    client.send(bootstrap, topic, [Sent(b"x" * 10_000)], "none")
    assert len(read_all(bootstrap, topic)) == 1


@every_client
def test_a_compacted_topic_refuses_records_without_key(bootstrap: str, client: Client) -> None:
    topic = create_topic(bootstrap, "compacted", cleanup_policy="compact")
    # aiokafka does not know the code 87 (INVALID_RECORD) and calls it unknown.
    with pytest.raises(REFUSED, match=r"INVALID_RECORD|InvalidRecord|Error -1. UnknownError"):
        client.send(bootstrap, topic, [Sent(b"keyless")], "none")
    assert client.send(bootstrap, topic, [Sent(b"v", b"k"), Sent(None, b"k")], "none") == [0, 1]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(bootstrap: str, acks: str) -> None:
    topic = create_topic(bootstrap, "acks")
    producer = Producer(quiet(bootstrap, acks=acks))
    report = Deliveries()
    for number in range(500):
        producer.produce(topic, b"%d" % number, on_delivery=report)
    assert producer.flush(20) == 0
    assert not report.errors
    records = CONFLUENT.read(bootstrap, topic, 500, 0)
    assert [record.value for record in records] == [b"%d" % number for number in range(500)]


def test_records_arrive_as_soon_as_they_are_sent(bootstrap: str) -> None:
    """A waiting fetch is woken by an append, long before its own time is over."""
    topic = create_topic(bootstrap, "woken")
    consumer = Consumer(quiet(bootstrap, group_id=fresh("reader"), fetch_wait_max_ms=30_000))
    producer = Producer(quiet(bootstrap, linger_ms=0))
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        for number in range(20):
            producer.produce(topic, b"%d" % number)
            producer.flush(10)
            message = consumer.poll(10)
            assert message is not None, "the fetch slept on"
            assert message.value() == b"%d" % number
    finally:
        consumer.close()


def test_a_position_beyond_the_end_starts_again_where_the_client_says(bootstrap: str) -> None:
    topic = create_topic(bootstrap, "reset")
    CONFLUENT.send(bootstrap, topic, [Sent(b"%d" % n) for n in range(5)], "none")
    for policy, expected in (("earliest", b"0"), ("error", None)):
        consumer = Consumer(quiet(bootstrap, group_id=fresh("reader"), auto_offset_reset=policy))
        try:
            consumer.assign([TopicPartition(topic, 0, 1_000)])
            message = consumer.poll(20)
            assert message is not None
            error = message.error()
            if expected is None:
                assert error is not None
                assert error.code() == KafkaError._AUTO_OFFSET_RESET
            else:
                assert message.value() == expected
        finally:
            consumer.close()
