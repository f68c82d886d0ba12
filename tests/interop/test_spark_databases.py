"""PostgreSQL and MariaDB as sources and sinks of pipelines: types, upserts, deletes, late commits, batches once."""

import datetime
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import NullPool

from moldau.spark.pipelines import Pipeline, database_sink, loads, start
from moldau.spark.pipelines.database_source import DatabaseDataSource
from tests.interop.peers.databases import mariadb, postgresql
from tests.interop.peers.outage import Outage
from tests.support.clients import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)
NOON = datetime.datetime(2026, 11, 15, 12, 0, 0, 123456, tzinfo=datetime.UTC)
LONG_TEXT = "Vltava — Moldau 🌊 " * 5_000  # more than the 64 KB of a TEXT
SERVERS = {"postgresql": postgresql, "mariadb": mariadb}


@pytest.fixture(scope="module")
def spark() -> Iterator["SparkSession"]:
    from moldau.spark import session

    config = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "512m"}
    running = session("moldau-interop", master="local[2]", config=config)
    yield running
    running.stop()


@pytest.fixture(scope="module", params=sorted(SERVERS))
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with SERVERS[request.param]() as address:
        yield address


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    made = create_engine(url, poolclass=NullPool)
    yield made
    made.dispose()


def query(engine: Engine, sql: str) -> list[Any]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(sql))]


def execute(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def run_once(spark: "SparkSession", folder: Path, file: str) -> None:
    pipeline: Pipeline = loads(f"name: p\ncheckpoint: checkpoint\n{file}", "p.yaml", folder=str(folder))
    with start(pipeline, spark, once=True) as running:
        assert running.wait(200)


def test_every_type_survives_the_way_in_and_out(
    spark: "SparkSession", url: str, engine: Engine, tmp_path: Path
) -> None:
    rows = spark.createDataFrame(
        [
            (1, True, 7, 2**62, 1.5, 0.1, Decimal("12345678.90"), NOON.date(), NOON, b"\x00\xff", LONG_TEXT, ["a"]),
            (2, *[None] * 11),
        ],
        "id int, flag boolean, small smallint, big bigint, single float, dbl double, money decimal(12,2), day date,"
        "at timestamp, raw binary, long_text string, tags array<string>",
    )
    for batch in range(2):  # the second time the table is as the database describes it
        frame = rows.selectExpr(f"id + {2 * batch} AS id", *rows.columns[1:])
        assert database_sink.write_batch(frame, engine, "types", app_id="types", batch_id=batch, key=("id",)) == 2
    run_once(
        spark,
        tmp_path,
        f"""
sources:
  types: {{database: "{url}", table: types, cursor: id, settle: 0 seconds}}
steps:
  - add:
      at_micros: unix_micros(at)
      kinds: concat_ws(' ', typeof(flag), typeof(money), typeof(at), typeof(tags))
sinks:
  - {{parquet: out}}
""",
    )
    found = {row["id"]: row for row in spark.read.parquet(str(tmp_path / "out")).collect()}
    assert sorted(found) == [1, 2, 3, 4]
    assert found[1]["kinds"] == "boolean decimal(12,2) timestamp string"
    for number in (1, 3):
        row = found[number]
        assert (row.flag, row.small, row.big, row.single, row.dbl) == (True, 7, 2**62, 1.5, 0.1)
        assert (row.money, row.day, bytes(row.raw)) == (Decimal("12345678.90"), NOON.date(), b"\x00\xff")
        assert row.at_micros == round(NOON.timestamp() * 1_000_000)
        assert row.long_text == LONG_TEXT
        assert row.tags.replace(" ", "") == '["a"]'
    assert all(value is None for name, value in found[4].asDict().items() if name not in ("id", "kinds"))


def test_rows_are_updated_and_deleted_by_key_and_a_batch_counts_once(spark: "SparkSession", engine: Engine) -> None:
    def write(batch_id: int, *rows: tuple[object, ...]) -> int | None:
        frame = spark.createDataFrame(rows, "name string, n int, gone boolean").coalesce(1)
        return database_sink.write_batch(
            frame, engine, "people", app_id="people", batch_id=batch_id, key=("name",), delete_when="gone"
        )

    # To Spark these are three keys, and to many a database's default order one or two.
    assert write(0, ("a", 1, False), ("A", 2, False), ("a ", 3, None), ("b", 4, False)) == 4
    assert write(1, ("a", 5, False), ("a", 6, False), ("b", 0, True), ("c", 7, False), ("c", 0, True)) == 5
    assert write(1, ("a", 9, False)) is None
    assert sorted(query(engine, "SELECT name, n FROM people")) == [("A", 2), ("a", 6), ("a ", 3)]
    # A new field finds its column.
    frame = spark.createDataFrame(
        [("d", 8, False, {"colour": "red"})], "name string, n int, gone boolean, _extra map<string,string>"
    )
    database_sink.write_batch(frame, engine, "people", app_id="people", batch_id=2, key=("name",))
    assert query(engine, "SELECT n, colour FROM people WHERE name = 'd'") == [(8, "red")]


def test_a_batch_that_fails_leaves_nothing_and_one_of_two_drivers_wins(spark: "SparkSession", engine: Engine) -> None:
    good = spark.range(2500).coalesce(1)
    failing = good.selectExpr("CASE WHEN id < 2200 THEN id ELSE raise_error('no') END AS id")
    with pytest.raises(Exception, match="USER_RAISED_EXCEPTION"):
        database_sink.write_batch(failing, engine, "numbers", app_id="numbers", batch_id=0)
    assert query(engine, "SELECT count(*) FROM numbers") == [(0,)]
    assert database_sink.write_batch(good, engine, "numbers", app_id="numbers", batch_id=0) == 2500
    # Two drivers with the same batch: the second waits for the first, and then undoes its own work.
    progress = database_sink.progress_table(engine)
    caught: list[BaseException] = []

    def zombie() -> None:
        try:
            with engine.begin() as connection:
                connection.execute(text("INSERT INTO numbers VALUES (-1)"))
                database_sink.note(connection, progress, "numbers", 1)
        except IntegrityError as error:
            caught.append(error)

    with engine.begin() as connection:
        connection.execute(text("INSERT INTO numbers VALUES (-2)"))
        database_sink.note(connection, progress, "numbers", 1)
        other = threading.Thread(target=zombie)
        other.start()
    other.join(60)
    assert not other.is_alive()
    assert len(caught) == 1
    assert query(engine, "SELECT id FROM numbers WHERE id < 0") == [(-2,)]


def test_zero_is_a_key_like_any_other(spark: "SparkSession", engine: Engine) -> None:
    """MariaDB takes 0 for "the next number, please" where a column counts by itself."""
    number = "bigserial" if engine.dialect.name == "postgresql" else "bigint AUTO_INCREMENT"
    execute(engine, f"CREATE TABLE counting (id {number} PRIMARY KEY, n integer)")
    for batch, table in enumerate(("counting", "zeros")):
        frame = spark.createDataFrame([(0, 1), (7, 2), (0, 3)], "id long, n int").coalesce(1)
        database_sink.write_batch(frame, engine, table, app_id="zeros", batch_id=batch, key=("id",))
        assert sorted(query(engine, f"SELECT id, n FROM {table}")) == [(0, 3), (7, 2)]


def test_tables_others_made_get_what_their_columns_want(
    spark: "SparkSession", url: str, engine: Engine, tmp_path: Path
) -> None:
    """Times without zone mean UTC, whatever zone the server has; JSON, UUIDs and arrays are themselves."""
    own = (
        "CREATE TABLE theirs (id uuid PRIMARY KEY, at timestamp, doc jsonb, tags text[], count integer)"
        if engine.dialect.name == "postgresql"
        else "CREATE TABLE theirs (id char(36) PRIMARY KEY, at datetime(6), doc json, tags text, count integer)"
    )
    execute(engine, own)
    frame = spark.createDataFrame(
        [("6f1b0d4c-8a52-4a43-9d0e-3c1f5a1e7b11", NOON, {"k": 1}, ["x", "y"], 3)],
        "id string, at timestamp, doc map<string,int>, tags array<string>, count int",
    )
    for batch in range(2):
        database_sink.write_batch(frame, engine, "theirs", app_id="theirs", batch_id=batch, key=("id",))
    ((at, count),) = query(engine, "SELECT at, count FROM theirs")
    assert (at, count) == (NOON.replace(tzinfo=None), 3)
    run_once(
        spark,
        tmp_path,
        f"""
sources:
  theirs:
    database: "{url}"
    query: SELECT 1 AS n, id, at, doc, tags, count FROM theirs
    cursor: n
    settle: 0 seconds
sinks:
  - {{parquet: out}}
""",
    )
    (row,) = spark.read.parquet(str(tmp_path / "out")).selectExpr("*", "unix_micros(at) AS micros").collect()
    assert (row.id, row["count"]) == ("6f1b0d4c-8a52-4a43-9d0e-3c1f5a1e7b11", 3)
    assert row.micros == round(NOON.timestamp() * 1_000_000)
    assert (row.doc.replace(" ", ""), row.tags.replace(" ", "")) == ('{"k":1}', '["x","y"]')


def test_a_number_that_commits_late_is_not_missed(url: str, engine: Engine) -> None:
    """The trap of pollers: number 1 is taken first and becomes visible when number 4 has been seen."""
    number = "serial" if engine.dialect.name == "postgresql" else "integer AUTO_INCREMENT"
    execute(engine, f"CREATE TABLE outbox (seq {number} PRIMARY KEY, payload text)")
    source = DatabaseDataSource(
        {"url": url, "query": "SELECT * FROM outbox", "table": "outbox", "cursor": "seq", "settle": "0.5", "rows": "3"}
    )
    schema = source.schema()
    assert schema.simpleString() == "struct<seq:bigint,payload:string>"  # known although there is no row yet
    reader = source.streamReader(schema)
    offset = reader.initialOffset()

    def latest() -> dict[str, int]:
        found: dict[str, int] = reader.latestOffset(offset, ReadAllAvailable())
        return found

    with engine.begin() as slow:
        slow.execute(text("INSERT INTO outbox (payload) VALUES ('slow')"))
        execute(engine, *["INSERT INTO outbox (payload) VALUES ('quick')"] * 3)
        assert latest() == offset
    found: list[Any] = []
    while len(found) < 4:
        end = latest()
        for part in reader.partitions(offset, end) if end != offset else ():
            batches: list[Any] = list(reader.read(part))
            assert sum(batch.num_rows for batch in batches) <= 3
            found += [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
        offset = end
    assert found == [(1, "slow"), (2, "quick"), (3, "quick"), (4, "quick")]


def test_a_database_that_goes_away_is_waited_for(
    spark: "SparkSession", url: str, engine: Engine, tmp_path: Path
) -> None:
    """In the midst of a stream from one of its tables to another: no row is lost, and none comes twice."""
    execute(engine, "CREATE TABLE events (id BIGINT PRIMARY KEY, name VARCHAR(20))")

    def insert(first: int, count: int) -> None:
        rows = ", ".join(f"({number}, 'number {number}')" for number in range(first, first + count))
        execute(engine, f"INSERT INTO events VALUES {rows}")

    def wait_for_rows(count: int) -> None:
        wait_for(lambda: query(engine, "SELECT count(*) FROM copied") == [(count,)], f"{count} rows", 90)

    def through(way: Outage) -> str:
        return make_url(url).set(port=way.port).render_as_string(hide_password=False)

    insert(1, 100)
    execute(engine, "CREATE TABLE copied (id BIGINT, name VARCHAR(60))")
    port = make_url(url).port or 0
    with Outage(port) as way_in, Outage(port) as way_out:
        pipeline = loads(
            f"""
name: outage
checkpoint: checkpoint
sources:
  events: {{database: "{through(way_in)}", table: events, cursor: id, settle: 0 seconds, rows_per_batch: 30}}
sinks:
  - {{database: "{through(way_out)}", table: copied}}
""",
            "p.yaml",
            folder=str(tmp_path),
        )
        with start(pipeline, spark) as running:
            wait_for_rows(100)
            for first, way in ((101, way_in), (201, way_out)):
                way.cut()
                insert(first, 100)
                running.wait(3)
                way.heal()
                wait_for_rows(first + 99)
    assert query(engine, "SELECT id FROM copied ORDER BY id") == [(number,) for number in range(1, 301)]
    execute(engine, "DROP TABLE events", "DROP TABLE copied")
