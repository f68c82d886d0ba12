"""A Spark application of its own, to be killed: topic to topic, exactly once, dying once per batch at another step.

    python -m tests.interop.spark_exactly_once_driver BOOTSTRAP IN OUT FOLDER VICTIM pass|count [MASTER]

VICTIM is worker, driver, executor, or executor-without-worker (see `Plan`); with -decisive, fewer steps are tried.
Ends with 0 when everything was written.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from moldau.spark import session
from moldau.spark.sink import foreach_batch
from tests.support.spark_crash import DECISIVE_STEPS, DECISIVE_TASK_STEPS, STEPS, TASK_STEPS, Plan, deadly_source

PARTITIONS = 3
ROWS_PER_PARTITION = 40  # in each batch
KEYS = 12
DECISIVE = "-decisive"


def main(
    bootstrap: str, source: str, target: str, folder: str, victim: str, query: str, master: str = "local[2,4]"
) -> None:
    config = {
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        # In local mode and on a cluster alike a task may fail three times.
        "spark.task.maxFailures": "4",
    }
    spark = session("exactly-once", master=master, config=config)
    victims = (jvm_pid(spark), os.getpid()) if victim.startswith("driver") else ()
    fuses, batch = str(Path(folder) / "fuses"), PARTITIONS * ROWS_PER_PARTITION
    plan = Plan(steps_for(victim), fuses, kills=victim.removesuffix(DECISIVE), victims=victims, rows_per_batch=batch)
    spark.dataSource.register(deadly_source(plan))
    rows = (
        spark.readStream.format("moldau")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch)
        .load()
    )
    checkpoint = str(Path(folder) / "checkpoint")
    options = {"kafka.bootstrap.servers": bootstrap, "topic": target, "delivery": "exactly-once"}
    if query == "count":
        writer = counts(rows).writeStream.outputMode("update").foreachBatch(foreach_batch(options, checkpoint))
    else:
        writer = rows.select("key", "value").writeStream.format("moldau").options(**options)
    running = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    running.awaitTermination()


def steps_for(victim: str) -> tuple[str, ...]:
    """The death of a worker ends a task; the driver can also die before and after all tasks."""
    is_driver = victim.startswith("driver")
    if victim.endswith(DECISIVE):
        return DECISIVE_STEPS if is_driver else DECISIVE_TASK_STEPS
    return STEPS if is_driver else tuple(TASK_STEPS)


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
