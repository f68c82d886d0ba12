"""Topics as tables beside a stream, kept from batch to batch: what is read and parsed is what came since.

Whoever writes the batches of a query keeps, for each table,

    base    the parsed rows of the newest records up to some offsets: on the executors, in memory and on their disks
    newer   the parsed rows of the newest records since: here, at most so many
    here    base and newer together, if that is not much: small batches find their rows without a look at the base

The table as of a batch is the base without the keys that came since, and `newer`. When that has grown, or a change is
too large to be read here, tasks read it and it becomes part of the base.

Invariant: rows are those that reading everything up to the end offsets of the moment would leave. A key whose newest
record is a tombstone, or cannot be parsed, has no row. Nothing survives the process: a restart reads the topic anew.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f
from pyspark.sql import types as t

from moldau.spark.broker_outage import BrokerPatience
from moldau.spark.pipelines import model, parse, sources, topic_table
from moldau.spark.pipelines.topic_table import NewestRows, Reached
from moldau.spark.ranges import RangeToRead

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from moldau.spark.source import BatchReader

_KEY = "__key"
_RECORDS_MAX = 10_000  # read here at a time, and kept here
_BYTES_MAX = 32 << 20
_HERE_BYTES_MAX = 128 << 20
_FOUND_BYTES_MAX = 8 << 20
_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
_log = logging.getLogger(__name__)
# Types in which Arrow and Spark agree about what is equal. Of floating numbers they do not: zero has two signs.
_COMPARABLE = (
    t.StringType,
    t.BinaryType,
    t.BooleanType,
    t.ByteType,
    t.ShortType,
    t.IntegerType,
    t.LongType,
    t.DateType,
    t.TimestampType,
)
_IN_ARROW = (*_COMPARABLE, t.FloatType, t.DoubleType, t.DecimalType, t.TimestampNTZType)


@dataclass(slots=True, frozen=True)
class TableOrigin:
    """What a table is made of; can be pickled."""

    name: str
    options: Mapping[str, str]  # of the source
    how: model.Parse | None
    given: parse.Given
    metadata: tuple[str, ...]
    until: str = ""

    def rows(self, records: DataFrame) -> DataFrame:
        """The table's rows of these records, and their keys."""
        if self.until:
            records = records.where(f.col("timestamp") < sources.moment(self.until))
        if self.how is None:
            return records.withColumn(_KEY, f.col("key"))
        frame = parse.parsed(records, self.how, self.given)
        if self.how.on_error == "fail":
            frame = parse.failing(frame, self.how, self.given)
        return parse.good(frame, self.metadata, key_as=_KEY)


class _TooMuch(Exception):
    """More than is to be kept here."""


@dataclass(slots=True)
class _Newer:
    """What came since the base."""

    keys: Any = None  # Arrow's; None as long as nothing came
    rows: Any = None  # a table of Arrow's

    def add(self, keys: Any, rows: Any) -> None:
        self.keys = _joined_keys(self.keys, keys)
        self.rows = rows if self.rows is None else _changed(self.rows, keys, rows)

    @property
    def is_too_much(self) -> bool:
        return self.keys is not None and (
            len(self.keys) > _RECORDS_MAX or self.keys.nbytes + self.rows.nbytes > _BYTES_MAX
        )


@dataclass(slots=True)
class KeptTable:
    """One table. `renew` brings it up to date; `frame` is what it holds then."""

    origin: TableOrigin
    _session: str = ""
    _base: Any = None  # None as long as nothing was read
    _base_done: Reached = field(default_factory=Reached)
    _done: Reached = field(default_factory=Reached)  # with what came since
    _newer: _Newer = field(default_factory=_Newer)
    _here: Any = None

    def renew(self, spark: SparkSession) -> None:
        session = str(getattr(spark, "session_id", ""))  # behind Connect, frames of two sessions do not mix
        if session != self._session:
            self.forget()
            self._session = session
        reader = self._reader()
        outage_s = reader.options.outage_ms / 1000
        ranges = BrokerPatience(outage_s, first_s=outage_s).outlast(reader.ranges)
        if self._done.is_past(ranges):
            self.forget()
        if self._base is None or not self._read_here(spark, reader, ranges):
            self._fold(spark, ranges)

    def frame(self, spark: SparkSession) -> DataFrame:
        rows: DataFrame = self._base
        if self._newer.keys is not None:
            import pyarrow as pa

            keys = f.broadcast(spark.createDataFrame(pa.table({"key": self._newer.keys})))
            untouched = rows.join(keys, rows[_KEY].eqNullSafe(keys["key"]), "left_anti")
            rows = untouched.unionByName(spark.createDataFrame(self._newer.rows, schema=rows.schema))
        return rows.drop(_KEY)

    def found(self, left: DataFrame, on: Sequence[str]) -> DataFrame | None:
        """The rows, and perhaps others, that have these values of `left`; None if only Spark can tell."""
        import pyarrow.compute as pc

        if self._here is None or not _comparable(left.schema, self._base.schema, on):
            return None
        wanted, mask = left.select(*on).toArrow(), None
        for name in on:
            own = pc.is_in(self._here[name], value_set=pc.unique(wanted[name]))
            mask = own if mask is None else pc.and_(mask, own)
        rows = self._here.filter(mask)
        if rows.nbytes > _FOUND_BYTES_MAX:
            return None
        return left.sparkSession.createDataFrame(rows, schema=self._base.schema).drop(_KEY)

    def forget(self) -> None:
        self._base, self._here, self._newer = None, None, _Newer()
        self._base_done, self._done = Reached(), Reached()

    def _reader(self) -> BatchReader:
        from moldau.spark.options import source_schema
        from moldau.spark.source import make_batch_reader

        options = dict(self.origin.options)
        return make_batch_reader(options, source_schema(options))

    def _read_here(self, spark: SparkSession, reader: BatchReader, ranges: list[RangeToRead]) -> bool:
        """Bring `newer` up to date; False if that is nothing for here."""
        import pyarrow as pa

        unread = [left for left in map(self._done.from_there, ranges) if left.start < left.end]
        if not unread:
            return True
        if sum(each.end - each.start for each in unread) > _RECORDS_MAX or not _in_arrow(self._base.schema):
            return False
        size = 0

        def read_range(work: RangeToRead) -> Iterator[Any]:
            from moldau.spark.source import RangePartition

            nonlocal size
            for batch in reader.read(RangePartition(work)):
                size += batch.nbytes
                if size > _BYTES_MAX:
                    raise _TooMuch
                yield batch

        try:
            batches = list(NewestRows().updated(unread, read_range))
        except _TooMuch:
            return False
        if batches:
            records = pa.Table.from_batches(batches).combine_chunks()
            keys, rows = records["key"].combine_chunks(), self.origin.rows(spark.createDataFrame(records)).toArrow()
            self._newer.add(keys, rows)
            if self._here is not None:
                self._here = _changed(self._here, keys, rows)
        for each in ranges:
            self._done.note(each)
        return not self._newer.is_too_much

    def _fold(self, spark: SparkSession, ranges: list[RangeToRead]) -> None:
        """Let tasks read what the base does not have, and make it part of the base."""
        since = [each for each in map(self._base_done.from_there, ranges) if each.start < each.end]
        told = json.dumps([[each.topic, each.partition, each.start, each.end] for each in since])
        reader = spark.read.format(topic_table.FORMAT).options(**self.origin.options)
        records = reader.option(topic_table.RANGES, told).load()
        if self._base is None:
            base = self.origin.rows(records)
        else:
            records = records.persist()
            keys = records.select("key")
            untouched = self._base.join(keys, self._base[_KEY].eqNullSafe(keys["key"]), "left_anti")
            base = untouched.unionByName(self.origin.rows(records))
        # Not `persist`: what a base was made of would be part of it for ever, and be planned again with each batch.
        base = base.localCheckpoint()
        if self._base is not None:
            records.unpersist()
        self.forget()
        self._base = base
        for each in ranges:
            self._base_done.note(each)
            self._done.note(each)
        if _in_arrow(base.schema) and _size(base) <= _HERE_BYTES_MAX:
            self._here = base.toArrow()
        _log.info("%s: %d records read into the table", self.origin.name, sum(each.end - each.start for each in since))


@dataclass(slots=True)
class KeptTables:
    """The tables beside one query."""

    tables: dict[str, KeptTable]

    @classmethod
    def opened(cls, spark: SparkSession, pipeline: model.Pipeline, names: Iterable[str]) -> KeptTables:
        """Those of these sources that are topics as tables. Nothing is read yet but what a schema may need."""
        found = {}
        for name in names:
            source = pipeline.sources[name]
            if not isinstance(source, model.TopicSource) or not source.as_table:
                continue
            how = source.parse
            given = parse.Given() if how is None else sources.given_for(spark, pipeline, name, source, how)
            options = sources.topic_options(pipeline, source, headers="headers" in source.metadata)
            found[name] = KeptTable(TableOrigin(name, options, how, given, source.metadata, source.until))
        return cls(found)

    def renew(self, spark: SparkSession) -> None:
        for table in self.tables.values():
            table.renew(spark)

    def outlast_loss(self, work: Callable[[], None]) -> None:
        """Do it; and once more with tables that were read anew, if executors are gone with what they kept."""
        try:
            work()
        except Exception as error:
            if not self.tables or _LOST not in str(error):
                raise
            _log.warning("executors are gone with what they kept of tables: reading them anew")
            for table in self.tables.values():
                table.forget()
            work()


# ---- tables of Arrow's ----------------------------------------------------------------------------------------------


def _changed(rows: Any, keys: Any, newer: Any) -> Any:
    """The rows without those of these keys, and the newer ones. A null among keys is a key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    untouched = rows.filter(pc.invert(pc.is_in(rows[_KEY], value_set=keys)))
    return pa.concat_tables([untouched, newer.cast(rows.schema)])


def _joined_keys(before: Any, keys: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return keys if before is None else pc.unique(pa.concat_arrays([before, keys]))


def _comparable(left: t.StructType, right: t.StructType, on: Sequence[str]) -> bool:
    """Whether both have these columns, as they are written here, with types whose values Arrow can compare."""
    for name in on:
        if name not in left.names or name not in right.names or left[name].dataType != right[name].dataType:
            return False
        if not isinstance(left[name].dataType, _COMPARABLE) or _is_collated(left[name].dataType):
            return False
    return True


def _is_collated(kind: t.DataType) -> bool:
    """Whether texts may be equal that have other bytes."""
    return isinstance(kind, t.StringType) and kind != t.StringType()


def _in_arrow(kind: t.DataType) -> bool:
    """Whether it comes back from Arrow as it was."""
    match kind:
        case t.StructType():
            return all(_in_arrow(each.dataType) for each in kind.fields)
        case t.ArrayType():
            return _in_arrow(kind.elementType)
        case t.MapType():
            return _in_arrow(kind.keyType) and _in_arrow(kind.valueType)
        case _:
            return isinstance(kind, _IN_ARROW) and not _is_collated(kind)


def _size(base: DataFrame) -> int:
    def measured(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"bytes": [sum(batch.nbytes for batch in batches)]})

    return sum(row.bytes for row in base.mapInArrow(measured, "bytes bigint").collect())
