"""Tables and databases: a batch that is run again is not written again, new columns find their place."""

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from moldau.spark.pipelines import database_sink, tables
from moldau.spark.pipelines.iceberg_compaction import compact_iceberg

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime.datetime(2026, 11, 15, 12, tzinfo=datetime.UTC)


def test_delta_counts_each_batch_of_a_query_once(spark: "SparkSession", tmp_path: Path) -> None:
    from deltalake import DeltaTable

    path = str(tmp_path / "t")
    rows = spark.createDataFrame([(1, "a", NOON), (2, "b", NOON)], "id long, name string, at timestamp")
    assert tables.append_to_delta(rows, path, app_id="q", batch_id=0, partition_by=("name",)) == 2
    assert tables.append_to_delta(rows, path, app_id="q", batch_id=0, partition_by=("name",)) is None
    assert tables.append_to_delta(rows, path, app_id="q", batch_id=1, partition_by=("name",)) == 2
    # A new checkpoint is a new query: its first batch is not the old one's.
    assert tables.append_to_delta(rows, path, app_id="other", batch_id=0, partition_by=("name",)) == 2
    found = DeltaTable(path).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["name"]) for row in found) == [(1, "a")] * 3 + [(2, "b")] * 3
    assert {row["at"] for row in found} == {NOON}
    before = len(DeltaTable(path).file_uris())
    tables.compact_delta(path)
    assert len(DeltaTable(path).file_uris()) == 2 < before
    assert tables.append_to_delta(rows, path, app_id="q", batch_id=1) is None  # the note survives compaction
    assert (
        tables.append_to_delta(rows.limit(1), path, app_id="q", batch_id=2, partition_by=("name",), overwrite=True) == 1
    )
    assert DeltaTable(path).to_pyarrow_table().num_rows == 1


def test_delta_gains_columns_but_does_not_change_their_type(spark: "SparkSession", tmp_path: Path) -> None:
    from deltalake import DeltaTable

    path = str(tmp_path / "t")
    schema = "id long, _extra map<string,string>"
    first = spark.createDataFrame([(1, {}), (2, {"colour": "red"})], schema)
    tables.append_to_delta(first, path, app_id="q", batch_id=0)
    tables.append_to_delta(spark.createDataFrame([(3, {"size": "7"}), (4, {})], schema), path, app_id="q", batch_id=1)
    tables.append_to_delta(spark.createDataFrame([(5, {})], schema), path, app_id="q", batch_id=2)
    rows = {row["id"]: row for row in DeltaTable(path).to_pyarrow_table().to_pylist()}
    assert rows[2] == {"id": 2, "colour": "red", "size": None}
    assert rows[3] == {"id": 3, "colour": None, "size": "7"}
    assert rows[5] == {"id": 5, "colour": None, "size": None}
    with pytest.raises(tables.TableError, match=r"column 'id' is .*string.* in the pipeline and .*long.* in the table"):
        tables.append_to_delta(spark.createDataFrame([("x",)], "id string"), path, app_id="q", batch_id=3)


def test_iceberg_counts_each_batch_of_a_query_once_and_gains_columns(spark: "SparkSession", tmp_path: Path) -> None:
    catalog = tables.iceberg_catalog(str(tmp_path / "w"), {})
    rows = spark.createDataFrame([(1, NOON), (2, NOON)], "id long, at timestamp")
    assert tables.append_to_iceberg(rows, catalog, "a.b", app_id="q", batch_id=0) == 2
    assert tables.append_to_iceberg(rows, catalog, "a.b", app_id="q", batch_id=0) is None
    more = rows.selectExpr("*", "map('colour', 'red') AS _extra")
    assert tables.append_to_iceberg(more, catalog, "a.b", app_id="q", batch_id=1) == 2
    found = catalog.load_table("a.b").scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["colour"] or "") for row in found) == [(1, ""), (1, "red"), (2, ""), (2, "red")]
    assert {row["at"] for row in found} == {NOON}
    assert tables.append_to_iceberg(rows.limit(1), catalog, "a.b", app_id="q", batch_id=2, overwrite=True) == 1
    assert catalog.load_table("a.b").scan().to_arrow().num_rows == 1
    catalog.close()


def test_iceberg_is_partitioned_and_its_small_files_are_joined(spark: "SparkSession", tmp_path: Path) -> None:
    """Read by pyiceberg, and by DuckDB from the files that the table names."""
    import duckdb

    catalog = tables.iceberg_catalog(str(tmp_path / "w"), {})
    by: dict[str, Any] = {"app_id": "q", "partition_by": ("day", "shop")}
    schema = "id long, day date, shop string, at timestamp, _extra map<string,string>"
    days = [datetime.date(2026, 11, 14), datetime.date(2026, 11, 15), None]
    for number in range(4):
        extra = {"colour": "red"} if number == 2 else {}  # the third batch brings a column
        rows = [(number * 6 + n, days[n % 3], ("a b", "c=d/e")[n % 2], NOON, extra) for n in range(6)]
        frame = spark.createDataFrame(rows, schema).coalesce(1)
        assert tables.append_to_iceberg(frame, catalog, "a.b", batch_id=number, **by) == 6
        assert tables.append_to_iceberg(frame, catalog, "a.b", batch_id=number, **by) is None

    def read() -> tuple[int, list[tuple[Any, ...]]]:
        table = catalog.load_table("a.b")
        scan = table.scan()
        files = [task.file.file_path.removeprefix("file://") for task in scan.plan_files()]
        query = "SELECT id, day, shop, colour FROM read_parquet(?, union_by_name=true, hive_partitioning=false)"
        found = sorted(duckdb.execute(query, [files]).fetchall())
        told = scan.to_arrow().select(["id", "day", "shop", "colour"]).to_pylist()
        assert sorted(tuple(row.values()) for row in told) == found
        return len(files), found

    files, found = read()
    assert files == 24
    assert [row[0] for row in found] == list(range(24))
    assert [row[3] for row in found] == [None] * 12 + ["red"] * 6 + [None] * 6
    (task, *others) = catalog.load_table("a.b").scan("day = '2026-11-15' and shop = 'a b'").plan_files()
    assert (len(others), task.file.partition[1]) == (3, "a b"), "others are not looked at"
    offsets, notes = tables.iceberg_offsets(catalog.load_table("a.b")), catalog.load_table("a.b").properties
    assert compact_iceberg(catalog, "a.b") == 24
    assert read() == (6, found), "one file a partition, the same rows"
    assert compact_iceberg(catalog, "a.b") == 0
    table = catalog.load_table("a.b")
    assert tables.iceberg_offsets(table) == offsets
    assert table.properties == notes
    assert tables.append_to_iceberg(frame, catalog, "a.b", batch_id=3, **by) is None, "the note survives"
    assert tables.append_to_iceberg(frame, catalog, "a.b", batch_id=4, **by) == 6
    assert len(read()[1]) == 30
    with pytest.raises(tables.TableError, match="kept by day, shop, not by id"):
        tables.append_to_iceberg(frame, catalog, "a.b", app_id="q", batch_id=5, partition_by=("id",))
    with pytest.raises(tables.TableError, match="no column 'nobody' to partition"):
        tables.append_to_iceberg(frame, catalog, "a.c", app_id="q", batch_id=0, partition_by=("nobody",))
    catalog.close()


def test_a_database_is_upserted_and_deleted_from_by_key_each_batch_once(spark: "SparkSession", tmp_path: Path) -> None:
    from sqlalchemy import create_engine, text

    engine = create_engine(f"sqlite:///{tmp_path}/d.db")
    schema = "id long, name string, at timestamp, tags array<string>, gone boolean"

    def write(batch_id: int, *rows: tuple[object, ...]) -> int | None:
        frame = spark.createDataFrame(rows, schema).coalesce(1)
        return database_sink.write_batch(
            frame, engine, "people", app_id="q", batch_id=batch_id, key=("id",), delete_when="gone"
        )

    def names() -> dict[int, str]:
        with engine.connect() as connection:
            return {row[0]: row[1] for row in connection.execute(text("SELECT id, name FROM people"))}

    assert write(0, (1, "amy", NOON, ["x"], False), (2, "bob", NOON, None, None)) == 2
    assert names() == {1: "amy", 2: "bob"}
    # The last row of a key wins, within a batch too.
    assert write(1, (1, "ann", NOON, [], False), (1, "ada", NOON, [], False), (2, "bob", NOON, [], True)) == 3
    assert names() == {1: "ada"}
    assert write(1, (1, "again", NOON, [], False)) is None
    assert names() == {1: "ada"}
    with engine.connect() as connection:
        kept = connection.execute(text("SELECT at, tags FROM people")).one()
    assert (kept[0][:19], kept[1]) == ("2026-11-15 12:00:00", "[]")
    engine.dispose()


def test_a_batch_that_fails_leaves_nothing_in_the_database(spark: "SparkSession", tmp_path: Path) -> None:
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import IntegrityError

    engine = create_engine(f"sqlite:///{tmp_path}/d.db")
    good = spark.range(3000).coalesce(1)
    failing = good.selectExpr("CASE WHEN id < 2500 THEN id ELSE raise_error('no') END AS id")
    with pytest.raises(Exception, match="USER_RAISED_EXCEPTION"):
        database_sink.write_batch(failing, engine, "t", app_id="q", batch_id=0)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM t")).scalar() == 0
    assert database_sink.write_batch(good, engine, "t", app_id="q", batch_id=0) == 3000
    # A driver that was thought dead and comes back undoes its own work.
    progress = database_sink.progress_table(engine)
    connection = engine.connect()
    connection.execute(text("DELETE FROM t"))
    with pytest.raises(IntegrityError):
        database_sink.note(connection, progress, "q", 0)
    connection.close()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM t")).scalar() == 3000
    engine.dispose()


def test_a_table_of_a_topic_says_how_far_it_is_and_other_engines_read_it(spark: "SparkSession", tmp_path: Path) -> None:
    """DuckDB and pyarrow, which have nothing to do with what wrote the files."""
    import duckdb
    from deltalake import DeltaTable

    from moldau.spark.kinds_of_session import Notes
    from moldau.spark.pipelines import loads, model, sinks

    schema = "id long, _topic string, _partition int, _offset long"
    first = spark.createDataFrame([(1, "t", 0, 10), (2, "t", 1, 7)], schema)
    second = spark.createDataFrame([(3, "t", 0, 11), (4, "u", 0, 0)], schema)
    path, catalog = str(tmp_path / "d"), tables.iceberg_catalog(str(tmp_path / "w"), {})
    for number, rows in enumerate((first, second)):
        tables.append_to_delta(rows, path, app_id="q", batch_id=number)
        tables.append_to_delta(rows, path, app_id="q", batch_id=number)  # comes again after a crash
        tables.append_to_iceberg(rows, catalog, "a.b", app_id="q", batch_id=number)
    ends = {"t": {"0": 12, "1": 8}, "u": {"0": 1}}
    tables.compact_delta(path)
    assert tables.delta_offsets(path) == ends, "a compaction says nothing of offsets"
    iceberg = catalog.load_table("a.b")
    assert tables.iceberg_offsets(iceberg) == ends
    delta = DeltaTable(path).to_pyarrow_dataset()
    query = "SELECT _topic, count(*), sum(id) FROM delta GROUP BY _topic ORDER BY _topic"
    counted = duckdb.connect().register("delta", delta).execute(query).fetchall()
    assert counted == [("t", 3, 6), ("u", 1, 4)]
    assert sorted(delta.to_table()["id"].to_pylist()) == [1, 2, 3, 4]
    with iceberg.scan().to_duckdb("b") as connection:
        assert connection.execute("SELECT count(*), sum(id) FROM b").fetchall() == [(4, 10)]
    assert sorted(row.id for row in spark.read.parquet(*DeltaTable(path).file_uris()).collect()) == [1, 2, 3, 4]
    catalog.close()
    pipeline = loads("name: p\nsources: {a: {rate: 1}}\nsinks: [console: 1]", "p.yaml", folder=str(tmp_path))
    write = sinks._batch_writer(pipeline, model.TableSink(table="x"), Notes("nowhere"))
    with pytest.raises(tables.TableError, match=r"give the source `metadata: \[topic, partition, offset\]`"):
        write(spark.range(1), 0)
