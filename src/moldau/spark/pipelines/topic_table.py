"""A topic as a table beside a stream: everything it holds at the moment a batch reads it.

With the option `tableRanges` it is the newest rows of these ranges, for those who keep the table themselves
(`kept_tables`). Without, it is for plans in which a table is part of the stream (windows behind a join, Parquet): Spark
asks a batch source for its partitions once for the life of a query, so offsets fixed there would show the table as it
was when the query started. Here a task asks for the offsets when it reads; every batch sees what is newest.

A Python worker keeps the newest row of each key between tasks and reads only what came since. A key is always in the
same partition, so the newest rows of partitions together are those of the topic.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from moldau.spark.broker_outage import BrokerPatience
from moldau.spark.options import SourceOptions
from moldau.spark.ranges import RangeToRead
from moldau.spark.source import BatchReader, RangePartition

FORMAT = "moldau-topic-table"
RANGES = "tableRanges"  # JSON: a list of topic, partition, start, end


class TopicTableDataSource(DataSource):
    """`format("moldau-topic-table")`: columns and options of "moldau", read as a batch."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        from moldau.spark.options import source_schema

        return source_schema(self._plain())

    def reader(self, schema: StructType) -> DataSourceReader:
        from moldau.spark.source import make_batch_reader

        inner = make_batch_reader(self._plain(), schema)
        told = self.options.get(RANGES)
        if told is None:
            return _LateReader(inner)
        return _RangesReader(inner, [RangeToRead(*each) for each in json.loads(told)])

    def _plain(self) -> dict[str, str]:
        """The options of "moldau" among them."""
        return {name: value for name, value in self.options.items() if name.lower() != RANGES.lower()}


class _RangesReader(DataSourceReader):
    """The newest rows of given ranges; one task a partition, and nothing is kept."""

    def __init__(self, inner: BatchReader, ranges: list[RangeToRead]) -> None:
        self._inner = inner
        self._ranges = ranges

    def partitions(self) -> list[InputPartition]:
        places = sorted({(each.topic, each.partition) for each in self._ranges})
        return [InputPartition(place) for place in places] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        ranges = [each for each in self._ranges if (each.topic, each.partition) == partition.value]
        yield from NewestRows().updated(ranges, lambda work: self._inner.read(RangePartition(work)))


class _Share(InputPartition):
    """Those partitions whose number leaves this remainder: new ones belong to somebody too."""

    def __init__(self, number: int, of: int) -> None:
        super().__init__((number, of))


class _LateReader(DataSourceReader):
    def __init__(self, inner: BatchReader) -> None:
        self._inner = inner

    def partitions(self) -> list[InputPartition]:
        numbers = {part.value.partition for part in self._inner.partitions()} or {0}
        count = max(numbers) + 1
        return [_Share(number, count) for number in range(count)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        number, of = partition.value
        patience = BrokerPatience(0, first_s=self._inner.options.api_timeout_ms / 1000)
        ranges = [each for each in patience.outlast(self._inner.ranges) if each.partition % of == number]
        table = _kept_table(self._inner.options, number, of)
        yield from table.updated(ranges, self._read_range)

    def _read_range(self, work: RangeToRead) -> Iterator[Any]:
        return self._inner.read(RangePartition(work))


# ---- what a worker keeps --------------------------------------------------------------------------------------------

_TABLES_MAX = 64
_BYTES_MAX = 512 << 20
_tables: dict[Any, NewestRows] = {}


def _kept_table(options: SourceOptions, number: int, of: int) -> NewestRows:
    """This share of the table as this worker knows it. Spark uses a worker for many tasks; a new one reads anew."""
    key = (pickle.dumps(options), number, of)
    table = _tables.pop(key, None) or NewestRows()
    while _tables and (len(_tables) >= _TABLES_MAX or sum(each.size_bytes for each in _tables.values()) > _BYTES_MAX):
        del _tables[next(iter(_tables))]  # the one that was not used for longest
    _tables[key] = table
    return table


class Reached:
    """Up to where partitions were read."""

    def __init__(self) -> None:
        self._ranges: dict[tuple[str, int], RangeToRead] = {}

    def note(self, done: RangeToRead) -> None:
        self._ranges[done.topic, done.partition] = done

    def from_there(self, each: RangeToRead) -> RangeToRead:
        """What is left of it."""
        done = self._ranges.get((each.topic, each.partition))
        return each if done is None else replace(each, start=max(each.start, done.end))

    def is_past(self, ranges: list[RangeToRead]) -> bool:
        """Whether something that was read is not there any more: its topic was deleted, perhaps made again, whatever it
        holds by now, or records were removed from its beginning. `ranges` are all there is, from the beginning."""
        there = {(each.topic, each.partition): each for each in ranges}
        for place, done in self._ranges.items():
            now = there.get(place)
            if now is None or now.end < done.end or now.topic_id != done.topic_id:
                return True
            if now.start > done.start and done.end > done.start:
                return True
        return False


class NewestRows:
    """The newest row of each key of some partitions, kept up to date by reading what came since.

    Invariant: what is given out is what reading everything from the beginning would leave.
    """

    def __init__(self) -> None:
        self._done = Reached()
        self._batches: list[Any] = []
        self._alive: list[Any] = []  # for each batch, which of its rows are the newest of their key
        self._places: dict[bytes | None, tuple[int, int]] = {}

    def _forget(self) -> None:
        self._done, self._batches, self._alive, self._places = Reached(), [], [], {}

    @property
    def size_bytes(self) -> int:
        return sum(batch.nbytes for batch in self._batches)

    def updated(self, ranges: list[RangeToRead], read: Callable[[RangeToRead], Iterator[Any]]) -> Iterator[Any]:
        """Batches of the newest rows. `ranges` are all there is now, from the beginning of each partition."""
        if self._done.is_past(ranges):
            self._forget()
        for each in ranges:
            left = self._done.from_there(each)
            if left.start < left.end:
                try:
                    for batch in read(left):
                        self._add(batch)
                except BaseException:
                    self._forget()  # half a range was added: better to begin anew
                    raise
            self._done.note(each)
        self._compact()
        for batch, alive in zip(self._batches, self._alive, strict=True):
            yield batch if alive.all() else batch.filter(alive)

    def _add(self, batch: Any) -> None:
        import numpy as np

        number = len(self._batches)
        alive = np.ones(batch.num_rows, dtype=bool)
        self._batches.append(batch)
        self._alive.append(alive)
        for row, key in enumerate(batch.column("key").to_pylist()):
            before = self._places.get(key)
            if before is not None:
                self._alive[before[0]][before[1]] = False
            self._places[key] = (number, row)

    def _compact(self) -> None:
        """Few batches, and no more rows that are over than rows that count."""
        import pyarrow as pa

        rows = sum(batch.num_rows for batch in self._batches)
        if len(self._batches) < _BATCHES_MAX and rows <= 2 * len(self._places) + 1_000:
            return
        newest = [batch.filter(alive) for batch, alive in zip(self._batches, self._alive, strict=True)]
        joined = pa.Table.from_batches(newest, schema=self._batches[0].schema).combine_chunks().to_batches()
        self._batches, self._alive, self._places = [], [], {}
        for batch in joined:
            self._add(batch)


_BATCHES_MAX = 200
