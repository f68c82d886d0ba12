"""A database as a source: a SELECT as a table, or, with a cursor, its new rows as a stream.

The offset is the largest cursor read so far. A batch is the rows with a cursor in (start, end], in the cursor's order,
so a replay reads the same rows as long as rows do not change: what an outbox, an event table or a sequence promises.

The trap of every such poller: a transaction takes number 7, another takes 8 and commits first; who has read 8 never
sees 7. So a number counts only when it has been visible for `settle` seconds: transactions shorter than that cannot be
missed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from moldau.spark.pipelines.database_outage import Patience
from moldau.spark.pipelines.idle_pause import IdlePause
from moldau.spark.read_limits import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

FORMAT = "moldau-database"
_CHUNK_ROWS = 5_000
_SAMPLE_ROWS = 100


class DatabaseDataSource(DataSource):
    """`format("moldau-database")`: options url, query, table, cursor, settle and outage in seconds, rows of a batch."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        from sqlalchemy import select, text

        declared = _declared(self.options)
        # Limited by the database: many drivers fetch a whole result before they show its first row.
        query = select(text("*")).select_from(text(f"({self.options['query']}) q")).limit(_SAMPLE_ROWS)
        with _engine(self.options["url"]).connect() as connection:
            result = connection.execute(query)
            names = list(result.keys())
            sample = result.fetchall()
        return StructType(
            [
                StructField(name, declared.get(name) or _type_of([row[i] for row in sample]))
                for i, name in enumerate(names)
            ]
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        return _TableReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return _StreamReader(self.options, schema)


def _engine(url: str) -> Any:
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    return create_engine(url, poolclass=NullPool)


def _declared(options: Mapping[str, str]) -> dict[str, DataType]:
    """The types a table says its columns have: known even while it is empty. SQLite's mean nothing."""
    import sqlalchemy as sa
    from sqlalchemy.dialects.mysql import TINYINT

    engine = _engine(options["url"])
    schema, _, table = options.get("table", "").rpartition(".")
    if not table or engine.dialect.name == "sqlite":
        return {}
    found: dict[str, DataType] = {}
    for column in sa.inspect(engine).get_columns(table, schema=schema or None):
        match column["type"]:
            case sa.Boolean() | TINYINT(display_width=1):
                found[column["name"]] = BooleanType()
            case sa.Integer():
                found[column["name"]] = LongType()
            case sa.Float():
                found[column["name"]] = DoubleType()
            case sa.Numeric(precision=int() as precision, scale=int() as scale) if precision <= 38:
                found[column["name"]] = DecimalType(precision, scale)
            case sa.DateTime():
                found[column["name"]] = TimestampType()
            case sa.Date():
                found[column["name"]] = DateType()
            case sa.LargeBinary():
                found[column["name"]] = BinaryType()
            case sa.String() | sa.JSON() | sa.Uuid():
                found[column["name"]] = StringType()
            case _:
                pass
    return found


def _type_of(values: list[Any]) -> DataType:
    """Databases disagree about declared types (SQLite has none for expressions); the values do not."""
    import datetime
    from decimal import Decimal

    value = next((each for each in values if each is not None), None)
    match value:
        case bool():
            return BooleanType()
        case int():
            return LongType()
        case float():
            return DoubleType()
        case Decimal():
            return DecimalType(38, 10)
        case bytes() | memoryview():
            return BinaryType()
        case datetime.datetime():
            return TimestampType()
        case datetime.date():
            return DateType()
        case _:
            return StringType()


class _Range(InputPartition):
    def __init__(self, start: int | None, end: int | None) -> None:
        super().__init__((start, end))
        self.start, self.end = start, end


def _read(options: Mapping[str, str], schema: StructType, part: _Range) -> Iterator[Any]:
    """Arrow batches of the rows in a range, streamed from the database."""
    import pyarrow as pa
    from sqlalchemy import text

    from moldau.spark.arrow_types import arrow_schema_of

    cursor = options.get("cursor")
    query, values = f"SELECT * FROM ({options['query']}) q", {}  # noqa: S608 - the user's own SELECT
    if cursor and part.end is not None:
        start = part.start if part.start is not None else -(1 << 62)
        query += f" WHERE {cursor} > :start AND {cursor} <= :end ORDER BY {cursor}"
        values = {"start": start, "end": part.end}
    arrow = arrow_schema_of(schema)
    with _engine(options["url"]).connect() as connection:
        result = connection.execution_options(stream_results=True).execute(text(query), values)
        while rows := result.mappings().fetchmany(_CHUNK_ROWS):
            columns = [
                pa.array([_converted(row[field.name], field.type) for row in rows], field.type) for field in arrow
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=arrow)


def _converted(value: Any, arrow_type: Any) -> Any:
    """What drivers give differently: SQLite has no times and booleans, PostgreSQL has UUIDs and JSON as objects."""
    import datetime
    import json

    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_timestamp(arrow_type):
        moment = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
        return moment.replace(tzinfo=datetime.UTC) if moment.tzinfo is None else moment
    if pa.types.is_date(arrow_type) and isinstance(value, str):
        return datetime.date.fromisoformat(value)
    if pa.types.is_boolean(arrow_type):
        return bool(value)
    if pa.types.is_string(arrow_type) and not isinstance(value, str):
        return json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)
    if pa.types.is_binary(arrow_type) and isinstance(value, memoryview):
        return bytes(value)
    return value


class _TableReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options, self._schema = dict(options), schema

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, self._schema, _Range(None, None))


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are {"cursor": n}; -1 stands for "nothing yet"."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options, self._schema = dict(options), schema
        self._seen: deque[tuple[float, int]] = deque()
        self._last: int | None = None
        self._pause = IdlePause()
        self._patience = Patience(float(options.get("outage", "0")))

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"cursor": -1}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        # One look, one wait: what is committed by now, and what was begun before it.
        largest = self._largest()
        time.sleep(float(self._options.get("settle", "0")))
        self._last = largest

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        if self._last is None:
            self._pause.before_asking()
        settled = self._last if self._last is not None else self._settled()
        after = int(start["cursor"])
        if settled <= after:
            self._pause.nothing_new()
            return start
        return {"cursor": self._bounded(after, settled)}

    def _largest(self) -> int:
        from sqlalchemy import text

        query = f"SELECT max({self._options['cursor']}) FROM ({self._options['query']}) q"  # noqa: S608 - the user's own
        found = self._ask(text(query), {})
        if found is not None and int(found) != found:
            raise ValueError(
                f"the cursor {self._options['cursor']!r} is {found!r}: it has to be a whole number that only grows, "
                "such as an identity or a sequence"
            )
        return -1 if found is None else int(found)

    def _settled(self) -> int:
        """The largest cursor that was already visible `settle` seconds ago."""
        now, settle = time.monotonic(), float(self._options.get("settle", "0"))
        largest = self._largest()
        if not self._seen or self._seen[-1][1] != largest:
            self._seen.append((now, largest))
        while len(self._seen) > 1 and self._seen[1][0] <= now - settle:
            self._seen.popleft()
        moment, value = self._seen[0]
        return value if moment <= now - settle else -1

    def _bounded(self, after: int, end: int) -> int:
        """The cursor of the row that fills a batch, so that a long backlog comes in portions."""
        from sqlalchemy import text

        cursor, rows = self._options["cursor"], int(self._options.get("rows", "10000"))
        query = (
            f"SELECT max({cursor}) FROM (SELECT {cursor} FROM ({self._options['query']}) q "  # noqa: S608 - the user's own
            f"WHERE {cursor} > :after AND {cursor} <= :end ORDER BY {cursor} LIMIT {rows}) p"
        )
        found = self._ask(text(query), {"after": after, "end": end})
        return end if found is None else int(found)

    def _ask(self, query: Any, values: dict[str, int]) -> Any:
        engine = _engine(self._options["url"])

        def ask() -> Any:
            with engine.connect() as connection:
                return connection.execute(query, values).scalar()

        return self._patience.outlast(engine, ask)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [_Range(int(start["cursor"]), int(end["cursor"]))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """All rows of the range before the first is passed on: if the database goes away, they are asked for again."""
        assert isinstance(partition, _Range)
        patience = Patience(float(self._options.get("outage", "0")), has_answered=True)  # the driver has just asked it
        yield from patience.outlast(
            _engine(self._options["url"]), lambda: list(_read(self._options, self._schema, partition))
        )

    def commit(self, end: dict[str, int]) -> None:
        """Rows stay where they are; who wants them gone deletes what is older than the checkpoint."""
