"""Delta and Iceberg tables without a jar: executors write Parquet files, the driver commits them to the table's log.

A batch is one commit that carries the query's id and the batch's number (Delta: a `txn` action; Iceberg: a table
property and the snapshot's summary). A batch that is run again finds its number there and writes nothing: exactly-once.

Invariant: a file counts only when a commit names it; files of a batch that failed are litter, not data (Delta's vacuum
and Iceberg's orphan removal sweep them away).
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from pyspark.sql import functions as f
from pyspark.sql import types as t

from moldau.spark.pipelines.columns import KEEP_PLACES, PLACES
from moldau.spark.pipelines.evolution import evolved, folded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FILE_ROWS_MAX = 5_000_000
_PARTITIONS_MAX = 1 << 20  # of a batch; Arrow refuses more than 1,024 unless told
_log = logging.getLogger(__name__)
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
    try:
        ds.write_dataset(
            reader,
            base,
            filesystem=system,
            format="parquet",
            partitioning=partitioning if columns else None,
            basename_template=f"part-{uuid.uuid4()}-{{i}}.parquet",
            existing_data_behavior="overwrite_or_ignore",
            max_partitions=_PARTITIONS_MAX,
            max_rows_per_file=_FILE_ROWS_MAX,
            max_rows_per_group=1_000_000,
            file_visitor=written.append,
        )
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        told = f"a value of {' or '.join(columns)} is too long to name a folder"
        raise TableError(f"{told}: shorten it in a step, or partition by another column") from error
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
    from deltalake.exceptions import CommitFailedError, DeltaError
    from deltalake.transaction import AddAction, create_table_with_add_actions

    storage = dict(options or {}) or None
    table = DeltaTable(path, storage_options=storage) if DeltaTable.is_deltatable(path, storage) else None
    if table is not None:
        done = table.transaction_version(app_id)
        if done is not None and done >= batch_id:
            return None
    if table is None and batch_id > 0 and not overwrite:
        _log.warning("there is no table at %s: it is made anew, without the rows of batches before %d", path, batch_id)
    there = {} if table is None else _delta_types(table)
    rows = _widened(evolved(_of_types(rows, partition_by, there), there), there)
    if table is not None:
        _add_missing_columns(table, rows.schema)
    _require_names(rows, partition_by)
    files = write_files(rows, path, partition_by)
    now_ms = time.time_ns() // 1_000_000
    actions: list[Any] = [
        AddAction(each.path, each.size_bytes, each.partition, now_ms, True, json.dumps({"numRecords": each.rows}))
        for each in files
    ]
    offsets = next_offsets(rows)
    by = list(partition_by) or None
    for attempt in range(_COMMIT_ATTEMPTS):
        # With each commit, also of a batch without rows: whoever looks for them looks at the newest commits. Rows
        # without a place have none, and all commits would be read to find that out, with each batch.
        before = delta_offsets(path, options) if table is not None and _have_places(rows) else {}
        known = _joined(before, offsets)
        told = {_OFFSETS: json.dumps(known, sort_keys=True)} if known else None
        properties = CommitProperties(app_transactions=[Transaction(app_id, batch_id)], custom_metadata=told)
        try:
            if table is None:
                create_table_with_add_actions(
                    path,
                    _delta_schema(_loose(rows.schema)),
                    actions,
                    mode="error",
                    partition_by=by,
                    storage_options=storage,
                    commit_properties=properties,
                )
            else:
                mode = "overwrite" if overwrite else "append"
                table.create_write_transaction(actions, mode, table.schema(), by, commit_properties=properties)
            return sum(each.rows for each in files)
        except DeltaError as refusal:
            # Somebody else has made the table meanwhile, or committed: perhaps this very batch, by a driver that was
            # thought dead.
            is_new = table is None and DeltaTable.is_deltatable(path, storage)
            if not (is_new or isinstance(refusal, CommitFailedError)) or attempt + 1 == _COMMIT_ATTEMPTS:
                raise
        table = DeltaTable(path, storage_options=storage)
        done = table.transaction_version(app_id)
        if done is not None and done >= batch_id:
            return None
        _add_missing_columns(table, rows.schema)
    raise AssertionError("unreachable")


def _of_types(rows: DataFrame, partition_by: tuple[str, ...], there: Mapping[str, str | None]) -> DataFrame:
    """Without columns that are nothing but null, which have no type: they wait for values. Within others they are text,
    and folders are made by them nevertheless."""
    changed: dict[str, Any] = {}
    waiting: list[str] = []
    for field in rows.schema.fields:
        kind: Any = _typed(field.dataType)
        if kind == field.dataType:
            continue
        if isinstance(field.dataType, t.NullType):
            if field.name not in partition_by:
                waiting.append(f"`{field.name}`")
                continue
            kind = there.get(field.name) or kind
        changed[field.name] = f.col(f"`{field.name}`").cast(kind)
    rows = rows.withColumns(changed) if changed else rows
    return rows.select(*(f"`{each}`" for each in rows.columns if f"`{each}`" not in waiting)) if waiting else rows


def _typed(kind: t.DataType) -> t.DataType:
    match kind:
        case t.NullType():
            return t.StringType()
        case t.ArrayType() if (element := _typed(kind.elementType)) != kind.elementType:
            return t.ArrayType(element)
        case t.MapType():
            key, value = _typed(kind.keyType), _typed(kind.valueType)
            return kind if (key, value) == (kind.keyType, kind.valueType) else t.MapType(key, value)
        case t.StructType():
            fields = [t.StructField(each.name, _typed(each.dataType), each.nullable) for each in kind.fields]
            return (
                kind
                if [each.dataType for each in fields] == [each.dataType for each in kind.fields]
                else t.StructType(fields)
            )
        case _:
            return kind


_OFFSETS = "moldau.offsets"
_COMMITS_MAX = 200  # newest ones, that are looked at before all: compactions and the like may have come since ours


def require_places(rows: DataFrame) -> None:
    """A table of a topic knows of each row where it stood."""
    missing = [each for each in PLACES if each not in rows.columns]
    if missing:
        raise TableError(f"the rows have no {', '.join(missing)}: {KEEP_PLACES}")


def _have_places(rows: DataFrame) -> bool:
    return all(each in rows.columns for each in PLACES)


def next_offsets(rows: DataFrame) -> dict[str, dict[str, int]]:
    """Behind the last row of each partition in a batch, as `startingOffsets` takes it; empty if rows have no place."""
    if not _have_places(rows):
        return {}
    found: dict[str, dict[str, int]] = {}
    for row in rows.groupBy("_topic", "_partition").agg(f.max("_offset").alias("last")).collect():
        found.setdefault(row["_topic"], {})[str(row["_partition"])] = row["last"] + 1
    return found


def _joined(before: Mapping[str, Mapping[str, int]], new: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """All offsets so far: a commit stands for the whole table."""
    return {topic: {**before.get(topic, {}), **new.get(topic, {})} for topic in {*before, *new}}


def delta_offsets(path: str, options: Mapping[str, str] | None = None) -> dict[str, dict[str, int]]:
    """Where a Delta table of a topic ends: from the newest commit that says so."""
    from deltalake import DeltaTable

    table = DeltaTable(path, storage_options=dict(options or {}) or None)
    for most in (1, _COMMITS_MAX, None):
        for commit in table.history(most):
            if _OFFSETS in commit:
                found: dict[str, dict[str, int]] = json.loads(commit[_OFFSETS])
                return found
        if most is not None and table.version() < most:  # that was all of them
            break
    return {}


def iceberg_offsets(table: Any) -> dict[str, dict[str, int]]:
    """Where an Iceberg table of a topic ends."""
    found: dict[str, dict[str, int]] = json.loads(table.properties.get(_OFFSETS, "{}"))
    return found


def _delta_types(table: Any) -> dict[str, str | None]:
    """The table's columns by their types, in Spark's words; None if it is nested."""
    found: dict[str, str | None] = {}
    for field in table.schema().fields:
        kind = getattr(field.type, "type", None)
        is_nested = kind in ("struct", "array", "map")  # Delta has a `type` there, too
        found[field.name] = _spark_name(kind) if isinstance(kind, str) and not is_nested else None
    return found


def _spark_name(delta: str) -> str:
    return {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}.get(delta, delta)


_WHOLE = ("tinyint", "smallint", "int", "bigint")
_WIDER = {kind: {*_WHOLE[at + 1 :], *(("double",) if kind != "bigint" else ())} for at, kind in enumerate(_WHOLE)}
_WIDER["float"] = {"double"}


def _widened(rows: DataFrame, there: Mapping[str, str | None]) -> DataFrame:
    """Numbers as wide as the table has them, where nothing is lost by it."""
    wider = {
        field.name: f.col(f"`{field.name}`").cast(kind)
        for field in rows.schema.fields
        if (kind := there.get(field.name)) is not None
        and (kind in _WIDER.get(field.dataType.simpleString(), ()) or _holds(kind, field.dataType.simpleString()))
    }
    return rows.withColumns(wider) if wider else rows


_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def _holds(wide: str, narrow: str) -> bool:
    """Whether one decimal has room for all of another."""
    one, other = _DECIMAL.fullmatch(wide), _DECIMAL.fullmatch(narrow)
    if one is None or other is None or wide == narrow:
        return False
    digits, scale = int(one[1]), int(one[2])
    return scale >= int(other[2]) and digits - scale >= int(other[1]) - int(other[2])


def _require_names(rows: DataFrame, columns: tuple[str, ...]) -> None:
    """In Delta's log, a partition is text."""
    for field in rows.schema.fields:
        if field.name in columns and isinstance(field.dataType, t.BinaryType):
            raise TableError(f"column {field.name!r} is bytes, which name no partition: partition by another column")


def _delta_schema(schema: t.StructType) -> Any:
    from deltalake import Schema

    from moldau.spark.arrow_types import arrow_schema_of

    return Schema.from_arrow(arrow_schema_of(schema))


def _nullable(schema: t.StructType) -> t.StructType:
    return t.StructType([t.StructField(field.name, field.dataType, True) for field in schema.fields])


def _loose(kind: Any) -> Any:
    """The same type, with nulls wherever there may be some: `array(a, b)` of today may be a parsed list tomorrow."""
    match kind:
        case t.ArrayType():
            return t.ArrayType(_loose(kind.elementType))
        case t.MapType():
            return t.MapType(_loose(kind.keyType), _loose(kind.valueType))
        case t.StructType():
            return t.StructType([t.StructField(field.name, _loose(field.dataType)) for field in kind.fields])
        case _:
            return kind


def _add_missing_columns(table: Any, rows: t.StructType) -> None:
    """A table that was made otherwise may know of lists without nulls; then only such fit."""
    there = {field.name: field for field in table.schema().fields}
    new = []
    for loose, own in zip(_delta_schema(_loose(rows)).fields, _delta_schema(_nullable(rows)).fields, strict=True):
        known = there.get(loose.name)
        if known is None:
            new.append(loose)
            continue
        if known.type in (loose.type, own.type):
            continue
        fits = next((each for each in (loose, own) if _only_gains(known.type, each.type)), None)
        if fits is None:
            raise TableError(
                f"column {own.name!r} is {_shown(own.type)} in the pipeline and {_shown(known.type)} in the table; "
                "cast it in a step, or write to another table"
            )
        new.append(fits)
    if new:
        table.alter.add_columns(new)


def _only_gains(known: Any, wanted: Any) -> bool:
    """Whether a struct is the one the table has, with more fields; in lists and maps Delta lets nothing change."""
    if not all(hasattr(each, "fields") for each in (known, wanted)):
        return False
    fields = {each.name: each.type for each in wanted.fields}
    return all(
        each.name in fields and (each.type == fields[each.name] or _only_gains(each.type, fields[each.name]))
        for each in known.fields
    )


def _shown(kind: Any) -> str:
    return str(kind.to_json()).strip('"')


def compact_delta(path: str, options: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Join small files. Readers keep their snapshot; the old files stay until a vacuum."""
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError

    try:
        found: dict[str, Any] = DeltaTable(path, storage_options=dict(options or {}) or None).optimize.compact()
    except CommitFailedError as refusal:  # somebody else joins them
        _log.warning("the small files of %s stay for now: %s", path, refusal)
        return {}
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
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.expressions import AlwaysTrue

    from moldau.spark.arrow_types import arrow_schema_of

    marker = f"moldau.batch.{app_id}"
    table = _iceberg_table(catalog, name)
    if table is not None and _last_batch(table, marker) >= batch_id:
        return None
    there = {} if table is None else _iceberg_types(table)
    rows = _widened(evolved(_of_types(rows, partition_by, there), there), there)
    schema = arrow_schema_of(_loose(rows.schema))
    if table is None:
        catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        table = catalog.create_table_if_not_exists(name, schema)
    table = _with_columns(catalog, table, name, schema)
    table = _partitioned(catalog, table, name, partition_by)
    folder = f"{table.location()}/data"
    # Iceberg's files keep the columns their folders are named after: the folders are made by copies of them.
    begin = _FOLDER
    while {folded(f"{begin}{each}") for each in partition_by} & set(map(folded, schema.names)):
        begin += "_"  # records may have such a field
    copies = {f"{begin}{each}": f.col(f"`{each}`") for each in partition_by}
    plain = rows.select(*(f"`{each}`" for each in schema.names))
    files = write_files(plain.withColumns(copies) if copies else plain, folder, tuple(copies))
    paths = [f"{folder}/{each.path}" for each in files]
    offsets = next_offsets(rows)
    for attempt in range(_COMMIT_ATTEMPTS):
        # Somebody else's commit in between may be this very batch, by a driver that was thought dead. So pyiceberg is
        # not to try again by itself: we look first.
        table.metadata.properties[_RETRIES] = "0"
        known = _joined(iceberg_offsets(table), offsets)
        told = {_OFFSETS: json.dumps(known, sort_keys=True)} if known else {}
        try:
            with table.transaction() as transaction:
                if overwrite and table.current_snapshot() is not None:
                    transaction.delete(AlwaysTrue())
                if paths:
                    of = {"moldau.query": app_id, "moldau.batch": str(batch_id)}
                    transaction.add_files(paths, snapshot_properties=of)
                transaction.set_properties({marker: str(batch_id), **told})
            return sum(each.rows for each in files)
        except CommitFailedException:
            if attempt + 1 == _COMMIT_ATTEMPTS:
                raise
            time.sleep(0.1 * 2**attempt)
            table = catalog.load_table(name)
            if _last_batch(table, marker) >= batch_id:
                return None
    raise AssertionError("unreachable")


_COMMIT_ATTEMPTS = 6
_RETRIES = "commit.retry.num-retries"


def _iceberg_table(catalog: Any, name: str) -> Any:
    from pyiceberg.exceptions import NoSuchTableError

    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        return None


def _iceberg_types(table: Any) -> dict[str, str | None]:
    """As `_delta_types`."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyspark.sql.pandas.types import from_arrow_schema

    kinds = from_arrow_schema(schema_to_pyarrow(table.schema(), include_field_ids=False))
    nested = (t.StructType, t.ArrayType, t.MapType)
    return {
        each.name: None if isinstance(each.dataType, nested) else each.dataType.simpleString() for each in kinds.fields
    }


def _last_batch(table: Any, marker: str) -> int:
    return int(table.properties.get(marker, "-1"))


def _with_columns(catalog: Any, table: Any, name: str, schema: Any) -> Any:
    """The table with the columns of the rows, and as wide as they are. What is wider already stays so."""
    from pyiceberg.exceptions import ValidationError

    before = table.schema().schema_id
    try:
        with table.update_schema() as update:
            update.union_by_name(schema)
    except (ValidationError, ValueError) as refusal:
        raise TableError(
            f"the rows do not fit the table {name}: {refusal}; cast the column in a step, or write to another table"
        ) from refusal
    return table if table.schema().schema_id == before else catalog.load_table(name)
