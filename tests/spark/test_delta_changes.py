"""The change feed of a Delta table as a source: every change once, in the order of commits, also over a restart."""

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.streaming.datasource import ReadAllAvailable

from moldau.spark.pipelines import PipelineError, loads, start, validate
from moldau.spark.pipelines.delta_changes import DeltaChangesDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from moldau.spark.pipelines.model import Pipeline

pytestmark = pytest.mark.timeout(180)
_FEED = {"delta.enableChangeDataFeed": "true"}


def _pipeline(folder: Path, more: str = "") -> "Pipeline":
    text = f"""
name: changes
checkpoint: checkpoint
sources:
  people: {{delta: people, changes: true{more}}}
steps:
  - {{select: [id, name, _change_type AS what, _commit_version AS version, _commit_timestamp AS at]}}
sinks:
  - {{database: "sqlite:///{folder}/out.db", table: seen}}
"""
    return loads(text, "p.yaml", folder=str(folder))


def _seen(folder: Path) -> list[tuple[Any, ...]]:
    with sqlite3.connect(folder / "out.db") as connection:
        return connection.execute("SELECT version, what, id, name FROM seen ORDER BY version, what DESC").fetchall()


def test_inserts_updates_and_deletes_come_once_each(spark: "SparkSession", tmp_path: Path) -> None:
    table = str(tmp_path / "people")
    write_deltalake(table, pa.table({"id": [1, 2], "name": ["amy", "bob"]}), configuration=_FEED)
    write_deltalake(table, pa.table({"id": [3], "name": ["cyd"]}), mode="append")
    with start(_pipeline(tmp_path, ", commits_per_batch: 1"), spark) as running:
        running.process_available()
    first = [(0, "insert", 1, "amy"), (0, "insert", 2, "bob"), (1, "insert", 3, "cyd")]
    assert sorted(_seen(tmp_path)) == first
    DeltaTable(table).update(updates={"name": "'ben'"}, predicate="id = 2")
    DeltaTable(table).delete("id = 1")
    assert DeltaTable(table).optimize.compact()["numFilesRemoved"] > 1  # changes nothing
    write_deltalake(table, pa.table({"id": [4], "name": ["dan"], "age": [7]}), mode="append", schema_mode="merge")
    with start(_pipeline(tmp_path, ", commits_per_batch: 1"), spark) as running:
        running.process_available()
    assert _seen(tmp_path)[3:] == [
        (2, "update_preimage", 2, "bob"),
        (2, "update_postimage", 2, "ben"),
        (3, "delete", 1, "amy"),
        (5, "insert", 4, "dan"),
    ]


def test_a_feed_may_begin_at_a_version_or_now(tmp_path: Path) -> None:
    table = str(tmp_path / "people")
    for number in range(3):
        person = pa.table({"id": [number], "name": ["x"]})
        write_deltalake(table, person, mode="append", configuration=_FEED if number == 0 else None)
    source = DeltaChangesDataSource({"path": table, "start": "1", "commits": "1"})
    reader = source.streamReader(source.schema())
    begun = reader.initialOffset()
    (part,) = reader.partitions(begun, reader.latestOffset(begun, ReadAllAvailable()))
    batches: list[Any] = list(reader.read(part))
    assert [batch.to_pydict()["id"] for batch in batches] == [[1]]
    assert reader.latestOffset({"version": 2}, ReadAllAvailable()) == {"version": 2}
    now = DeltaChangesDataSource({"path": table, "start": "latest", "commits": "1"})
    assert now.streamReader(source.schema()).initialOffset() == {"version": 2}
    lost = reader.partitions({"version": 2}, {"version": 7})[0]
    with pytest.raises(ValueError, match=r"version 3 of .* cannot be read .* `start:` names a later version"):
        list(reader.read(lost))


def test_a_table_that_keeps_no_changes_says_what_to_do(tmp_path: Path) -> None:
    table = str(tmp_path / "people")
    write_deltalake(table, pa.table({"id": [1], "name": ["amy"]}))
    with pytest.raises(ValueError, match=r"keeps no changes: set its property delta.enableChangeDataFeed=true"):
        DeltaChangesDataSource({"path": table}).schema()


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("changes: true, start: soon", "'soon' is no version of a table"),
        ("watermark: {column: at, delay: 1 hour}", "a table has no watermark"),
    ],
)
def test_what_cannot_be_is_told_before_spark_starts(tmp_path: Path, more: str, problem: str) -> None:
    text = f"name: p\ncheckpoint: c\nsources:\n  a: {{delta: b, {more}}}\nsinks:\n  - {{console: 3}}\n"
    with pytest.raises(PipelineError, match=problem):
        validate(loads(text, "p.yaml", folder=str(tmp_path)))
