"""Batches into a database: rows and the batch's number in one transaction, so each batch counts once.

`moldau_progress` in the same database holds the last batch of each query. A batch that is run again finds its number
and writes nothing; one that fails leaves nothing behind. With a key, rows are inserted or updated; a condition may
delete.

Invariant: of several rows with one key in a batch, the last one wins, as it would have one by one.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f
from pyspark.sql import types as t

from moldau.spark.pipelines.evolution import DELETE, evolved
from moldau.spark.pipelines.tables import TableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from sqlalchemy import Connection, Engine, Table

PROGRESS_TABLE = "moldau_progress"
_CHUNK_ROWS = 1_000
_KEY_TEXT_LENGTH = 255
_NAME_BYTES_MAX = 63  # PostgreSQL would cut a longer name; MariaDB refuses it
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@lru_cache(maxsize=16)
def engine_of(url: str) -> Engine:
    """One engine for each database and process: what writes batches may be pickled to another process."""
    from sqlalchemy import create_engine

    return create_engine(url)


def write_batch(
    rows: DataFrame,
    engine: Engine,
    table_name: str,
    *,
    app_id: str,
    batch_id: int,
    key: Sequence[str] = (),
    delete_when: str = "",
    replace: bool = False,
) -> int | None:
    """Write a batch; None if it was there already, else the number of rows that came."""
    progress = progress_table(engine)
    with engine.connect() as connection:
        if _last_batch(connection, progress, app_id) >= batch_id:
            return None
    rows = evolved(rows, _columns_there(engine, table_name), _NAME_BYTES_MAX)
    table = _table(engine, table_name, rows.schema, tuple(key))
    if delete_when:
        rows = rows.withColumn(DELETE, f.coalesce(f.expr(delete_when), f.lit(False)))
    written = 0
    with engine.begin() as connection:
        if engine.dialect.name in ("mysql", "mariadb"):  # the same, for tables that others made
            connection.exec_driver_sql("SET SESSION sql_mode = CONCAT(@@sql_mode, ',NO_AUTO_VALUE_ON_ZERO')")
        if replace:
            connection.execute(table.delete())
        for chunk in _chunks(_fitting(_local_rows(rows), table, _nested(rows))):
            _write_chunk(connection, table, chunk, tuple(key))
            written += len(chunk)
        note(connection, progress, app_id, batch_id)
    return written


def _local_rows(rows: DataFrame) -> Iterator[dict[str, Any]]:
    """Rows one partition at a time. Times travel as microseconds: Python's rows would have them in local time.

    What is nested comes as JSON text.
    """
    times = [field.name for field in rows.schema.fields if isinstance(field.dataType, t.TimestampType)]
    nested = _nested(rows)
    changed = {name: f.unix_micros(f"`{name}`") for name in times} | {name: f.to_json(f"`{name}`") for name in nested}
    plain = rows.withColumns(changed) if changed else rows  # Spark Connect takes no empty change
    for row in plain.toLocalIterator(prefetchPartitions=True):
        values = row.asDict()
        for name in times:
            if values[name] is not None:
                values[name] = _EPOCH + datetime.timedelta(microseconds=values[name])
        yield values


def _nested(rows: DataFrame) -> list[str]:
    kinds = t.StructType | t.ArrayType | t.MapType
    return [field.name for field in rows.schema.fields if isinstance(field.dataType, kinds)]


def _fitting(rows: Iterator[dict[str, Any]], table: Table, nested: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Values as the columns want them, which somebody else may have made."""
    import sqlalchemy as sa

    convert: dict[str, Callable[[Any], Any]] = {}
    for column in table.columns:
        kind = column.type
        if column.name in nested and isinstance(kind, sa.JSON | sa.ARRAY):
            convert[column.name] = json.loads
        elif isinstance(kind, sa.DateTime) and not kind.timezone:
            # Otherwise the database would translate it, to whatever time zone its session has.
            convert[column.name] = _in_utc
        elif isinstance(kind, sa.Uuid):
            convert[column.name] = _uuid
        elif isinstance(kind, sa.LargeBinary):
            convert[column.name] = bytes
    for row in rows:
        for name, converted in convert.items():
            if row.get(name) is not None:
                row[name] = converted(row[name])
        yield row


def _in_utc(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, datetime.datetime) else value


def _uuid(value: Any) -> Any:
    return uuid.UUID(value) if isinstance(value, str) else value


def _chunks(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    chunk: list[dict[str, Any]] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) >= _CHUNK_ROWS:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _write_chunk(connection: Connection, table: Table, chunk: list[dict[str, Any]], key: tuple[str, ...]) -> None:
    from sqlalchemy import and_, bindparam

    if not key:
        connection.execute(table.insert(), [{name: row[name] for name in row if name != DELETE} for row in chunk])
        return
    last = {tuple(row[name] for name in key): row for row in chunk}
    deleted = [values for values, row in last.items() if row.get(DELETE)]
    kept = [{name: row[name] for name in row if name != DELETE} for row in last.values() if not row.get(DELETE)]
    if deleted:
        condition = and_(*(table.c[name] == bindparam(f"k{index}") for index, name in enumerate(key)))
        connection.execute(
            table.delete().where(condition),
            [{f"k{index}": value for index, value in enumerate(values)} for values in deleted],
        )
    if kept:
        _upsert(connection, table, kept, key)


def _upsert(connection: Connection, table: Table, rows: list[dict[str, Any]], key: tuple[str, ...]) -> None:
    from sqlalchemy import and_, bindparam

    others = [name for name in rows[0] if name not in key]
    dialect = connection.dialect.name
    if dialect in ("sqlite", "postgresql"):
        from sqlalchemy.dialects import postgresql, sqlite

        insert: Any = (sqlite if dialect == "sqlite" else postgresql).insert(table)
        changed = {name: insert.excluded[name] for name in others}
        statement = (
            insert.on_conflict_do_update(index_elements=list(key), set_=changed)
            if changed
            else insert.on_conflict_do_nothing(index_elements=list(key))
        )
        connection.execute(statement, rows)
    elif dialect in ("mysql", "mariadb"):
        from sqlalchemy.dialects import mysql

        into = mysql.insert(table)
        connection.execute(into.on_duplicate_key_update({name: into.inserted[name] for name in others or key}), rows)
    else:  # any database can delete and insert, within this transaction
        condition = and_(*(table.c[name] == bindparam(f"k{index}") for index, name in enumerate(key)))
        connection.execute(
            table.delete().where(condition), [{f"k{i}": row[name] for i, name in enumerate(key)} for row in rows]
        )
        connection.execute(table.insert(), rows)


# ---- tables ---------------------------------------------------------------------------------------------------------


def progress_table(engine: Engine) -> Table:
    from sqlalchemy import BigInteger, Column, MetaData, String, Table

    table = Table(
        PROGRESS_TABLE,
        MetaData(),
        Column("query_id", String(_KEY_TEXT_LENGTH), primary_key=True),
        Column("batch_id", BigInteger, nullable=False),
    )
    _create(engine, table)
    return table


def _create(engine: Engine, table: Table) -> None:
    """Make the table. Two queries may find at the same time that it is missing."""
    from sqlalchemy import inspect
    from sqlalchemy.exc import DBAPIError

    try:
        table.create(engine, checkfirst=True)
    except DBAPIError:
        if not inspect(engine).has_table(table.name, schema=table.schema):
            raise


def _last_batch(connection: Connection, progress: Table, app_id: str) -> int:
    from sqlalchemy import select

    found = connection.execute(select(progress.c.batch_id).where(progress.c.query_id == app_id)).scalar()
    return -1 if found is None else int(found)


def note(connection: Connection, progress: Table, app_id: str, batch_id: int) -> None:
    """Raises, and so undoes the batch, if somebody else (a driver thought dead) has noted it meanwhile."""
    ours = (progress.c.query_id == app_id) & (progress.c.batch_id < batch_id)
    updated = connection.execute(progress.update().where(ours).values(batch_id=batch_id))
    if updated.rowcount == 0:
        connection.execute(progress.insert().values(query_id=app_id, batch_id=batch_id))


def _table(engine: Engine, name: str, schema: t.StructType, key: tuple[str, ...]) -> Table:
    """The table as the database has it; made, or given the columns it lacks, if need be."""
    from sqlalchemy import Column, MetaData, Table, inspect

    missing = [each for each in key if each not in schema.names]
    if missing:
        raise TableError(f"there is no column {missing[0]!r} for the key; columns are: {', '.join(schema.names)}")
    schema_name, _, table_name = name.rpartition(".")
    metadata = MetaData(schema=schema_name or None)
    if not inspect(engine).has_table(table_name, schema=schema_name or None):
        columns = [
            Column(
                field.name,
                _sql_type(field.dataType, field.name in key),
                primary_key=field.name in key,
                autoincrement=False,  # MariaDB would make up a number where a key is 0
            )
            for field in schema.fields
        ]
        _create(engine, Table(table_name, metadata, *columns, **_table_options(engine)))
        metadata = MetaData(schema=schema_name or None)
    table = Table(table_name, metadata, autoload_with=engine)
    new = [field for field in schema.fields if field.name not in table.c]
    if not new:
        return table
    with engine.begin() as connection:
        for field in new:
            kind = _sql_type(field.dataType, False).compile(engine.dialect)
            quoted = engine.dialect.identifier_preparer
            connection.exec_driver_sql(
                f"ALTER TABLE {quoted.format_table(table)} ADD COLUMN {quoted.quote(field.name)} {kind}"
            )
    return Table(table_name, MetaData(schema=schema_name or None), autoload_with=engine)


def _columns_there(engine: Engine, name: str) -> dict[str, str]:
    """By their types, in Spark's words. Whatever has no word there takes texts, if they fit."""
    import sqlalchemy as sa
    from sqlalchemy import inspect
    from sqlalchemy.exc import NoSuchTableError

    kinds = (
        (sa.BigInteger, "bigint"),
        (sa.SmallInteger, "smallint"),
        (sa.Integer, "int"),
        (sa.Float, "double"),
        (sa.Boolean, "boolean"),
        (sa.DateTime, "timestamp"),
        (sa.Date, "date"),
    )

    def kind_of(column: Any) -> str:
        return next((kind for known, kind in kinds if isinstance(column["type"], known)), "string")

    schema_name, _, table_name = name.rpartition(".")
    try:
        found = inspect(engine).get_columns(table_name, schema=schema_name or None)
        return {each["name"]: kind_of(each) for each in found}
    except NoSuchTableError:
        return {}


def _table_options(engine: Engine) -> dict[str, Any]:
    """MariaDB and MySQL: all of Unicode, and texts are equal only if they are the same, as they are to Spark."""
    dialect: Any = engine.dialect
    if dialect.name not in ("mysql", "mariadb"):
        return {}
    collation = "utf8mb4_nopad_bin" if dialect.is_mariadb else "utf8mb4_0900_bin"
    options = {"engine": "InnoDB", "charset": "utf8mb4", "collate": collation}
    return {f"{dialect.name}_{name}": value for name, value in options.items()}


def _sql_type(data_type: t.DataType, in_key: bool) -> Any:
    import sqlalchemy as sa
    from sqlalchemy.dialects import mysql

    # MariaDB and MySQL cut at 64 KB, and seconds at the point, unless told otherwise.
    both = ("mysql", "mariadb")
    simple: Mapping[type[t.DataType], Any] = {
        t.BooleanType: sa.Boolean(),
        t.ByteType: sa.SmallInteger(),
        t.ShortType: sa.SmallInteger(),
        t.IntegerType: sa.Integer(),
        t.LongType: sa.BigInteger(),
        t.FloatType: sa.Float(24),
        t.DoubleType: sa.Float(53),
        t.DateType: sa.Date(),
        t.TimestampType: sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), *both),
        t.TimestampNTZType: sa.DateTime().with_variant(mysql.DATETIME(fsp=6), *both),
        t.BinaryType: sa.LargeBinary().with_variant(mysql.LONGBLOB(), *both),
    }
    if isinstance(data_type, t.StringType):
        return sa.Text().with_variant(mysql.VARCHAR(_KEY_TEXT_LENGTH) if in_key else mysql.LONGTEXT(), *both)
    if isinstance(data_type, t.DecimalType):
        return sa.Numeric(data_type.precision, data_type.scale)
    return simple.get(type(data_type), sa.JSON())
