"""The ready pipelines, end to end: data is made, Spark runs the files that come with the package, results are shown.

Everything happens on an embedded broker and in a temporary folder. Each result is compared with what the generator
knows to be true; a difference ends the demo with an error.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from rich.table import Table

from moldau.demo.summary import DemoFailed, Summary
from moldau.records.client_headers import headers_of
from moldau.spark.pipelines import Pipeline, ready, start
from moldau.spark.pipelines.ready import generators

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

_SECONDS_MAX = 600  # patience with a busy machine; a tenth of it is usual


class Stage:
    """What every act of the demo needs: the broker's address, a folder, Spark and the terminal."""

    def __init__(self, address: str, folder: Path, spark: SparkSession, console: Console, summary: Summary) -> None:
        self.address = address
        self.folder = folder
        self.spark = spark
        self.console = console
        self._summary = summary

    def pipeline(self, name: str, **variables: str) -> Pipeline:
        given = {"bootstrap": self.address, "folder": str(self.folder / "data"), **variables}
        return replace(ready.find(name, given), checkpoint=str(self.folder / "checkpoints" / name))

    def run(self, name: str, **variables: str) -> float:
        """Run a ready pipeline over what is there; returns the seconds it took."""
        started = time.perf_counter()
        with start(self.pipeline(name, **variables), self.spark, once=True) as running:
            if not running.wait(_SECONDS_MAX):
                raise DemoFailed(f"pipeline {name} did not finish within {_SECONDS_MAX} s")
        return time.perf_counter() - started

    def title(self, text: str) -> None:
        self.console.print(f"\n[bold]{text}[/]")

    def expect(self, what: str, found: object, expected: object) -> None:
        self._summary.expect("pipelines", what, found, expected)

    def records(self, topic: str) -> list[tuple[dict[str, str], Any]]:
        """Committed records of a topic, with their headers as text."""
        settings = {
            "bootstrap.servers": self.address,
            "group.id": f"demo-{topic}",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 2,
        }
        consumer = Consumer(settings)
        partitions = list(consumer.list_topics(topic, 10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in partitions])
        found, open_partitions = [], len(partitions)
        deadline = time.monotonic() + 30
        while open_partitions and time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error() is not None:
                open_partitions -= 1  # its end
                continue
            headers = {key: (value or b"").decode(errors="replace") for key, value in headers_of(message)}
            try:
                found.append((headers, json.loads(message.value() or b"null")))
            except ValueError:
                found.append((headers, message.value()))
        consumer.close()
        return found


def metrics(stage: Stage, count: int) -> None:
    stage.title("metrics: windows and percentiles, alerts, dead letters")
    truth = generators.metrics(stage.address, {}, count)
    seconds = stage.run("metrics")
    windows, alerts = stage.records("metrics-windows"), stage.records("metrics-alerts")
    letters = stage.records("metrics-dlt")
    stage.expect("hosts with alerts", {alert["host"] for _, alert in alerts}, {truth["slow_host"]})
    stage.expect("dead letters", len(letters), truth["broken"])
    table = Table("window", "host", "count", "p50", "p95", "p99", title="alerts", title_justify="left")
    for _, row in alerts[:3]:
        table.add_row(
            row["window_start"][11:16], row["host"], *(str(row[key]) for key in ("count", "p50", "p95", "p99"))
        )
    stage.console.print(table)
    reason = letters[0][0]["kafka_dlt-exception-message"]
    stage.console.print(
        f"{truth['records']:,} records became {len(windows)} windows in {seconds:.0f} s; {len(letters)} broken ones "
        f"are in metrics-dlt, the first because: {reason}"
    )


def logs(stage: Stage, count: int) -> None:
    from deltalake import DeltaTable

    stage.title("logs: templates learned, lines counted, bursts of errors found")
    truth = generators.logs(stage.address, {"burst": "20"}, count)
    seconds = stage.run("logs")
    rows = DeltaTable(str(stage.folder / "data" / "log-counts")).to_pyarrow_table().to_pylist()
    lines: Counter[tuple[str, str]] = Counter()
    for row in rows:
        lines[row["template"], row["level"]] += row["lines"]
    stage.expect("templates", len(lines), len(truth["kinds"]))
    stage.expect("bursts", {alert["host"] for _, alert in stage.records("log-alerts")}, {truth["burst_host"]})
    table = Table("template", "level", "lines", title="templates in closed windows", title_justify="left")
    for (template, level), number in lines.most_common():
        table.add_row(template, level, f"{number:,}")
    stage.console.print(table)
    stage.console.print(
        f"{truth['records']:,} lines in {seconds:.0f} s; a burst of errors was found on {truth['burst_host']}"
    )


def enrich(stage: Stage, count: int) -> None:
    stage.title("enrich: orders joined with customers, topic to topic, exactly-once")
    truth = generators.enrich(stage.address, {}, count)
    seconds = stage.run("enrich")
    rows = [row for _, row in stage.records("orders-enriched")]
    stage.expect("orders by tier", Counter(row.get("tier", "unknown") for row in rows), Counter(truth["by_tier"]))
    table = Table("order", "customer", "country", "tier", "amount", "total")
    for row in rows[:3]:
        table.add_row(*(str(row.get(key, "")) for key in ("order_id", "name", "country", "tier", "amount", "total")))
    stage.console.print(table)
    stage.console.print(f"{len(rows):,} orders enriched in {seconds:.0f} s, each exactly once")


def events(stage: Stage, count: int) -> None:
    from deltalake import DeltaTable

    stage.title("events: exactly-once into a Delta table, duplicates removed, small files compacted")
    truth = generators.events(stage.address, {}, count)
    # Small batches make small files, so that there is something to compact; the checkpoint carries over the restart.
    size = {"records_per_batch": str(truth["records"] // 2 + 1), "compact_every": "2"}
    seconds = stage.run("events", **size) + stage.run("events", **size)
    table = DeltaTable(str(stage.folder / "data" / "events"))
    rows = table.to_pyarrow_table()
    ids = rows.column("event_id").to_pylist()
    stage.expect("events", len(ids), truth["events"])
    stage.expect("distinct events", len(set(ids)), truth["events"])
    history = Counter(each["operation"] for each in table.history())
    stage.console.print(
        f"{truth['records']:,} records, {truth['duplicates']} of them twice, became {len(ids):,} rows "
        f"in {seconds:.0f} s, a restart between; {history['WRITE'] + history['CREATE TABLE']} commits, "
        f"{history['OPTIMIZE']} compactions, {len(table.file_uris())} files; "
        f"the new field 'device' became a column: {'device' in rows.column_names}"
    )


def integrate(stage: Stage, count: int) -> None:
    from sqlalchemy import create_engine, text

    stage.title("integrate: an outbox into a topic, the topic into another database")
    databases = {f"{side}_database": f"sqlite:///{stage.folder / 'data' / side}.db" for side in ("source", "target")}
    os.makedirs(stage.folder / "data", exist_ok=True)
    truth = generators.integrate(stage.address, databases, count)
    engine = create_engine(databases["target_database"])

    def names() -> dict[int, str]:
        with engine.connect() as connection:
            if not engine.dialect.has_table(connection, "customers"):
                return {}
            return {row[0]: row[1] for row in connection.execute(text("SELECT customer_id, name FROM customers"))}

    started = time.perf_counter()
    with start(stage.pipeline("integrate", **databases), stage.spark) as running:
        while names() != truth["names"]:
            running.wait(0.2)
            if time.perf_counter() - started > _SECONDS_MAX:
                raise DemoFailed(f"integrate: {len(names())} customers, expected {truth['customers']}")
        stage.expect("customers in the other database", len(names()), len(truth["names"]))
    engine.dispose()
    stage.console.print(
        f"{truth['changes']:,} changes in the outbox became {truth['customers']:,} customers in the other database "
        f"in {time.perf_counter() - started:.0f} s (streaming, then stopped gracefully)"
    )


ACTS = (metrics, logs, enrich, events, integrate)


def start_spark() -> SparkSession:
    """The session of this process; the first call takes a while."""
    from moldau.spark import session
    from moldau.spark.session import default_config

    master = "local[2]"
    options = default_config(master)["spark.driver.extraJavaOptions"]
    config = {
        "spark.sql.shuffle.partitions": "2",
        # A minute of Spark is too short for its second compiler: that would take the cores from what it compiles.
        "spark.driver.extraJavaOptions": f"{options} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    return session("moldau-demo", master=master, config=config)


@contextmanager
def stage(folder: Path, console: Console, summary: Summary) -> Iterator[Stage]:
    from moldau.testing import Broker

    with Broker() as broker:
        spark = start_spark()
        console.print(f"\nSpark {spark.version} is ready")
        try:
            yield Stage(broker.bootstrap_servers, folder, spark, console, summary)
        finally:
            spark.stop()


def show(folder: Path, console: Console, summary: Summary, count: int = 10_000) -> None:
    """All ready pipelines, one after the other."""
    started = time.perf_counter()
    with stage(folder, console, summary) as on:
        for act in ACTS:
            act(on, count)
    console.print(f"\nFive pipelines in {time.perf_counter() - started:.0f} s.")
