"""A topic as a table beside a stream: its newest records at every batch; and plans, which tell what Spark will do."""

import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from moldau.cli.app import app
from moldau.spark.pipelines import loads, start
from tests.support.clients import fresh, read_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(180)


def test_a_table_is_as_new_as_the_batch_that_reads_it(spark: "SparkSession", bootstrap: str, tmp_path: Path) -> None:
    orders, people, letters = fresh("orders"), fresh("people"), fresh("letters")
    pipeline = loads(
        f"""
name: lookup
checkpoint: checkpoint
dead_letters: {letters}
kafka: {{bootstrap.servers: "{bootstrap}"}}
sources:
  orders: {{topic: {orders}, parse: {{format: json, schema: "order_id long, who long", on_error: drop}}}}
  people: {{topic: {people}, as_table: true, parse: {{format: json, schema: "who long, name string"}}}}
steps:
  - {{from: orders, join: people, on: who, how: left}}
sinks:
  - {{database: "sqlite:///{tmp_path}/out.db", table: named, key: order_id}}
""",
        "p.yaml",
        folder=str(tmp_path),
    )
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
    # As it was, changed, newest but not to be parsed, deleted.
    versions = [b'{"who": 7, "name": "amy"}', b'{"who": 7, "name": "ann"}', b"{", None]
    producer.produce(people, b'{"who": 7, "name": "old"}', b"7")
    with_names: dict[int, str | None] = {}
    producer.produce(people, versions[0], b"7")
    producer.produce(orders, json.dumps({"order_id": 0, "who": 7}).encode())
    assert producer.flush(30) == 0
    with start(pipeline, spark) as running:
        running.process_available()
        for number, version in enumerate(versions[1:], 1):
            producer.produce(people, version, b"7")
            assert producer.flush(30) == 0
            producer.produce(orders, json.dumps({"order_id": number, "who": 7}).encode())
            assert producer.flush(30) == 0
            running.process_available()
            while len(with_names) <= number:  # the newest offsets are asked for now and then, not at every look
                running.wait(0.1)
                with sqlite3.connect(tmp_path / "out.db") as connection:
                    with_names = dict(connection.execute("SELECT order_id, name FROM named").fetchall())
    assert with_names == {0: "amy", 1: "ann", 2: None, 3: None}
    told = [letter.value() for letter in read_all(bootstrap, letters)]
    assert told == [b"{"], "what cannot be parsed is told once, and the tombstone is nothing to tell"


def test_the_plan_of_every_query_is_shown_and_nothing_is_written(spark: "SparkSession", tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("""
name: planned
kafka: {bootstrap.servers: "127.0.0.1:1"}
sources:
  orders: {topic: orders, parse: {format: json, schema: "id long not null"}}
steps:
  - {filter: id > 3}
sinks:
  - {name: rows, delta: table}
""")
    result = CliRunner().invoke(app, ["pipeline", "explain", str(file), "--plan"])
    assert result.exit_code == 0, result.output
    said, _, plans = result.output.partition("\nrows\n")
    assert "→ Delta table table, exactly once" in said
    rows, _, letters = plans.partition("\ndead-letters-orders\n")
    assert "from_json" in rows
    assert "Filter (id#" in rows
    assert "kafka_dlt-exception-message" in letters
    assert sorted(each.name for each in tmp_path.iterdir()) == ["p.yaml"]
    file.write_text(file.read_text().replace("id > 3", "id > otherwise(3)"))
    result = CliRunner().invoke(app, ["pipeline", "explain", str(file), "--plan"])
    assert result.exit_code == 2
    assert f"{file}:7:5: Spark does not accept 'step_1': [UNRESOLVED_ROUTINE]" in result.output
