"""`format("moldau")` as a sink, through Spark: what is written, what is refused, and what survives a killed worker."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka.partitioner.default import murmur2
from pyspark.errors import PySparkException
from pyspark.sql import functions

from moldau.spark.session import register
from moldau.spark.sink import foreach_batch
from tests.support.clients import admin, create_topic, fresh, read_all
from tests.support.spark_crash import Plan, deadly_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS = 3
pytestmark = pytest.mark.timeout(180)  # several JVMs and Python processes start; on a busy machine that takes its time


@pytest.fixture
def topic(bootstrap: str) -> str:
    return create_topic(bootstrap, partitions=PARTITIONS)


def writer(frame: "DataFrame", bootstrap: str, **options: str) -> "DataFrameWriter":
    return frame.write.format("moldau").option("kafka.bootstrap.servers", bootstrap).options(**options).mode("append")


def values(bootstrap: str, topic: str) -> Counter[str]:
    found = (message.value() for message in read_all(bootstrap, topic, PARTITIONS))
    return Counter("" if value is None else bytes(value).decode() for value in found)


def test_rows_become_records(spark: "SparkSession", bootstrap: str, topic: str) -> None:
    frame = spark.sql("""
        SELECT * FROM VALUES
            ('k0', 'v0', array(named_struct('key', 'a', 'value', X'01'), named_struct('key', 'b', 'value', NULL)), 2),
            (NULL, 'v1', NULL, 1),
            ('k2', NULL, array(), 0)
        AS t(key, value, headers, partition)""")
    writer(frame, bootstrap, topic=topic).save()
    found = {
        message.partition(): (message.key(), message.value(), message.headers() or [])
        for message in read_all(bootstrap, topic, PARTITIONS)
    }
    assert found == {
        2: (b"k0", b"v0", [("a", b"\x01"), ("b", None)]),
        1: (None, b"v1", []),
        0: (b"k2", None, []),
    }


def test_keys_lie_where_java_puts_them_and_rows_name_their_topic(
    spark: "SparkSession", bootstrap: str, topic: str
) -> None:
    other = create_topic(bootstrap, partitions=PARTITIONS)
    frame = spark.range(200).selectExpr(
        "concat('key-', id) AS key",
        "CAST(CAST(id AS STRING) AS BINARY) AS value",
        f"if(id < 100, '{topic}', '{other}') AS topic",
    )
    writer(frame, bootstrap).save()
    for name, ids in ((topic, range(100)), (other, range(100, 200))):
        messages = read_all(bootstrap, name, PARTITIONS)
        assert sorted(int(bytes(message.value() or b"")) for message in messages) == [*ids]
        for message in messages:
            assert message.partition() == (murmur2(message.key()) & 0x7FFFFFFF) % PARTITIONS


def test_what_cannot_be_written_is_refused_before_anything_runs(
    spark: "SparkSession", bootstrap: str, topic: str
) -> None:
    frame = spark.range(3)
    with pytest.raises(PySparkException, match="Required attribute 'value' not found"):
        writer(frame, bootstrap, topic=topic).save()
    with pytest.raises(PySparkException, match="value attribute unsupported type bigint"):
        writer(frame.withColumnRenamed("id", "value"), bootstrap, topic=topic).save()
    with pytest.raises(PySparkException, match="did you mean 'delivery'"):
        writer(frame.selectExpr("'x' AS value"), bootstrap, topic=topic, delivry="exactly-once").save()


def test_a_failed_delivery_fails_the_job(spark: "SparkSession", bootstrap: str, topic: str) -> None:
    frame = spark.range(3).selectExpr("'x' AS value", "CAST(7 AS INT) AS partition")
    with pytest.raises(PySparkException, match="records were not written"):
        writer(frame, bootstrap, topic=topic).save()


def test_a_batch_write_in_transactions(spark: "SparkSession", bootstrap: str, topic: str) -> None:
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS value").repartition(4)
    writer(frame, bootstrap, topic=topic, delivery="exactly-once").save()
    assert values(bootstrap, topic) == Counter(map(str, range(100)))


def test_foreach_batch_writes_a_numbered_batch_once(spark: "SparkSession", bootstrap: str, topic: str) -> None:
    frame = spark.range(10).selectExpr("CAST(id AS STRING) AS value").repartition(2)
    prefix = fresh("output")
    for batch_id in ("0", "1", "1"):
        named = {"delivery": "exactly-once", "transactionalIdPrefix": prefix, "batchId": batch_id}
        writer(frame, bootstrap, topic=topic, **named).save()
    assert values(bootstrap, topic) == Counter({str(each): 2 for each in range(10)})


def lines(folder: Path, batches: int, rows: int) -> Counter[str]:
    """A folder of files, one for each batch of a stream."""
    folder.mkdir()
    for batch in range(batches):
        text = [f"{batch}.{row}" for row in range(rows)]
        (folder / f"{batch:03}.txt").write_text("\n".join(text) + "\n")
    return Counter(f"{batch}.{row}" for batch in range(batches) for row in range(rows))


def start(spark: "SparkSession", folder: Path, bootstrap: str, topic: str, delivery: str) -> "StreamingQuery":
    return (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", 1)
        .load(str(folder / "in"))
        .repartition(3, functions.col("value"))
        .writeStream.format("moldau")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("delivery", delivery)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_stream_goes_on_where_it_was(
    spark: "SparkSession", bootstrap: str, topic: str, tmp_path: Path, delivery: str
) -> None:
    expected = lines(tmp_path / "in", 2, 40)
    start(spark, tmp_path, bootstrap, topic, delivery).awaitTermination()
    (tmp_path / "in" / "more.txt").write_text("more\n")
    start(spark, tmp_path, bootstrap, topic, delivery).awaitTermination()
    assert values(bootstrap, topic) == expected + Counter(["more"])


def test_the_number_of_tasks_does_not_depend_on_the_moment(
    spark: "SparkSession", bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """Spark would join small ones, after a restart perhaps others than before, and rows could be written twice."""
    expected = lines(tmp_path / "in", 1, 40)
    prefix = fresh("output")
    rows = spark.readStream.format("text").load(str(tmp_path / "in")).repartition(functions.col("value"))
    options = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "delivery": "exactly-once"}
    writer = rows.writeStream.format("moldau").options(**options, transactionalIdPrefix=prefix)
    where = str(tmp_path / "checkpoint")
    writer.option("checkpointLocation", where).trigger(availableNow=True).start().awaitTermination()
    client = admin(bootstrap)
    groups = client.list_consumer_groups().result(30).valid
    marked = [each.group_id.removeprefix(f"{prefix}-") for each in groups if each.group_id.startswith(prefix)]
    assert {each.partition("-")[0] for each in marked} == {"0", "1"}, "a group per task, named after it and the query"
    assert values(bootstrap, topic) == expected


def test_counts_are_updated_through_foreach_batch(
    spark: "SparkSession", bootstrap: str, topic: str, tmp_path: Path
) -> None:
    expected = lines(tmp_path / "in", 2, 5)
    options = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "delivery": "exactly-once"}
    for each in range(2):
        rows = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(tmp_path / "in"))
        counts = rows.groupBy("value").count().selectExpr("concat(value, '=', count) AS value")
        writer = counts.writeStream.outputMode("update").foreachBatch(foreach_batch(options))
        where = str(tmp_path / "checkpoint")
        writer.option("checkpointLocation", where).trigger(availableNow=True).start().awaitTermination()
        # Spark forgets that the last batch was done, as it does when it dies just then.
        if not each:
            (tmp_path / "checkpoint" / "commits" / "1").unlink()
            (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink(missing_ok=True)
    assert values(bootstrap, topic) == Counter(f"{line}=1" for line in expected)


def test_killed_workers_change_nothing(spark: "SparkSession", bootstrap: str, topic: str, tmp_path: Path) -> None:
    """A few steps; tests/interop/test_spark_exactly_once.py has them all, and kills drivers too."""
    steps = ("amid sending", "between marker and commit", "after commit")
    expected = lines(tmp_path / "in", len(steps), 30)
    (tmp_path / "fuses").mkdir()
    spark.dataSource.register(deadly_source(Plan(steps, str(tmp_path / "fuses"))))
    deaths = 0
    try:
        for _ in range(len(steps) + 1):
            try:
                start(spark, tmp_path, bootstrap, topic, "exactly-once").awaitTermination()
                break
            except PySparkException:  # without retries of tasks in this session, the query ends with its worker
                deaths += 1
    finally:
        register(spark)
    assert deaths == len(steps)
    assert values(bootstrap, topic) == expected
