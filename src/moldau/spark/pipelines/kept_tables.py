"""Topics as tables beside a stream, kept from batch to batch: what is read and parsed is what came since.

Whoever writes the batches of a query keeps, for each table,

    base    the parsed rows of the newest records up to some offsets: on the executors, in memory and on their disks
    newer   the newest records since, unparsed: here, at most so many

The table as of a batch is the base without the keys of `newer`, and the good rows of `newer`. When `newer` has grown,
or a change is too large to be read here, tasks read it and it becomes part of the base.

Invariant: rows are those that reading everything up to the end offsets of the moment would leave. A key whose newest
record is a tombstone, or cannot be parsed, has no row. Nothing survives the process: a restart reads the topic anew.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from moldau.spark.broker_outage import BrokerPatience
from moldau.spark.pipelines import model, parse, sources, topic_table
from moldau.spark.pipelines.topic_table import NewestRows
from moldau.spark.ranges import RangeToRead

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from moldau.spark.source import BatchReader

_KEY = "__key"
_RECORDS_MAX = 10_000  # read here at a time, and kept here
_BYTES_MAX = 32 << 20
_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
_log = logging.getLogger(__name__)
Offsets = dict[tuple[str, int], int]


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
            frame = parse.failing(frame)
        return parse.good(frame, self.metadata, key_as=_KEY)


class _TooMuch(Exception):
    """More than is to be kept here."""


@dataclass(slots=True)
class KeptTable:
    """One table; `frame` is what it holds now."""

    origin: TableOrigin
    _session: str = ""
    _base: Any = None  # None as long as nothing was read
    _base_ends: Offsets = field(default_factory=dict)
    _newer: NewestRows = field(default_factory=NewestRows)
    _newer_ends: Offsets = field(default_factory=dict)
    _changed: tuple[Any, Any] | None = None  # keys and good rows of `newer`

    def frame(self, spark: SparkSession) -> DataFrame:
        session = str(getattr(spark, "session_id", ""))  # behind Connect, frames of two sessions do not mix
        if session != self._session:
            self.forget()
            self._session = session
        reader = self._reader()
        outage_s = reader.options.outage_ms / 1000
        ranges = [each.value for each in BrokerPatience(outage_s, first_s=outage_s).outlast(reader.partitions)]
        ends = _ends(ranges)
        if any(ends.get(place, 0) < done for place, done in (self._base_ends | self._newer_ends).items()):
            self.forget()  # the topic was deleted, or created anew
        if self._base is None or not self._kept(spark, reader, ranges, ends):
            self._fold(spark, ranges, ends)
        rows: DataFrame = self._base
        if self._changed is not None:
            keys, good = self._changed
            untouched = rows.join(f.broadcast(keys), rows[_KEY].eqNullSafe(keys["key"]), "left_anti")
            rows = untouched.unionByName(good)
        return rows.drop(_KEY)

    def forget(self) -> None:
        self._base, self._base_ends = None, {}
        self._forget_newer()

    def _forget_newer(self) -> None:
        if self._changed is not None:
            self._changed[1].unpersist()
        self._newer, self._newer_ends, self._changed = NewestRows(), {}, None

    def _reader(self) -> BatchReader:
        from moldau.spark.options import source_schema
        from moldau.spark.source import make_batch_reader

        options = dict(self.origin.options)
        return make_batch_reader(options, source_schema(options))

    def _kept(self, spark: SparkSession, reader: BatchReader, ranges: list[RangeToRead], ends: Offsets) -> bool:
        """Bring `newer` up to date; False if it is too much for here."""
        import pyarrow as pa

        since = [_from(each, self._base_ends) for each in ranges]
        unread = sum(max(each.end - max(each.start, self._newer_ends.get(_place(each), 0)), 0) for each in since)
        if not unread:
            return True
        if unread > _RECORDS_MAX:
            return False
        read: list[int] = []

        def read_range(work: RangeToRead) -> Iterator[Any]:
            from moldau.spark.source import RangePartition

            for batch in reader.read(RangePartition(work)):
                read.append(batch.nbytes)
                if sum(read) > _BYTES_MAX:
                    raise _TooMuch
                yield batch

        try:
            batches = list(self._newer.updated([each for each in since if each.start < each.end], read_range))
        except _TooMuch:
            return False
        if sum(each.num_rows for each in batches) > _RECORDS_MAX or self._newer.size_bytes > _BYTES_MAX:
            return False
        if self._changed is not None:
            self._changed[1].unpersist()
            self._changed = None
        self._newer_ends = {_place(each): ends[_place(each)] for each in since}
        if batches:
            records = pa.Table.from_batches(batches).combine_chunks()
            good = self.origin.rows(spark.createDataFrame(records)).persist()
            self._changed = (spark.createDataFrame(records.select(["key"])), good)
        return True

    def _fold(self, spark: SparkSession, ranges: list[RangeToRead], ends: Offsets) -> None:
        """Let tasks read what the base does not have, and make it part of the base."""
        since = [each for each in (_from(each, self._base_ends) for each in ranges) if each.start < each.end]
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
        self._forget_newer()
        self._base, self._base_ends = base, ends
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

    def frames(self, spark: SparkSession) -> dict[str, DataFrame]:
        return {name: table.frame(spark) for name, table in self.tables.items()}

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


def _place(each: RangeToRead) -> tuple[str, int]:
    return each.topic, each.partition


def _ends(ranges: list[RangeToRead]) -> Offsets:
    found: Offsets = {}
    for each in ranges:
        found[_place(each)] = max(each.end, found.get(_place(each), 0))
    return found


def _from(each: RangeToRead, done: Offsets) -> RangeToRead:
    return replace(each, start=max(each.start, done.get(_place(each), each.start)))
