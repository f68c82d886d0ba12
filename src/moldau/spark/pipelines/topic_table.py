"""A topic as a table beside a stream: everything it holds at the moment a batch reads it.

Spark asks a batch source for its partitions once for the life of a query, so offsets fixed there would show the table
as it was when the query started. Here a task asks for the offsets when it reads; every batch sees what is newest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

FORMAT = "moldau-topic-table"


class TopicTableDataSource(DataSource):
    """`format("moldau-topic-table")`: columns and options of "moldau", read as a batch."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        from moldau.spark.options import source_schema

        return source_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from moldau.spark.source import make_batch_reader

        return _LateReader(make_batch_reader(self.options, schema))


class _Share(InputPartition):
    """Those partitions whose number leaves this remainder: new ones belong to somebody too."""

    def __init__(self, number: int, of: int) -> None:
        super().__init__((number, of))


class _LateReader(DataSourceReader):
    def __init__(self, inner: DataSourceReader) -> None:
        self._inner = inner

    def partitions(self) -> list[InputPartition]:
        numbers = {part.value.partition for part in self._inner.partitions()} or {0}
        count = max(numbers) + 1
        return [_Share(number, count) for number in range(count)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        number, of = partition.value
        for part in self._inner.partitions():
            if part.value.partition % of == number:
                rows: Iterator[Any] = self._inner.read(part)
                yield from rows
