"""Delta and Iceberg tables without a jar: executors write Parquet files, the driver commits them to the table's log.

A batch is one commit that carries the query's id and the batch's number (Delta: a `txn` action; Iceberg: a table
property and the snapshot's summary). A batch that is run again finds its number there and writes nothing: exactly-once.

Invariant: a file counts only when a commit names it; files of a batch that failed are litter, not data (Delta's vacuum
and Iceberg's orphan removal sweep them away).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from pyspark.sql import functions as f

from moldau.spark.pipelines.parse import EXTRA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FILE_ROWS_MAX = 5_000_000
_FOLDER = "by_"
_REPORT = "path string, size bigint, rows bigint, partition string"


class TableError(Exception):
    """A batch does not fit its table; says which column and what to do."""


@dataclass(slots=True, frozen=True)
class WrittenFile:
    path: str
    size_bytes: int
    rows: int
    partition: Mapping[str, str | None]


def write_files(rows: DataFrame, folder: str, partition_by: tuple[str, ...]) -> list[WrittenFile]:
    """Write the rows as Parquet below `folder`, on the executors; paths come back relative to it."""
    columns = tuple(partition_by)

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        reported = _write_dataset(folder, columns, first, batches)
        yield pa.RecordBatch.from_pylist(
            reported,
            pa.schema([("path", pa.string()), ("size", pa.int64()), ("rows", pa.int64()), ("partition", pa.string())]),
        )

    report = rows.mapInArrow(write, _REPORT).collect()
    return [WrittenFile(row.path, row.size, row["rows"], json.loads(row.partition)) for row in report]


def _write_dataset(folder: str, columns: tuple[str, ...], first: Any, rest: Iterator[Any]) -> list[dict[str, Any]]:
    import itertools
    import uuid

    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow import fs

    system, base = (
        fs.FileSystem.from_uri(folder) if "://" in folder else (fs.LocalFileSystem(), os.path.abspath(folder))
    )
    reader = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], rest))
    written: list[Any] = []
    partitioning = ds.partitioning(pa.schema([first.schema.field(name) for name in columns]), flavor="hive")
    ds.write_dataset(
        reader,
        base,
        filesystem=system,
        format="parquet",
        partitioning=partitioning if columns else None,
        basename_template=f"part-{uuid.uuid4()}-{{i}}.parquet",
        existing_data_behavior="overwrite_or_ignore",
        max_rows_per_file=_FILE_ROWS_MAX,
        max_rows_per_group=1_000_000,
        file_visitor=written.append,
    )
    found = []
    for file in written:
        path = os.path.relpath(file.path, base)
        values = {} if not columns else _partition_values(path)
        size = system.get_file_info(file.path).size
        found.append({"path": path, "size": size, "rows": file.metadata.num_rows, "partition": json.dumps(values)})
    return found


def _partition_values(path: str) -> dict[str, str | None]:
    from urllib.parse import unquote

    values: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, _, value = part.partition("=")
        values[name] = None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
    return values


def evolved(rows: DataFrame, known: Mapping[str, Any]) -> DataFrame:
    """The columns that `_extra` holds in this batch, as columns of their own: text, or of the type the table has."""
    if EXTRA not in rows.columns:
        return rows
    new = [row.key for row in rows.select(f.explode(f.map_keys(EXTRA)).alias("key")).distinct().collect()]
    taken = {name.lower() for name in rows.columns}
    # Columns that only the table has are filled too: a field may be missing in one batch and be there in the next.
    for name in sorted(each for each in new if each.lower() not in taken):
        column = f.col(EXTRA)[name]
        rows = rows.withColumn(name, column.try_cast(known[name]) if name in known else column)
    return rows.drop(EXTRA)


# ---- Delta ----------------------------------------------------------------------------------------------------------


def append_to_delta(
    rows: DataFrame,
    path: str,
    *,
    app_id: str,
    batch_id: int,
    partition_by: tuple[str, ...] = (),
    overwrite: bool = False,
    options: Mapping[str, str] | None = None,
) -> int | None:
    """Commit a batch to a Delta table; None if it was there already, else the number of rows."""
    from deltalake import CommitProperties, DeltaTable, Transaction
    from deltalake.transaction import AddAction, create_table_with_add_actions

    storage = dict(options or {}) or None
    table = DeltaTable(path, storage_options=storage) if DeltaTable.is_deltatable(path, storage) else None
    if table is not None:
        done = table.transaction_version(app_id)
        if done is not None and done >= batch_id:
            return None
    known = (
        {}
        if table is None
        else {each.name: str(each.type.type) for each in table.schema().fields if hasattr(each.type, "type")}
    )
    rows = evolved(rows, {name: _spark_name(kind) for name, kind in known.items()})
    schema = _delta_schema(rows)
    if table is not None:
        _add_missing_columns(table, schema)
    files = write_files(rows, path, partition_by)
    now_ms = time.time_ns() // 1_000_000
    actions: list[Any] = [
        AddAction(each.path, each.size_bytes, each.partition, now_ms, True, json.dumps({"numRecords": each.rows}))
        for each in files
    ]
    offsets = next_offsets(rows)
    told = {}
    if offsets:
        before = json.dumps(delta_offsets(path, options)) if table is not None else None
        told = {_OFFSETS: _joined(before, offsets)}
    properties = CommitProperties(app_transactions=[Transaction(app_id, batch_id)], custom_metadata=told or None)
    by = list(partition_by) or None
    if table is None:
        create_table_with_add_actions(
            path, schema, actions, mode="error", partition_by=by, storage_options=storage, commit_properties=properties
        )
    else:
        mode = "overwrite" if overwrite else "append"
        table.create_write_transaction(actions, mode, table.schema(), by, commit_properties=properties)
    return sum(each.rows for each in files)


PLACES = ("_topic", "_partition", "_offset")
_OFFSETS = "moldau.offsets"
_COMMITS_MAX = 200  # other commits, such as compactions, that may have come since


def require_places(rows: DataFrame) -> None:
    """A table of a topic knows of each row where it stood."""
    missing = [each for each in PLACES if each not in rows.columns]
    if missing:
        raise TableError(
            f"the rows have no {', '.join(missing)}: give the source `metadata: [topic, partition, offset]`, and keep "
            "the columns in the steps"
        )


def next_offsets(rows: DataFrame) -> dict[str, dict[str, int]]:
    """Behind the last row of each partition in a batch, as `startingOffsets` takes it; empty if rows have no place."""
    if any(each not in rows.columns for each in PLACES):
        return {}
    found: dict[str, dict[str, int]] = {}
    for row in rows.groupBy("_topic", "_partition").agg(f.max("_offset").alias("last")).collect():
        found.setdefault(row["_topic"], {})[str(row["_partition"])] = row["last"] + 1
    return found


def _joined(before: str | None, new: Mapping[str, Mapping[str, int]]) -> str:
    """All offsets so far, as text: a commit stands for the whole table."""
    known: dict[str, dict[str, int]] = json.loads(before) if before else {}
    for topic, partitions in new.items():
        known[topic] = known.get(topic, {}) | dict(partitions)
    return json.dumps(known, sort_keys=True)


def delta_offsets(path: str, options: Mapping[str, str] | None = None) -> dict[str, dict[str, int]]:
    """Where a Delta table of a topic ends: from the newest commit that says so."""
    from deltalake import DeltaTable

    for commit in DeltaTable(path, storage_options=dict(options or {}) or None).history(_COMMITS_MAX):
        if _OFFSETS in commit:
            found: dict[str, dict[str, int]] = json.loads(commit[_OFFSETS])
            return found
    return {}


def iceberg_offsets(table: Any) -> dict[str, dict[str, int]]:
    """Where an Iceberg table of a topic ends."""
    found: dict[str, dict[str, int]] = json.loads(table.properties.get(_OFFSETS, "{}"))
    return found


def _spark_name(delta: str) -> str:
    return {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}.get(delta, delta)


def _delta_schema(rows: DataFrame) -> Any:
    from deltalake import Schema
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructField, StructType

    nullable = StructType([StructField(field.name, field.dataType, True) for field in rows.schema.fields])
    return Schema.from_arrow(to_arrow_schema(nullable, timezone="UTC"))


def _add_missing_columns(table: Any, schema: Any) -> None:
    there = {field.name: field for field in table.schema().fields}
    new = [field for field in schema.fields if field.name not in there]
    for field in schema.fields:
        known = there.get(field.name)
        if known is not None and known.type != field.type:
            raise TableError(
                f"column {field.name!r} is {field.type} in the pipeline and {known.type} in the table; "
                "cast it in a step, or write to another table"
            )
    if new:
        table.alter.add_columns(new)


def compact_delta(path: str, options: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Join small files. Readers keep their snapshot; the old files stay until a vacuum."""
    from deltalake import DeltaTable

    found: dict[str, Any] = DeltaTable(path, storage_options=dict(options or {}) or None).optimize.compact()
    return found


# ---- Iceberg --------------------------------------------------------------------------------------------------------


def iceberg_catalog(warehouse: str, settings: Mapping[str, str]) -> Any:
    """The catalog: as told, or SQLite in the warehouse's folder."""
    from pyiceberg.catalog import load_catalog

    if settings:
        return load_catalog("moldau", **({"warehouse": warehouse} if warehouse else {}), **settings)
    parsed = urlparse(warehouse)
    folder = os.path.abspath(parsed.path if parsed.scheme else warehouse)
    os.makedirs(folder, exist_ok=True)
    return load_catalog("moldau", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")


def _partitioned(catalog: Any, table: Any, name: str, columns: tuple[str, ...]) -> Any:
    """The table, by these columns. One that is kept otherwise already is not changed."""
    if not columns:
        return table
    schema = table.schema()
    if missing := [each for each in columns if each not in schema.column_names]:
        raise TableError(f"no column {missing[0]!r} to partition {name} by; there are {', '.join(schema.column_names)}")
    there = tuple(schema.find_column_name(field.source_id) for field in table.spec().fields)
    if there == columns:
        return table
    if there or table.current_snapshot() is not None:
        kept = f"by {', '.join(map(str, there))}" if there else "without partitions"
        raise TableError(f"{name} is kept {kept}, not by {', '.join(columns)}: write to another table")
    with table.update_spec() as update:
        for each in columns:
            update.add_identity(each)
    return catalog.load_table(name)


def append_to_iceberg(
    rows: DataFrame,
    catalog: Any,
    name: str,
    *,
    app_id: str,
    batch_id: int,
    partition_by: tuple[str, ...] = (),
    overwrite: bool = False,
) -> int | None:
    """Commit a batch to an Iceberg table; None if it was there already, else the number of rows."""
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.expressions import AlwaysTrue
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructField, StructType

    marker = f"moldau.batch.{app_id}"
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        table = None
    if table is not None and int(table.properties.get(marker, "-1")) >= batch_id:
        return None
    rows = evolved(rows, {})
    nullable = StructType([StructField(field.name, field.dataType, True) for field in rows.schema.fields])
    schema = to_arrow_schema(nullable, timezone="UTC")
    if table is None:
        catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        table = catalog.create_table_if_not_exists(name, schema)
    elif set(schema.names) - {field.name for field in table.schema().fields}:
        with table.update_schema() as update:
            update.union_by_name(schema)
        table = catalog.load_table(name)
    table = _partitioned(catalog, table, name, partition_by)
    folder = f"{table.location()}/data"
    # Iceberg's files keep the columns their folders are named after: the folders are made by copies of them.
    copies = {f"{_FOLDER}{each}": f.col(f"`{each}`") for each in partition_by}
    plain = rows.select(*(f"`{each}`" for each in schema.names))
    files = write_files(plain.withColumns(copies) if copies else plain, folder, tuple(copies))
    with table.transaction() as transaction:
        if overwrite and table.current_snapshot() is not None:
            transaction.delete(AlwaysTrue())
        if files:
            paths = [f"{folder}/{each.path}" for each in files]
            transaction.add_files(paths, snapshot_properties={"moldau.query": app_id, "moldau.batch": str(batch_id)})
        offsets = next_offsets(rows)
        told = {_OFFSETS: _joined(table.properties.get(_OFFSETS), offsets)} if offsets else {}
        transaction.set_properties({marker: str(batch_id), **told})
    return sum(each.rows for each in files)
