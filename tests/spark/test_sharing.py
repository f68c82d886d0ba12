"""One read for many sinks: which can share, and that each row is still written once."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from moldau.spark.pipelines import loads, start, validate
from moldau.spark.pipelines.sharing import Shared, left_over, shared_reads
from tests.spark.test_pipeline_run import produce
from tests.support.clients import create_topic, read_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = """
name: shared
share_reads: true
kafka: {{bootstrap.servers: "{bootstrap}"}}
checkpoint: {folder}/state
dead_letters: {topic}-dlt
sources:
  orders: {{topic: {topic}, parse: {{format: json, schema: "id bigint not null, amount double"}}}}
steps:
  - {{name: large, filter: amount > 10}}
sinks:
  - {{topic: {topic}-large, from: large, name: large}}
  - {{topic: {topic}-all, from: orders, name: all}}
  - {{delta: {folder}/table, from: orders, name: table}}
"""


def test_what_remembers_nothing_shares(tmp_path: Path) -> None:
    text = FILE.format(bootstrap="h:1", topic="orders", folder=tmp_path)
    pipeline = loads(text, "x.yaml")
    graph = validate(pipeline)
    shares = shared_reads(pipeline, graph)
    assert shares == [Shared("orders", ("large", "all", "table"))]
    assert left_over(graph, shares) == (set(), set())
    sql = loads(text.replace("filter: amount > 10", "sql: SELECT id FROM orders"), "x.yaml")
    assert shared_reads(sql, validate(sql)) == [Shared("orders", ("all", "table"))], "SQL may remember"
    apart = loads(text.replace("share_reads: true", "share_reads: false"), "x.yaml")
    assert shared_reads(apart, validate(apart)) == []


def test_three_sinks_and_dead_letters_of_one_query_each_row_once(
    spark: "SparkSession", bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last sink fails in the middle of a batch: after a restart the others do not write theirs again."""
    from deltalake import DeltaTable

    from moldau.spark.pipelines import tables
    from moldau.spark.pipelines.runner import PipelineFailed

    topic = create_topic(bootstrap)
    pipeline = loads(FILE.format(bootstrap=bootstrap, topic=topic, folder=tmp_path), "x.yaml", folder=str(tmp_path))
    produce(bootstrap, topic, {"id": 1, "amount": 5}, {"id": 2, "amount": 50}, b"{nonsense")
    append = tables.append_to_delta
    failures = [RuntimeError("the disk is full")]

    def fail_once(*args: object, **more: object) -> object:
        if failures:
            raise failures.pop()
        return append(*args, **more)  # type: ignore[arg-type]  # as they come

    monkeypatch.setattr(tables, "append_to_delta", fail_once)
    with pytest.raises(PipelineFailed, match="the disk is full"), start(pipeline, spark, once=True) as running:
        running.wait(120)
    with start(pipeline, spark, once=True) as running:
        assert list(running.queries) == ["shared-orders"]
        assert running.wait(120)
        assert [each.lag_records for each in running.progress()] == [0]
    found = {each: read_all(bootstrap, f"{topic}-{each}") for each in ("large", "all", "dlt")}
    assert [json.loads(message.value() or b"")["id"] for message in found["large"]] == [2]
    assert [json.loads(message.value() or b"")["id"] for message in found["all"]] == [1, 2]
    assert [message.value() for message in found["dlt"]] == [b"{nonsense"]
    assert sorted(DeltaTable(str(tmp_path / "table")).to_pyarrow_table()["id"].to_pylist()) == [1, 2]
