"""Pipelines that run: late data, dead letters, restarts, drift, joins, state, databases, failures."""

import json
import re
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer

from moldau.spark.pipelines import Pipeline, PipelineError, loads, sinks, start
from moldau.spark.pipelines.progress import read_status
from moldau.spark.pipelines.runner import PipelineFailed
from moldau.spark.pipelines.secrecy import spark_settings
from tests.support.clients import read_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(180)  # a dozen Python processes start; on a busy machine that takes its time


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.1)


def produce(bootstrap: str, topic: str, *values: object) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
    for value in values:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, data, b"key", headers=[("trace", b"7")])
    assert producer.flush(30) == 0


def consume(bootstrap: str, topic: str, count: int) -> list[Any]:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": f"reader-{topic}",
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "log_level": 2,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found: list[Any] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message)
    consumer.close()
    return found


def file_pipeline(folder: Path, text: str) -> Pipeline:
    return loads(f"name: p\ncheckpoint: {folder}/checkpoint\n{text}", "p.yaml", folder=str(folder))


def write_lines(file: Path, *rows: Mapping[str, object]) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_windows_close_late_data_is_dropped_bad_records_are_told_and_a_restart_goes_on(
    spark: "SparkSession", bootstrap: str, tmp_path: Path
) -> None:
    database = tmp_path / "out.db"
    pipeline = file_pipeline(
        tmp_path,
        f"""
kafka: {{bootstrap.servers: "{bootstrap}"}}
dead_letters: readings-dlt
spark: {{spark.sql.streaming.noDataMicroBatches.enabled: "true"}}
sources:
  readings:
    topic: readings
    parse: {{format: json, schema: "id bigint not null, at timestamp"}}
    watermark: {{column: at, delay: 10 minutes}}
steps:
  - name: hours
    window: {{column: at, size: 1 hour}}
    aggregate: {{n: count(*)}}
sinks:
  - database: sqlite:///{database}
    table: hours
    key: window_start
""",
    )

    def hours() -> dict[str, int]:
        with sqlite3.connect(database) as connection:
            try:
                rows = connection.execute("SELECT window_start, n FROM hours").fetchall()
            except sqlite3.OperationalError:
                return {}
        return {start[11:16]: n for start, n in rows}

    at = "2026-11-15T{}:00Z".format
    produce(bootstrap, "readings", *({"id": n, "at": at("12:05")} for n in range(3)), b"{bad", {"at": at("12:00")})
    with start(pipeline, spark) as running:
        running.process_available()
        produce(bootstrap, "readings", {"id": 3, "at": at("14:00")})
        wait_until(lambda: hours() == {"12:00": 3}, "12:00 closed")
        produce(bootstrap, "readings", {"id": 4, "at": at("12:10")})
        sink = next(name for name in running.queries if name.startswith("database"))

        def late() -> int:
            found: list[int] = [each.late_rows for each in running.progress() if each.name == sink]
            return found[0]

        wait_until(lambda: late() == 1, "the late record noticed")
        found = {each.name: each for each in running.progress()}
        assert found[sink].rows_total == 7
        assert found[sink].lag_records == 0
        assert found[sink].state_rows == 1
    status = read_status(pipeline.checkpoint_folder)
    assert status is not None
    assert not status["running"]
    assert {each["name"]: each["rows_total"] for each in status["queries"]}[sink] >= 7

    produce(bootstrap, "readings", {"id": 5, "at": at("16:00")})
    with start(pipeline, spark, once=True) as running:
        assert running.wait(120)
    assert hours() == {"12:00": 3, "14:00": 1}

    letters = consume(bootstrap, "readings-dlt", 2)
    assert [letter.value() for letter in letters] == [b"{bad", b'{"at": "2026-11-15T12:00:00Z"}']
    headers = dict(letters[0].headers())
    assert letters[0].key() == b"key"
    assert headers["trace"] == b"7"
    assert headers["kafka_dlt-original-topic"] == b"readings"
    assert headers["kafka_dlt-original-offset"] == (3).to_bytes(8, "big")
    assert headers["kafka_dlt-original-partition"] == (0).to_bytes(4, "big")
    assert headers["__connect.errors.offset"] == b"3"
    assert headers["kafka_dlt-exception-message"].startswith(b"not JSON: Expecting property name")
    assert dict(letters[1].headers())["kafka_dlt-exception-message"] == (
        b"field id: missing or null, but the schema says NOT NULL"
    )


def test_a_new_field_becomes_a_column_while_the_stream_runs(
    spark: "SparkSession", bootstrap: str, tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    pipeline = file_pipeline(
        tmp_path,
        f"""
kafka: {{bootstrap.servers: "{bootstrap}"}}
sources:
  people:
    topic: people
    parse: {{format: json, schema: sample, new_columns: evolve, on_error: drop}}
sinks:
  - delta: table
""",
    )
    produce(bootstrap, "people", {"id": 1}, b"nonsense")
    with start(pipeline, spark) as running:
        running.process_available()
        produce(bootstrap, "people", {"id": 2, "name": "amy"})
        wait_until(lambda: DeltaTable(str(tmp_path / "table")).to_pyarrow_table().num_rows == 2, "both are there")
    rows = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert sorted(rows, key=lambda row: int(row["id"])) == [{"id": 1, "name": None}, {"id": 2, "name": "amy"}]


def test_streams_are_joined_with_streams_and_tables_and_state_is_kept(spark: "SparkSession", tmp_path: Path) -> None:
    (tmp_path / "counting_beside_the_file.py").write_text(
        "import pandas as pd\n"
        "def count(key, frames, state):\n"
        "    seen = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)\n"
        "    state.update((seen,))\n"
        "    yield pd.DataFrame({'country': [key[0]], 'seen': [seen]})\n"
    )
    at = "2026-11-15T12:00:00Z"
    write_lines(tmp_path / "orders" / "1.json", {"id": 1, "who": 7, "at": at}, {"id": 2, "who": 8, "at": at})
    write_lines(tmp_path / "payments" / "1.json", {"order_id": 1, "paid_at": at}, {"order_id": 9, "paid_at": at})
    write_lines(tmp_path / "people" / "1.json", {"who": 7, "country": "CZ"}, {"who": 8, "country": "DE"})
    pipeline = file_pipeline(
        tmp_path,
        """
sources:
  orders:
    files: orders
    format: json
    schema: id long, who long, at timestamp
    watermark: {column: at, delay: 1 hour}
  payments:
    files: payments
    format: json
    schema: order_id long, paid_at timestamp
    watermark: {column: paid_at, delay: 1 hour}
  people: {files: people, format: json, static: true}
steps:
  - {name: paid, from: orders, join: payments, on: "orders.id = payments.order_id AND paid_at >= at"}
  - {name: known, join: people, on: who, how: left}
  - {select: country}
  - name: seen
    stateful: counting_beside_the_file:count
    key: country
    output: country string, seen long
    state: n long
  - name: everything
    sql: SELECT country, count(*) AS n FROM orders JOIN people USING (who) GROUP BY country
sinks:
  - {from: seen, memory: seen_rows}
  - {from: everything, memory: counted, mode: complete}
""",
    )
    with start(pipeline, spark, once=True) as running:
        assert running.wait(120)
        rows = {row.country: row.seen for row in running.spark.sql("SELECT * FROM seen_rows").collect()}
        counted = {row.country: row.n for row in running.spark.sql("SELECT * FROM counted").collect()}
    assert rows == {"CZ": 1}
    assert counted == {"CZ": 1, "DE": 1}


def test_a_stateful_processor_keeps_state_by_key_over_a_restart(spark: "SparkSession", tmp_path: Path) -> None:
    (tmp_path / "processor_beside_the_file.py").write_text(
        "import pandas as pd\n"
        "from pyspark.sql.streaming import StatefulProcessor\n"
        "class Counter(StatefulProcessor):\n"
        "    def init(self, handle):\n"
        "        self.seen = handle.getValueState('seen', 'n long')\n"
        "    def handleInputRows(self, key, rows, timerValues):\n"
        "        before = self.seen.get()[0] if self.seen.exists() else 0\n"
        "        now = before + sum(len(frame) for frame in rows)\n"
        "        self.seen.update((now,))\n"
        "        yield pd.DataFrame({'who': [key[0]], 'seen': [now]})\n"
        "    def close(self):\n"
        "        pass\n"
    )
    pipeline = file_pipeline(
        tmp_path,
        f"""
sources:
  visits: {{files: visits, format: json, schema: who long}}
steps:
  - {{stateful: "processor_beside_the_file:Counter", key: who, output: "who long, seen long", mode: update}}
sinks:
  - {{database: "sqlite:///{tmp_path}/out.db", table: visitors, key: who, mode: update}}
""",
    )
    for number, visitors in enumerate([(7, 8, 7), (7,)]):
        write_lines(tmp_path / "visits" / f"{number}.json", *({"who": who} for who in visitors))
        with start(pipeline, spark, once=True) as running:
            assert running.wait(120)
    with sqlite3.connect(tmp_path / "out.db") as connection:
        assert connection.execute("SELECT who, seen FROM visitors ORDER BY who").fetchall() == [(7, 3), (8, 1)]


def test_counts_go_to_a_topic_as_they_change_each_batch_once(
    spark: "SparkSession", bootstrap: str, tmp_path: Path
) -> None:
    pipeline = file_pipeline(
        tmp_path,
        f"""
kafka: {{bootstrap.servers: "{bootstrap}"}}
sources:
  words: {{files: words, format: json, schema: word string}}
steps:
  - {{group_by: word, aggregate: {{n: count(*)}}}}
sinks:
  - {{name: out, topic: counts, key: word, mode: update}}
""",
    )
    for number, words in enumerate([("a", "b"), ("b", "c")]):
        write_lines(tmp_path / "words" / f"{number}.json", *({"word": word} for word in words))
        with start(pipeline, spark, once=True) as running:
            assert running.wait(120)
    # As if the driver had died before Spark noted that the second batch was done: it is run again, and written once.
    (tmp_path / "checkpoint" / "out" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "out" / "commits" / ".1.crc").unlink()
    write_lines(tmp_path / "words" / "3.json", {"word": "d"})
    with start(pipeline, spark, once=True) as running:
        assert running.wait(120)
    told = [{"a": 1, "b": 1}, {"b": 2, "c": 1}, {"d": 1}]
    expected = sorted((word, n) for batch in told for word, n in batch.items())
    found = [json.loads(message.value() or b"") for message in read_all(bootstrap, "counts")]
    assert sorted((row["word"], row["n"]) for row in found) == expected


def test_a_database_is_a_stream_of_its_new_rows(spark: "SparkSession", tmp_path: Path) -> None:
    database = tmp_path / "in.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE outbox (seq INTEGER PRIMARY KEY, payload TEXT)")
        connection.executemany("INSERT INTO outbox (payload) VALUES (?)", [(f"p{n}",) for n in range(5)])
    pipeline = file_pipeline(
        tmp_path,
        f"""
sources:
  outbox: {{database: "sqlite:///{database}", table: outbox, cursor: seq, settle: 0 seconds, rows_per_batch: 2}}
sinks:
  - {{database: "sqlite:///{tmp_path}/out.db", table: copied}}
""",
    )

    def copied() -> list[tuple[int, str]]:
        with sqlite3.connect(tmp_path / "out.db") as connection:
            return connection.execute("SELECT seq, payload FROM copied ORDER BY rowid").fetchall()

    with start(pipeline, spark, once=True) as running:
        assert running.wait(120)
    assert copied() == [(n + 1, f"p{n}") for n in range(5)]
    with sqlite3.connect(database) as connection:
        connection.execute("INSERT INTO outbox (payload) VALUES ('p5')")
    with start(pipeline, spark, once=True) as running:
        assert running.wait(120)
    assert copied() == [(n + 1, f"p{n}") for n in range(6)]


def test_what_spark_refuses_names_the_step_and_what_fails_names_the_sink(
    spark: "SparkSession", bootstrap: str, tmp_path: Path
) -> None:
    text = """
sources:
  ticks: {rate: 1}
steps:
  - {name: wrong, filter: valu > 1}
sinks:
  - {console: 1}
"""
    with pytest.raises(PipelineError, match=r"p\.yaml:7:5: Spark does not accept 'wrong': \[UNRESOLVED_COLUMN"):
        start(file_pipeline(tmp_path, text), spark)
    produce(bootstrap, "strict", {"id": 1}, {})
    failing = file_pipeline(
        tmp_path,
        f"""
kafka: {{bootstrap.servers: "{bootstrap}"}}
sources:
  strict: {{topic: strict, parse: {{format: json, schema: id int not null, on_error: fail}}}}
sinks:
  - {{name: out, memory: strict_rows}}
""",
    )
    with pytest.raises(PipelineFailed, match=r"p/out: .*record strict-0@1: field id: missing"):
        start(failing, spark, once=True).wait(120)
    status = read_status(failing.checkpoint_folder)
    assert status is not None
    assert [each["state"] for each in status["queries"]] == ["failed"]


def test_a_secret_in_an_expression_or_a_setting_is_hidden_in_sparks_own_texts(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "Tr0ub.4 dor")
    pipeline = file_pipeline(
        tmp_path,
        """
spark: {spark.my.thing: "x ${secret:env:A_SECRET}", spark.other: y}
sources: {a: {rate: 1}}
steps: [{add: {tag: "concat(value, '${secret:env:A_SECRET}')"}}]
sinks: [console: 1]
""",
    )
    own: Any = sinks.prepared(spark, pipeline)
    rows: Any = own.sql("SELECT concat(id, 'Tr0ub.4 dor') AS tag FROM range(3)")
    assert "Tr0ub" not in rows._jdf.queryExecution().toString()
    assert rows.first().tag == "0Tr0ub.4 dor"
    hidden = spark_settings(pipeline)["spark.redaction.regex"]
    shown = {name: re.search(hidden.removeprefix("(?i)"), name) is None for name in pipeline.spark}
    assert shown == {"spark.my.thing": False, "spark.other": True}
    assert spark_settings(replace(pipeline, secrets=frozenset())) == pipeline.spark
