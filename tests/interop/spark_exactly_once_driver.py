"""A Spark application of its own, to be killed: topic to topic, exactly once, dying once per batch at another step.

    python -m tests.interop.spark_exactly_once_driver BOOTSTRAP IN OUT FOLDER worker|driver pass|count

Ends with 0 when everything was written.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from moldau.spark import session
from moldau.spark.sink import foreach_batch
from tests.support.spark_crash import STEPS, TASK_STEPS, Plan, deadly_source

PARTITIONS = 3
ROWS_PER_PARTITION = 40  # in each batch
KEYS = 12


def main(bootstrap: str, source: str, target: str, folder: str, victim: str, query: str) -> None:
    config = {"spark.sql.shuffle.partitions": str(PARTITIONS), "spark.driver.memory": "512m"}
    spark = session("exactly-once", master="local[2,4]", config=config)  # a task may fail three times
    victims = (jvm_pid(spark), os.getpid()) if victim == "driver" else ()
    spark.dataSource.register(deadly_source(Plan(steps_for(victim), str(Path(folder) / "fuses"), victims)))
    rows = (
        spark.readStream.format("moldau")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", PARTITIONS * ROWS_PER_PARTITION)
        .load()
    )
    options = {"kafka.bootstrap.servers": bootstrap, "topic": target, "delivery": "exactly-once"}
    if query == "count":
        writer = counts(rows).writeStream.outputMode("update").foreachBatch(foreach_batch(options))
    else:
        writer = rows.select("key", "value").writeStream.format("moldau").options(**options)
    running = writer.option("checkpointLocation", str(Path(folder) / "checkpoint")).trigger(availableNow=True).start()
    running.awaitTermination()


def steps_for(victim: str) -> tuple[str, ...]:
    """The death of a worker ends a task; the driver can also die when all tasks are done."""
    return STEPS if victim == "driver" else tuple(TASK_STEPS)


def counts(rows: DataFrame) -> DataFrame:
    """How often each key came so far: state, and a shuffle before the sink."""
    keys = rows.selectExpr("CAST(key AS STRING) AS key").groupBy("key").count()
    return keys.selectExpr("key", "CAST(count AS STRING) AS value")


def jvm_pid(spark: SparkSession) -> int:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    pid: int = jvm.java.lang.ProcessHandle.current().pid()
    return pid


if __name__ == "__main__":
    main(*sys.argv[1:])
