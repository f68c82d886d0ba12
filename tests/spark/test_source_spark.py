"""The source inside Spark: batches and streams, checkpoints, restarts. Few tests, because each takes seconds."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from moldau.spark import register
from tests.spark.reading import send
from tests.support.clients import Sent, add_partitions, admin, create_topic, fresh, send_confluent, wait_for

pytestmark = pytest.mark.slow


def read(spark: SparkSession, bootstrap: str, topic: str, **options: Any) -> DataFrame:
    reader = spark.read.format("moldau").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return reader.options(**options).load()


def start(
    spark: SparkSession, bootstrap: str, topic: str, folder: Path, *, available_now: bool = False, **options: Any
) -> StreamingQuery:
    """A query that writes numbers of values as JSON files, with its checkpoint beside."""
    reader = spark.readStream.format("moldau").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    writer = (
        reader.options(**options)
        .load()
        .selectExpr("cast(value as string) as value", "partition", "offset")
        .writeStream.format("json")
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
    return writer.start(str(folder / "out"))


def written(folder: Path) -> list[str]:
    lines = [line for file in (folder / "out").glob("*.json") for line in file.read_text().splitlines()]
    return sorted(json.loads(line)["value"] for line in lines)


def test_a_batch_has_rows_types_and_headers(spark: SparkSession, bootstrap: str) -> None:
    topic = create_topic(bootstrap, partitions=2)
    send_confluent(bootstrap, topic, [Sent(b"%d" % n, b"k", (("h", b"1"),), 1_700_000_000_000 + n) for n in range(500)])
    send(bootstrap, topic, 500, first=500, partition=1, codec="zstd")
    frame = read(spark, bootstrap, topic, includeHeaders=True, minPartitions=4)
    assert frame.rdd.getNumPartitions() == 4
    assert frame.count() == 1_000
    (row,) = frame.where("partition = 0 and offset = 3").collect()
    assert (bytes(row.key), bytes(row.value), row.topic, row.timestampType) == (b"k", b"3", topic, 0)
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("h", b"1")]
    assert frame.selectExpr("unix_millis(min(timestamp))").first() == (1_700_000_000_000,)
    assert frame.where("headers is null").count() == 500


def test_errors_reach_the_user(spark: SparkSession, bootstrap: str) -> None:
    with pytest.raises(Exception, match="did you mean 'startingOffsets'"):
        read(spark, bootstrap, "x", startingOffset="earliest").count()
    with pytest.raises(Exception, match="no such topic: nobody-made-it"):
        read(spark, bootstrap, "nobody-made-it").count()


def test_a_stream_goes_on_from_its_checkpoint(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """Available-now in small batches; then a restart, with more records and a partition that was not there before."""
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 30)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 20}
    query = start(spark, bootstrap, topic, tmp_path, available_now=True, **options)
    query.awaitTermination()
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [20, 10]
    assert json.loads(query.recentProgress[-1]["sources"][0]["endOffset"]) == {topic: {"0": 30}}
    add_partitions(bootstrap, topic, 2)
    send(bootstrap, topic, 5, first=30, partition=1)
    start(spark, bootstrap, topic, tmp_path, available_now=True, **options).awaitTermination()
    assert written(tmp_path) == sorted(f"v{number}" for number in range(35))


def test_a_query_that_fails_in_its_first_batch_starts_where_it_would_have(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """Starting at latest: what came between the first plan and the restart must not be lost."""
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 3)
    frame = (
        spark.readStream.format("moldau")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .load()
        .selectExpr("cast(value as string) as value")
    )
    is_broken = tmp_path / "broken"
    is_broken.touch()
    seen: list[str] = []

    def take(rows: DataFrame, _: int) -> None:
        if is_broken.exists():
            raise RuntimeError("broken on purpose")
        seen.extend(row.value for row in rows.collect())

    def run() -> StreamingQuery:
        return frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = run()
    wait_for(lambda: query.lastProgress is not None or not query.isActive or (query.status["isDataAvailable"] is False
             and query.status["message"].startswith("Waiting")), "the query waits for data", 120)  # fmt: skip
    send(bootstrap, topic, 2, first=3)
    with pytest.raises(StreamingQueryException, match="broken on purpose"):
        query.awaitTermination(120)
    send(bootstrap, topic, 2, first=5)
    is_broken.unlink()
    query = run()
    wait_for(lambda: len(seen) >= 4, "all records after the first start", 120)
    query.stop()
    assert sorted(seen) == ["v3", "v4", "v5", "v6"]


def test_a_running_query_takes_in_new_topics_and_partitions(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    base = fresh("growing")
    first = create_topic(bootstrap, f"{base}-a")
    send(bootstrap, first, 2)
    reader = spark.readStream.format("moldau").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.options(subscribePattern=f"{base}-.*", startingOffsets="earliest")
    seen: list[str] = []
    frame = reader.load().selectExpr("cast(value as string) as value")
    query = frame.writeStream.foreachBatch(
        lambda rows, _: seen.extend(row.value for row in rows.collect())
    ).option("checkpointLocation", str(tmp_path / "checkpoint"))  # fmt: skip
    running = query.start()
    wait_for(lambda: len(seen) == 2, "the first topic", 120)
    send(bootstrap, create_topic(bootstrap, f"{base}-b"), 2, first=2)
    wait_for(lambda: len(seen) == 4, "the new topic", 120)
    add_partitions(bootstrap, first, 2)
    send(bootstrap, first, 2, first=4, partition=1)
    wait_for(lambda: len(seen) == 6, "the new partition", 120)
    running.stop()
    assert sorted(seen) == [f"v{number}" for number in range(6)]


def test_available_now_leaves_what_comes_meanwhile_to_the_next_run(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    """Every batch sees more records arrive, and a partition."""
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 10)
    reader = spark.readStream.format("moldau").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=4)
    frame = reader.load().selectExpr("cast(value as string) as value")
    seen: list[list[str]] = []

    def take(rows: DataFrame, number: int) -> None:
        seen.append([row.value for row in rows.collect()])
        send(bootstrap, topic, 1, first=100 + number)
        if number == 0:
            add_partitions(bootstrap, topic, 2)
            send(bootstrap, topic, 1, first=200, partition=1)

    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert list(map(len, seen)) == [4, 4, 2]
    assert list(chain(*seen)) == [f"v{number}" for number in range(10)]
    seen.clear()
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted(chain(*seen)) == ["v100", "v101", "v102", "v200"]


def test_retention_overtakes_a_query_that_was_stopped(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 10)
    start(spark, bootstrap, topic, tmp_path, available_now=True, startingOffsets="earliest").awaitTermination()
    send(bootstrap, topic, 10, first=10)
    client = admin(bootstrap)
    (future,) = client.delete_records([TopicPartition(topic, 0, 15)]).values()
    future.result(30)
    with pytest.raises(StreamingQueryException, match=r"offsets 10 to 15 .* set the option failOnDataLoss to false"):
        start(spark, bootstrap, topic, tmp_path, available_now=True).awaitTermination()
    start(spark, bootstrap, topic, tmp_path, available_now=True, failOnDataLoss=False).awaitTermination()
    assert written(tmp_path) == sorted(f"v{number}" for number in (*range(10), *range(15, 20)))


def test_the_format_is_there_without_a_line_of_code(spark: "SparkSession", bootstrap: str) -> None:
    """In a session that nobody registered anything with; registering it after that is fine too."""
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 3)
    other = spark.newSession()
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    assert other.read.format("moldau").options(**options).load().count() == 3
    register(other)
    assert other.read.format("moldau").options(**options).load().count() == 3


def test_all_that_was_there_is_processed_when_spark_says_so(
    spark: SparkSession, bootstrap: str, tmp_path: Path
) -> None:
    topic = create_topic(bootstrap, partitions=2)
    query = start(spark, bootstrap, topic, tmp_path, startingOffsets="earliest")
    try:
        for turn in range(5):
            send(bootstrap, topic, 3, first=3 * turn, partition=turn % 2)
            query.processAllAvailable()
            assert len(written(tmp_path)) == 3 * (turn + 1)
    finally:
        query.stop()
