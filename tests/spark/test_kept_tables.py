"""Topics as tables, kept from batch to batch: what came since is read, and joins find what they always found."""

import json
import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import functions as f
from pyspark.sql.datasource import InputPartition

from moldau.spark.pipelines import kept_tables, loads, model, start, validate
from moldau.spark.pipelines.at_once import at_once
from moldau.spark.pipelines.kept_tables import KeptTable, KeptTables, TableOrigin
from moldau.spark.pipelines.lookups import stream_to_batch
from moldau.spark.pipelines.parse import Given
from moldau.spark.pipelines.sinks import prepared
from moldau.spark.pipelines.transforms import Size, apply
from moldau.spark.source import BatchReader
from tests.support.clients import create_topic, fresh, quiet, read_all, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

FILE = """
name: lookup
checkpoint: {folder}/checkpoint
kafka: {{bootstrap.servers: "{bootstrap}"}}
sources:
  orders: {{topic: {orders}, parse: {{format: json, schema: "id long, who long", on_error: drop}}}}
  people: {{topic: {people}, as_table: true, parse: {{format: json, schema: "who long, name string", on_error: drop}}}}
steps:
  - {{name: named, from: orders, join: people, on: who, how: left}}
sinks:
  - {{topic: {out}, from: named, name: out}}
"""


@pytest.fixture
def session(spark: "SparkSession") -> "SparkSession":
    return prepared(spark, model.Pipeline(name="x", sources={}, steps=(), sinks=()))


@pytest.fixture
def folds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A word for each time that tasks read into a table."""
    found: list[str] = []
    plain = KeptTable._fold

    def counted(self: KeptTable, *args: Any) -> None:
        found.append(self.origin.name)
        plain(self, *args)

    monkeypatch.setattr(KeptTable, "_fold", counted)
    return found


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were read in this process, batch by batch."""
    found: list[int] = []
    plain = BatchReader.read

    def counted(self: BatchReader, partition: InputPartition) -> Iterator[Any]:
        for batch in plain(self, partition):
            found.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(BatchReader, "read", counted)
    return found


def test_rows_are_those_of_a_whole_reading_and_only_what_is_new_is_read(
    session: "SparkSession",
    bootstrap: str,
    monkeypatch: pytest.MonkeyPatch,
    read_here: list[int],
    folds: list[str],
) -> None:
    monkeypatch.setattr(kept_tables, "_RECORDS_MAX", 12)
    topic = create_topic(bootstrap)
    how = loads(FILE.format(folder="x", bootstrap=bootstrap, orders="o", people=topic, out="out"), "x.yaml").sources[
        "people"
    ]
    assert isinstance(how, model.TopicSource)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    table = KeptTable(TableOrigin("people", options, how.parse, Given(), ("offset",)))
    random.seed(11)
    producer = Producer(quiet(bootstrap))
    expected: dict[bytes | None, tuple[int, str, int] | None] = {}
    offset = 0
    for number, count in enumerate([30, 3, 0, 4, 2, 40, 1]):
        for _ in range(count):
            key = random.choice([b"a", b"b", b"c", b"d", b"e", None])
            kind = random.choice(["good", "good", "bad", "gone"])
            value = {"good": json.dumps({"who": offset, "name": str(number)}).encode(), "bad": b"{", "gone": None}[kind]
            producer.produce(topic, value, key)
            expected[key] = (offset, str(number), offset) if kind == "good" else None
            offset += 1
        assert producer.flush(30) == 0
        read_here.clear()
        table.renew(session)
        found = sorted(tuple(row) for row in table.frame(session).collect())
        assert found == sorted(each for each in expected.values() if each is not None)
        wanted = session.createDataFrame([(each,) for each in range(0, offset, 3)], "who long")
        few = table.found(wanted, ["who"])
        assert few is not None
        assert sorted(tuple(row) for row in few.collect()) == [row for row in found if row[0] % 3 == 0]
        assert sum(read_here) == (count if count < 12 else 0), "small changes are read here, large ones by tasks"
    assert len(folds) == 2, "the first reading, and the large change"


def test_a_topic_made_anew_between_two_batches_is_another_table(session: "SparkSession", bootstrap: str) -> None:
    topic = create_topic(bootstrap)
    admin = AdminClient(quiet(bootstrap))

    def send(*names: str) -> None:
        producer = Producer(quiet(bootstrap))
        for name in names:
            producer.produce(topic, name.encode(), name.encode())
        assert producer.flush(30) == 0

    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    table = KeptTable(TableOrigin("people", options, None, Given(), ()))

    def held() -> list[str]:
        table.renew(session)
        return sorted(bytes(row.value).decode() for row in table.frame(session).collect())

    send("a", "b")
    assert held() == ["a", "b"]
    admin.delete_topics([topic])[topic].result(30)
    wait_for(lambda: topic not in admin.list_topics(timeout=10).topics, "it is gone")
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    send("c", "d", "e")
    assert held() == ["c", "d", "e"]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("string", ["a", "A", "", None]),
        ("binary", [b"a", b"\0", b"", None]),
        ("double", [0.0, -0.0, float("nan"), None]),
        ("decimal(9,2)", [Decimal("1.10"), Decimal("2.00"), None]),
        ("timestamp", [datetime(2026, 11, 18, 3, tzinfo=UTC), None]),
        ("string collate UTF8_LCASE", ["a", "A", "b", None]),
        ("struct<a: int>", [(1,), None]),
    ],
)
def test_what_a_table_here_finds_is_what_spark_joins(session: "SparkSession", kind: str, values: list[Any]) -> None:
    """Or it says that it does not know."""
    rows = session.createDataFrame([(each, str(each)) for each in values], f"who {kind}, name string")
    base = rows.withColumn("__key", f.lit(b"k"))
    here = None if "collate" in kind or "struct" in kind else base.toArrow()
    table = KeptTable(TableOrigin("people", {}, None, Given(), ()), _base=base, _here=here)
    left = session.createDataFrame([(each,) for each in values[::-1]], f"who {kind}")
    plain = sorted(map(str, left.join(rows, "who").collect()))
    assert plain
    found = table.found(left, ["who"])
    if found is not None:
        assert sorted(map(str, left.join(found, "who").collect())) == plain
    assert (found is not None) == (kind in ("string", "binary", "timestamp"))
    assert table.found(session.range(1), ["who"]) is None, "no such column"


def test_tables_are_read_anew_when_executors_took_them_along() -> None:
    tables = KeptTables({"people": KeptTable(TableOrigin("people", {}, None, Given(), ()), _base=object())})
    bases: list[Any] = []

    def work(error: Exception) -> None:
        bases.append(tables.tables["people"]._base)
        if bases[-1] is not None:
            raise error

    tables.outlast_loss(partial(work, RuntimeError("[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_1_2")))
    assert bases[1:] == [None]
    tables.tables["people"]._base = object()
    with pytest.raises(RuntimeError, match="the disk is full"):
        tables.outlast_loss(partial(work, RuntimeError("the disk is full")))


@pytest.mark.parametrize("on", [("who",), ("orders.who = people.who AND orders.id < people.age",)])
def test_a_lookup_finds_what_a_join_finds(session: "SparkSession", on: tuple[str, ...]) -> None:
    orders = session.createDataFrame([(1, 7), (2, 7), (3, 8), (4, None), (5, 9), (60, 7)], "id long, who long")
    people = session.createDataFrame(
        [(7, "a", 50), (7, "b", 1), (8, "c", 50), (None, "d", 50), (10, "e", 50)], "who long, name string, age long"
    )
    for how in ("inner", "left", "left_semi", "left_anti"):
        step = model.JoinStep(join="people", on=on, how=how, from_="orders")

        def rows(frame: "DataFrame") -> list[str]:
            return sorted(map(str, frame.collect()))

        inputs = {"orders": orders, "people": people}
        plain = apply(session, step, inputs, "")
        assert rows(plain), "or nothing is shown"
        for size in Size:
            found = apply(session, step, inputs, "", size)
            assert (found.columns, rows(found)) == (plain.columns, rows(plain)), (how, size)


def test_a_table_is_kept_where_nothing_behind_the_join_remembers() -> None:
    text = FILE.format(folder="x", bootstrap="h:1", orders="orders", people="people", out="out")

    def stream(text: str) -> str | None:
        graph = validate(loads(text, "x.yaml"))
        return stream_to_batch(graph, graph.sinks["out"])

    assert stream(text) == "orders"
    more = text.replace("sinks:", "  - {name: few, from: named, filter: id > 3}\nsinks:")
    assert stream(more.replace("from: named, name: out", "from: few, name: out")) == "orders"
    before = text.replace("steps:", "steps:\n  - {name: first, from: orders, dedup: [id], within_watermark: false}")
    assert stream(before.replace("from: orders, join", "from: first, join")) == "first", "what is before may remember"
    behind = text.replace("sinks:", "  - {name: once, from: named, dedup: [id], within_watermark: false}\nsinks:")
    assert stream(behind.replace("from: named, name: out", "from: once, name: out")) is None
    assert stream(text.replace("topic: out, from: named", "parquet: out, from: named")) is None
    assert stream(text.replace("from: named, name: out", "from: orders, name: out")) is None, "there is no table"


def test_a_pipeline_reads_its_table_whole_once(
    spark: "SparkSession", bootstrap: str, tmp_path: Path, read_here: list[int], folds: list[str]
) -> None:
    names = {each: fresh(each) for each in ("orders", "people", "out")}
    create_topic(bootstrap, names["people"])
    create_topic(bootstrap, names["orders"])
    text = FILE.format(folder=tmp_path, bootstrap=bootstrap, **names)
    producer = Producer(quiet(bootstrap))

    def send(topic: str, **row: Any) -> None:
        producer.produce(topic, json.dumps(row).encode(), str(row.get("who")).encode())
        assert producer.flush(30) == 0

    def written() -> list[tuple[int, str | None]]:
        rows = [json.loads(each.value() or b"") for each in read_all(bootstrap, names["out"])]
        return sorted((row["id"], row.get("name")) for row in rows)

    for number in range(200):
        row = {"who": number, "name": f"name {number}"}
        producer.produce(names["people"], json.dumps(row).encode(), str(number).encode())
    assert producer.flush(30) == 0
    send(names["orders"], id=0, who=7)
    with start(loads(text, "x.yaml", folder=str(tmp_path)), spark) as running:
        running.process_available()
        for number in (1, 2):
            send(names["people"], who=7, name=f"seventh {number}")
            send(names["orders"], id=number, who=7)
            while len(found := written()) <= number:  # the newest offsets are asked for now and then
                running.process_available()
    assert found == [(0, "name 7"), (1, "seventh 1"), (2, "seventh 2")]
    assert (len(folds), sum(read_here)) == (1, 2)


def test_works_are_done_at_once_and_all_of_them(spark: "SparkSession") -> None:
    meeting = threading.Barrier(3)
    done: list[int] = []

    def work(number: int) -> None:
        meeting.wait(60)
        if number == 1:
            raise ValueError("the second failed")
        done.append(number)

    with pytest.raises(ValueError, match="the second failed"):
        at_once(spark, [partial(work, number) for number in range(3)])
    assert sorted(done) == [0, 2]
