"""Our source beside Spark's own Kafka connector, in one session: same rows, columns, types, offsets and refusals.

Every topic is read from Apache Kafka and from Moldau, by both, so that a difference between brokers shows too.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from moldau.spark import session
from tests.interop.apache_kafka import SINGLE_NODE_PROPERTIES, ApacheKafka
from tests.interop.spark_connector import connector_jars
from tests.interop.spark_jvm import end_jvm
from tests.support.broker_process import BrokerProcess
from tests.support.clients import Sent, quiet, read_all, send_confluent, wait_for

OURS, THEIRS = "moldau", "kafka"
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
Fresh = Callable[[str], str]
Options = dict[str, Any]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """With the connector's jars; the JVM is this module's own."""
    end_jvm()
    config = {
        "spark.jars": ",".join(map(str, connector_jars())),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark") / "warehouse"),
    }
    running = session("interop", master="local[2]", config=config)
    yield running
    running.stop()
    end_jvm()


@pytest.fixture(params=["apache_kafka", "moldau"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Both brokers in turn."""
    broker: ApacheKafka | BrokerProcess = request.getfixturevalue(request.param)
    return broker.bootstrap_servers


def make_topic(bootstrap: str, name: str, partitions: int = 1, **configs: str) -> str:
    settings = {"retention.ms": "-1"} | {key.replace("_", "."): value for key, value in configs.items()}
    client = AdminClient(quiet(bootstrap))
    (future,) = client.create_topics([NewTopic(name, partitions, 1, config=settings)]).values()
    future.result(30)
    return name


def send(bootstrap: str, topic: str, partition: int, numbers: range, codec: str = "none") -> None:
    """Records with and without keys, values and headers, at known times."""
    producer = Producer(quiet(bootstrap, compression_type=codec, linger_ms=5))
    for number in numbers:
        producer.produce(
            topic,
            None if number % 7 == 3 else b"value %d" % number * (number % 5),
            None if number % 3 == 0 else b"key %d" % (number % 4),
            partition=partition,
            headers=[("h", b"%d" % number), ("h", None), ("ü", b"")] if number % 2 else [],
            timestamp=1_700_000_000_000 + number,
        )
    assert producer.flush(30) == 0


def read(spark: SparkSession, kind: str, bootstrap: str, options: Options) -> DataFrame:
    reader = spark.read.format(kind).option("kafka.bootstrap.servers", bootstrap)
    return reader.options(**options).load()


def both(spark: SparkSession, bootstrap: str, options: Options) -> tuple[list[Any], list[Any]]:
    frames = [read(spark, kind, bootstrap, options) for kind in (OURS, THEIRS)]
    assert frames[0].schema == frames[1].schema
    ours, theirs = (sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset)) for frame in frames)
    return ours, theirs


def refusal(spark: SparkSession, kind: str, bootstrap: str, options: Options) -> bool:
    try:
        read(spark, kind, bootstrap, options).collect()
    except Exception:
        return True
    return False


@pytest.mark.parametrize("codec", CODECS)
def test_rows_of_every_codec(spark: SparkSession, bootstrap: str, fresh_topic: Fresh, codec: str) -> None:
    topic = make_topic(bootstrap, fresh_topic("codec"), 3)
    for partition in range(2):
        send(bootstrap, topic, partition, range(300), codec)
    ours, theirs = both(spark, bootstrap, {"subscribe": topic, "includeHeaders": True})
    assert len(ours) == 600
    assert ours == theirs


def test_offsets_and_timestamps(spark: SparkSession, bootstrap: str, fresh_topic: Fresh) -> None:
    topic = make_topic(bootstrap, fresh_topic("limits"), 2)
    for partition in range(2):
        send(bootstrap, topic, partition, range(100))

    def table(first: int, second: int) -> str:
        return json.dumps({topic: {"0": first, "1": second}})

    at = 1_700_000_000_000
    cases: list[tuple[Options, int]] = [
        ({"startingOffsets": table(10, -2), "endingOffsets": table(20, -1)}, 110),
        ({"startingTimestamp": at + 90}, 20),
        ({"startingOffsetsByTimestamp": table(at + 50, at + 99), "endingOffsets": "latest"}, 51),
        ({"endingTimestamp": at + 5}, 10),
        ({"endingOffsetsByTimestamp": table(at + 7, at + 500)}, 107),
        ({"startingTimestamp": at + 500, "startingOffsetsByTimestampStrategy": "latest"}, 0),
        ({"minPartitions": 7}, 200),
        ({"maxRecordsPerPartition": 30}, 200),
    ]
    for options, count in cases:
        ours, theirs = both(spark, bootstrap, {"subscribe": topic} | options)
        assert len(ours) == count, options
        assert ours == theirs, options
    # With offsets in numbers: of "earliest" and "latest" the connector does not know how many records they enclose.
    numbers: Options = {"subscribe": topic, "startingOffsets": table(0, 50), "endingOffsets": table(100, 100)}
    for limits in ({"minPartitions": 7}, {"maxRecordsPerPartition": 30}):
        tasks = [read(spark, kind, bootstrap, numbers | limits).rdd.getNumPartitions() for kind in (OURS, THEIRS)]
        assert tasks[0] == tasks[1]


def test_the_same_options_are_refused(spark: SparkSession, bootstrap: str, fresh_topic: Fresh) -> None:
    topic = make_topic(bootstrap, fresh_topic("refused"))
    send(bootstrap, topic, 0, range(10))
    quick = {"fetchOffset.numRetries": 1, "kafka.default.api.timeout.ms": 2_000}
    cases: list[Options] = [
        {},
        {"subscribe": topic, "assign": json.dumps({topic: [0]})},
        {"subscribe": ","},
        {"subscribe": topic, "startingOffsets": "latest"},
        {"subscribe": topic, "endingOffsets": "earliest"},
        {"subscribe": topic, "startingOffsets": "nonsense"},
        {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 1, "1": 1}})},
        {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 99}})},
        {"subscribe": topic, "startingTimestamp": 1_900_000_000_000},
        {"subscribe": topic, "minPartitions": 0},
        {"subscribe": topic, "kafka.auto.offset.reset": "earliest"},
        {"subscribe": topic, "kafka.key.deserializer": "x"},
        {"subscribe": f"{topic}-that-is-not-there"},
    ]
    for options in cases:
        assert [refusal(spark, kind, bootstrap, quick | options) for kind in (OURS, THEIRS)] == [True, True], options


def test_patterns_and_assignments(spark: SparkSession, bootstrap: str, fresh_topic: Fresh) -> None:
    name = fresh_topic("pattern")
    for letter in "ab":
        send(bootstrap, make_topic(bootstrap, f"{name}-{letter}", 2), 1, range(20))
    ours, theirs = both(spark, bootstrap, {"subscribePattern": f"{name}-[ab]"})
    assert len(ours) == 40
    assert ours == theirs
    ours, theirs = both(spark, bootstrap, {"assign": json.dumps({f"{name}-a": [1], f"{name}-b": [0]})})
    assert len(ours) == 20
    assert ours == theirs


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_transactions(spark: SparkSession, bootstrap: str, fresh_topic: Fresh, level: str) -> None:
    topic = make_topic(bootstrap, fresh_topic("transactions"))
    producer = Producer(quiet(bootstrap, transactional_id=topic, linger_ms=0))
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        for index in range(5):
            producer.produce(topic, b"%d.%d" % (number, index))
        if number % 3 == 1:
            assert producer.flush(30) == 0
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    ours, theirs = both(spark, bootstrap, {"subscribe": topic, "kafka.isolation.level": level, "minPartitions": 3})
    assert len(ours) == (20 if level == "read_committed" else 30)
    assert ours == theirs


@pytest.fixture(params=["apache_kafka", "moldau"])
def cleaning(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A broker of each kind whose cleaner is quick."""
    quick = {"log.cleaner.backoff.ms": "100", "log.initial.task.delay.ms": "100"}
    if request.param == "apache_kafka":
        with ApacheKafka(quick) as kafka:
            yield kafka.bootstrap_servers
    else:
        with BrokerProcess(tmp_path / "data", 0, **SINGLE_NODE_PROPERTIES, **quick) as broker:
            yield broker.bootstrap_servers


def test_compacted_topics_with_transactions_in_every_codec(spark: SparkSession, cleaning: str) -> None:
    """Holes where the cleaner was, aborted records it took or left, markers that stand alone."""
    settings = {
        "cleanup_policy": "compact",
        "min_cleanable_dirty_ratio": "0.001",
        "segment_ms": "300",
        "min_compaction_lag_ms": "0",
    }
    topics = {codec: make_topic(cleaning, f"cleaned-{codec}", 1, **settings) for codec in CODECS}
    for codec, topic in topics.items():
        in_transactions(cleaning, topic, codec)

    def is_cleaned(topic: str, codec: str) -> bool:
        send_confluent(cleaning, topic, [Sent(b"last", b"last")], codec)  # a new segment, sooner or later
        found = read_all(cleaning, topic)
        return (found[0].offset() or 0) > 0

    for codec, topic in topics.items():
        wait_for(lambda: is_cleaned(topic, codec), f"{topic} is compacted", 60)  # noqa: B023  # called at once
    for level in ("read_committed", "read_uncommitted"):
        limits: Options = {"kafka.isolation.level": level, "includeHeaders": True, "minPartitions": 12}
        ours, theirs = both(spark, cleaning, limits | {"subscribe": ",".join(topics.values())})
        assert {row.topic for row in ours} == set(topics.values())
        assert ours == theirs


def in_transactions(bootstrap: str, topic: str, codec: str) -> None:
    """Twelve transactions over the same keys, every third aborted."""
    producer = Producer(quiet(bootstrap, transactional_id=topic, linger_ms=5, compression_type=codec))
    producer.init_transactions(30)
    for number in range(12):
        producer.begin_transaction()
        for index in range(20):
            producer.produce(topic, b"%d.%d" % (number, index) * 9, b"key %d" % (index % (number + 2)))
        if number % 3 == 1:
            assert producer.flush(30) == 0
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def test_log_append_time_and_deleted_records(spark: SparkSession, bootstrap: str, fresh_topic: Fresh) -> None:
    topic = make_topic(bootstrap, fresh_topic("deleted"), message_timestamp_type="LogAppendTime")
    send(bootstrap, topic, 0, range(50))
    client = AdminClient(quiet(bootstrap))
    (future,) = client.delete_records([TopicPartition(topic, 0, 20)]).values()
    future.result(30)
    ours, theirs = both(spark, bootstrap, {"subscribe": topic})
    assert len(ours) == 30
    assert ours == theirs
    start: Options = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 5}})}
    ours, theirs = both(spark, bootstrap, start | {"failOnDataLoss": False})
    assert len(ours) == 30
    assert ours == theirs
    assert [refusal(spark, kind, bootstrap, start) for kind in (OURS, THEIRS)] == [True, True]


def stream(
    spark: SparkSession, kind: str, bootstrap: str, folder: Path, options: Options
) -> tuple[list[tuple[Any, ...]], list[Any]]:
    """One available-now run: its batches as (rows, start, end), and all rows written so far."""
    frame = spark.readStream.format(kind).option("kafka.bootstrap.servers", bootstrap).options(**options).load()
    frame = frame.selectExpr("topic", "partition", "offset", "hex(key) as key", "hex(value) as value", "timestamp")
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "out"))
    query.awaitTermination()
    batches = []
    for progress in query.recentProgress:
        source = progress["sources"][0]
        end = json.loads(source["endOffset"])
        if progress["numInputRows"]:
            batches.append((progress["numInputRows"], end))
    return batches, sorted(spark.read.parquet(str(folder / "out")).collect(), key=lambda row: row[:3])


def test_streams_make_the_same_batches(spark: SparkSession, bootstrap: str, fresh_topic: Fresh, tmp_path: Path) -> None:
    """Limited batches; then a restart from the checkpoint, with a new partition."""
    topic = make_topic(bootstrap, fresh_topic("stream"), 2)
    send(bootstrap, topic, 0, range(90), "lz4")
    send(bootstrap, topic, 1, range(10))
    options: Options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 40}
    runs = [
        {kind: stream(spark, kind, bootstrap, tmp_path / kind, options) for kind in (OURS, THEIRS)},
    ]
    client = AdminClient(quiet(bootstrap))
    (future,) = client.create_partitions([NewPartitions(topic, 3)]).values()
    future.result(30)
    send(bootstrap, topic, 2, range(5))
    runs.append({kind: stream(spark, kind, bootstrap, tmp_path / kind, options) for kind in (OURS, THEIRS)})
    for number, run in enumerate(runs):
        assert run[OURS] == run[THEIRS]
        assert len(run[OURS][1]) == (100, 105)[number]


@pytest.mark.parametrize("first", [OURS, THEIRS])
def test_a_checkpoint_moves_from_one_to_the_other_after_each_batch(
    spark: SparkSession, bootstrap: str, fresh_topic: Fresh, tmp_path: Path, first: str
) -> None:
    """Offsets are stored as the connector stores them, those of the first batch too."""
    topic = make_topic(bootstrap, fresh_topic("moving"))
    options: Options = {"subscribe": topic, "startingOffsets": "earliest"}
    second = THEIRS if first == OURS else OURS
    for number, kind in enumerate([first, second, first]):
        send(bootstrap, topic, 0, range(10))
        _, rows = stream(spark, kind, bootstrap, tmp_path, options)
        assert [row.offset for row in rows] == list(range(10 * (number + 1)))


def test_streams_that_retention_overtakes(
    spark: SparkSession, bootstrap: str, fresh_topic: Fresh, tmp_path: Path
) -> None:
    """Both stop, or both go on with what is left."""
    topic = make_topic(bootstrap, fresh_topic("overtaken"))
    options: Options = {"subscribe": topic, "startingOffsets": "earliest"}
    send(bootstrap, topic, 0, range(10))
    for kind in (OURS, THEIRS):
        stream(spark, kind, bootstrap, tmp_path / kind, options)
    send(bootstrap, topic, 0, range(10, 30))
    client = AdminClient(quiet(bootstrap))
    (future,) = client.delete_records([TopicPartition(topic, 0, 18)]).values()
    future.result(30)
    for kind in (OURS, THEIRS):
        with pytest.raises(StreamingQueryException):
            stream(spark, kind, bootstrap, tmp_path / kind, options)
    options["failOnDataLoss"] = False
    ours, theirs = (stream(spark, kind, bootstrap, tmp_path / kind, options) for kind in (OURS, THEIRS))
    assert ours == theirs
    assert [row.offset for row in ours[1]] == [*range(10), *range(18, 30)]
