"""What an idle query costs a database or an object store."""

import sqlite3
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql.streaming.datasource import ReadAllAvailable

from moldau.spark.pipelines.database_source import DatabaseDataSource
from moldau.spark.pipelines.delta_changes import DeltaChangesDataSource


def database(folder: Path) -> Any:
    with sqlite3.connect(folder / "shop.db") as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    options = {"url": f"sqlite:///{folder}/shop.db", "query": "SELECT * FROM orders", "cursor": "id"}

    def add() -> None:
        with sqlite3.connect(folder / "shop.db") as connection:
            connection.execute("INSERT INTO orders DEFAULT VALUES")

    return DatabaseDataSource(options), add


def changes(folder: Path) -> Any:
    def add() -> None:
        settings = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(str(folder), pa.table({"id": [1]}), mode="append", configuration=settings)

    add()
    return DeltaChangesDataSource({"path": str(folder), "start": "latest", "commits": "5"}), add


@pytest.mark.parametrize("kind", [database, changes])
def test_an_idle_query_asks_now_and_then_and_never_goes_by_an_old_answer(kind: Any, tmp_path: Path) -> None:
    source, add = kind(tmp_path)
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    began = time.monotonic()
    assert [reader.latestOffset(start, ReadAllAvailable()) for _ in range(4)] == [start] * 4
    assert time.monotonic() - began > 0.6
    add()
    assert reader.latestOffset(start, ReadAllAvailable()) != start
