"""What the batch reader gives: rows, types, codecs, transactions, compaction, lost records, leaders that move."""

import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StructField, StructType

from moldau.client.cluster import UnknownTopic
from moldau.client.connection import Disconnected
from moldau.spark import fetch_client
from moldau.spark.arrow_rows import MalformedTimestamp, arrow_schema
from moldau.spark.options import OptionError, source_schema
from moldau.spark.ranges import DataLost
from moldau.spark.source import make_batch_reader
from moldau.testing import Broker
from tests.spark.reading import batch_reader, options_of, rows, send, tables, values
from tests.support.broker_process import BrokerProcess
from tests.support.clients import Sent, admin, create_topic, quiet, send_confluent, wait_for

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("include_headers", [False, True])
def test_the_arrow_schema_is_the_one_spark_compares_with(include_headers: bool) -> None:
    spark_schema = source_schema({"includeHeaders": str(include_headers)})
    assert to_arrow_schema(spark_schema, timezone="UTC").equals(arrow_schema(include_headers=include_headers))


def test_every_column_of_a_record(bootstrap: str) -> None:
    topic = create_topic(bootstrap)
    send_confluent(
        bootstrap,
        topic,
        [
            Sent(b"value", b"key", (("a", b"1"), ("a", None), ("ü", b"")), 1_700_000_000_123),
            Sent(None, b"", (), 1_700_000_000_124),
            Sent(b"", None, (), 1_700_000_000_125),
        ],
    )
    reader = batch_reader(bootstrap, subscribe=topic, includeHeaders=True)
    found = rows(reader, reader.partitions())
    at = datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "ü", "value": b""}]
    assert found[0] == (b"key", b"value", topic, 0, 0, at, 0, headers)
    assert [(row.key, row.value, row.offset, row.headers) for row in found[1:]] == [
        (b"", None, 1, None),
        (None, b"", 2, None),
    ]


def test_log_append_time_is_told_by_its_type(bootstrap: str) -> None:
    topic = create_topic(bootstrap, message_timestamp_type="LogAppendTime")
    send_confluent(bootstrap, topic, [Sent(b"x", timestamp_ms=1)])
    reader = batch_reader(bootstrap, subscribe=topic)
    (row,) = rows(reader, reader.partitions())
    assert row.timestamp_type == 1
    assert row.timestamp.year >= 2024


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(bootstrap: str, codec: str) -> None:
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 2_000, codec=codec, size=50)
    reader = batch_reader(bootstrap, subscribe=topic)
    found = rows(reader, reader.partitions())
    assert [row.offset for row in found] == list(range(2_000))
    assert [row.value for row in found] == [b"v%d" % number + b" " * 50 for number in range(2_000)]


def test_small_fetches_and_cut_ranges_give_each_record_once(bootstrap: str) -> None:
    topic = create_topic(bootstrap, partitions=2)
    send(bootstrap, topic, 3_000, partition=0, size=100, codec="lz4")
    send(bootstrap, topic, 10, partition=1)
    reader = batch_reader(bootstrap, subscribe=topic, minPartitions=7, kafka_max_partition_fetch_bytes=1000)
    tasks = reader.partitions()
    assert len(tasks) == 7
    found = rows(reader, tasks)
    assert sorted((row.partition, row.offset) for row in found) == [
        *((0, offset) for offset in range(3_000)),
        *((1, offset) for offset in range(10)),
    ]


def test_highly_compressed_batches_come_in_pieces(bootstrap: str) -> None:
    topic = create_topic(bootstrap, max_message_bytes="4194304")
    producer = Producer(quiet(bootstrap, compression_type="zstd", linger_ms=50, batch_size=1_000_000))
    for _ in range(60):
        producer.produce(topic, bytes(900_000))
        producer.poll(0)
    assert producer.flush(30) == 0
    reader = batch_reader(bootstrap, subscribe=topic)
    batches = tables(reader, reader.partitions())
    assert sum(batch.num_rows for batch in batches) == 60
    assert max(batch.nbytes for batch in batches) < 40_000_000


def test_offsets_timestamps_and_their_strategies(bootstrap: str) -> None:
    topic = create_topic(bootstrap, partitions=2)
    send_confluent(bootstrap, topic, [Sent(b"%d" % number, timestamp_ms=1_000 + number) for number in range(10)])

    def read(**options: Any) -> list[bytes | None]:
        reader = batch_reader(bootstrap, subscribe=topic, **options)
        return values(rows(reader, reader.partitions()))

    def by_partition(first: int, second: int) -> str:
        return f'{{"{topic}":{{"0":{first},"1":{second}}}}}'

    assert read(startingOffsets=by_partition(3, -2), endingOffsets=by_partition(5, -1)) == [b"3", b"4"]
    assert read(startingOffsets=by_partition(8, 0)) == [b"8", b"9"]
    assert read(endingTimestamp=1_002) == [b"0", b"1"]
    with pytest.raises(OptionError, match=f"{topic}-1 has no record at or after timestamp 1004"):
        read(startingTimestamp=1_004)
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read(startingTimestamp=1_008, **latest) == [b"8", b"9"]
    assert read(startingOffsetsByTimestamp=by_partition(1_007, 1), endingTimestamp=1_009, **latest) == [b"7", b"8"]
    with pytest.raises(OptionError, match="must name every partition"):
        read(startingOffsets=f'{{"{topic}":{{"0":0}}}}')
    with pytest.raises(OptionError, match="would start at offset 20, after its end 10"):
        read(startingOffsets=by_partition(20, 0))


def test_assign_and_subscribe_pattern(bootstrap: str) -> None:
    first, second = create_topic(bootstrap, "patterned-a", 2), create_topic(bootstrap, "patterned-b")
    send(bootstrap, first, 2, partition=0)
    send(bootstrap, first, 2, first=10, partition=1)
    send(bootstrap, second, 2, first=20)
    reader = batch_reader(bootstrap, subscribePattern=r"atterned-[ab]")
    assert {row.topic for row in rows(reader, reader.partitions())} == {first, second}
    reader = batch_reader(bootstrap, assign=f'{{"{first}":[1]}}')
    assert values(rows(reader, reader.partitions())) == [b"v10", b"v11"]
    with pytest.raises(UnknownTopic, match="no such topic: nobody-made-this"):
        batch_reader(bootstrap, subscribe=f"{first},nobody-made-this").partitions()


def test_an_empty_topic_has_no_rows(bootstrap: str) -> None:
    reader = batch_reader(bootstrap, subscribe=create_topic(bootstrap))
    assert rows(reader, reader.partitions()) == []


@pytest.mark.parametrize("codec", CODECS)
def test_read_committed_hides_what_was_aborted_and_what_is_open(bootstrap: str, codec: str) -> None:
    topic = create_topic(bootstrap)
    producer = Producer(quiet(bootstrap, transactional_id=f"txn-{topic}", linger_ms=0, compression_type=codec))
    producer.init_transactions(30)
    for number, committed in enumerate([True, False, True, False]):
        producer.begin_transaction()
        for index in range(3):
            producer.produce(topic, b"%d.%d" % (number, index))
        assert producer.flush(30) == 0
        if committed:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(30) == 0

    def read(level: str) -> list[bytes | None]:
        reader = batch_reader(bootstrap, subscribe=topic, kafka_isolation_level=level)
        return values(rows(reader, reader.partitions()))

    committed_values = [b"0.0", b"0.1", b"0.2", b"2.0", b"2.1", b"2.2"]
    assert read("read_committed") == committed_values
    assert len(read("read_uncommitted")) == 13
    producer.abort_transaction(30)
    assert read("read_committed") == committed_values


def test_compacted_topics_have_gaps() -> None:
    """Ranges end inside a gap, begin inside one, or hold nothing at all. A topic for each codec."""
    with Broker({"log.cleaner.backoff.ms": "50"}) as broker:
        bootstrap = broker.bootstrap_servers
        records = [Sent(b"%d" % number, b"key%d" % (number % 5)) for number in range(1_000)]
        settings = {"min_cleanable_dirty_ratio": "0.001", "segment_ms": "200", "min_compaction_lag_ms": "0"}
        topics = {
            codec: create_topic(bootstrap, "cleaned", 1, cleanup_policy="compact", **settings) for codec in CODECS
        }
        for codec, topic in topics.items():
            send_confluent(bootstrap, topic, records, codec)

        def offsets_left(topic: str, codec: str) -> list[int]:
            send_confluent(bootstrap, topic, [Sent(b"last", b"last")], codec)  # rolls the segment, sooner or later
            reader = batch_reader(bootstrap, subscribe=topic, minPartitions=9)
            return [row.offset for row in rows(reader, reader.partitions())]

        for codec, topic in topics.items():
            left = wait_for(lambda: found if (found := offsets_left(topic, codec))[0] else [], "compaction")  # noqa: B023  # called at once
            assert left == sorted(set(left))
            assert left[:5] == list(range(995, 1_000))
            start, end = f'{{"{topic}":{{"0":100}}}}', f'{{"{topic}":{{"0":900}}}}'
            reader = batch_reader(bootstrap, subscribe=topic, startingOffsets=start, endingOffsets=end)
            assert rows(reader, reader.partitions()) == []


def test_lost_records_are_an_error_or_a_warning(bootstrap: str, caplog: pytest.LogCaptureFixture) -> None:
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 100)
    client = admin(bootstrap)
    (future,) = client.delete_records([TopicPartition(topic, 0, 60)]).values()
    future.result(30)
    start = f'{{"{topic}":{{"0":10}}}}'
    reader = batch_reader(bootstrap, subscribe=topic, startingOffsets=start)
    with pytest.raises(DataLost, match=r"offsets 10 to 60 .* set the option failOnDataLoss to false"):
        rows(reader, reader.partitions())
    reader = batch_reader(bootstrap, subscribe=topic, startingOffsets=start, failOnDataLoss=False)
    assert [row.offset for row in rows(reader, reader.partitions())] == list(range(60, 100))
    assert "offsets 10 to 60" in caplog.text
    end = f'{{"{topic}":{{"0":50}}}}'
    cut = batch_reader(bootstrap, subscribe=topic, startingOffsets=start, endingOffsets=end, failOnDataLoss=False)
    assert rows(cut, cut.partitions()) == []


def test_a_topic_that_is_deleted_before_its_range_is_read(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_client, "_GONE_SECONDS", 0.2)
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 10)
    strict = batch_reader(bootstrap, subscribe=topic)
    lenient = batch_reader(bootstrap, subscribe=topic, failOnDataLoss=False)
    tasks = [strict.partitions(), lenient.partitions()]
    client = admin(bootstrap)
    (deletion,) = client.delete_topics([topic]).values()
    deletion.result(30)
    with pytest.raises(DataLost, match=rf"{topic}-0.* is gone: the topic was deleted while it was read"):
        rows(strict, tasks[0])
    assert rows(lenient, tasks[1]) == []


def test_a_timestamp_in_microseconds_is_named(bootstrap: str) -> None:
    topic = create_topic(bootstrap, message_timestamp_after_max_ms=str(2**63 - 1))
    send_confluent(bootstrap, topic, [Sent(b"x", timestamp_ms=1_700_000_000_000_000_000)])
    reader = batch_reader(bootstrap, subscribe=topic)
    with pytest.raises(MalformedTimestamp, match=f"{topic}-0 offset 0 has timestamp 1700000000000000000"):
        rows(reader, reader.partitions())


def test_connections_that_break_are_made_again(bootstrap: str) -> None:
    """The reader is told a wrong leader, and every few hundred kilobytes the connection breaks."""
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 5_000, size=200)
    reader = batch_reader(bootstrap, subscribe=topic, kafka_max_partition_fetch_bytes=50_000)
    (task,) = reader.partitions()
    task.value = replace(task.value, leader=("127.0.0.1", 1))
    assert [row.offset for row in rows(reader, [task])] == list(range(5_000))


def test_nobody_there(bootstrap: str) -> None:
    reader = batch_reader("127.0.0.1:1", subscribe="x", kafka_default_api_timeout_ms=100)
    with pytest.raises(Disconnected, match=r"cannot connect to 127\.0\.0\.1:1"):
        reader.partitions()


def test_a_reader_that_is_left_in_the_middle_leaves_no_thread(bootstrap: str) -> None:
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 5_000, size=500)
    reader = batch_reader(bootstrap, subscribe=topic, kafka_max_partition_fetch_bytes=20_000)
    batches = reader.read(reader.partitions()[0])
    next(batches)
    batches.close()  # type: ignore[attr-defined]  # a generator
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fetch ")]


def test_a_schema_of_ones_own_is_refused(bootstrap: str) -> None:
    with pytest.raises(OptionError, match=r"leave out \.schema"):
        make_batch_reader(options_of(bootstrap, {"subscribe": "x"}), StructType([StructField("a", IntegerType())]))


def test_a_broker_that_dies_and_comes_back_while_a_range_is_read(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        topic = create_topic(broker.bootstrap_servers)
        send(broker.bootstrap_servers, topic, 4_000, size=500)
        reader = batch_reader(broker.bootstrap_servers, subscribe=topic, kafka_max_partition_fetch_bytes=20_000)
        (task,) = reader.partitions()
        batches = reader.read(task)
        first = next(batches)
        broker.kill()
        broker.start()
        found = [offset for batch in (first, *batches) for offset in batch.column("offset").to_pylist()]
    assert found == list(range(4_000))
