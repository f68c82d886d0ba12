"""Readers without a JVM: what Spark does with their answers, done by hand, so that most tests take milliseconds."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from moldau.spark.options import source_schema
from moldau.spark.source import BatchReader, make_batch_reader
from moldau.spark.stream_source import StreamReader, make_stream_reader
from tests.support.clients import quiet


class Row(NamedTuple):
    """A row of the source."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: Any
    timestamp_type: int
    headers: Any = None


def batch_reader(bootstrap: str, **options: Any) -> BatchReader:
    given = options_of(bootstrap, options)
    return make_batch_reader(given, source_schema(given))


def stream_reader(bootstrap: str, **options: Any) -> StreamReader:
    given = options_of(bootstrap, options)
    return make_stream_reader(given, source_schema(given))


def options_of(bootstrap: str, options: dict[str, Any]) -> dict[str, str]:
    """`kafka_isolation_level` stands for `kafka.isolation.level`."""
    named = {name.replace("_", ".") if name.startswith("kafka_") else name: value for name, value in options.items()}
    return {"kafka.bootstrap.servers": bootstrap} | {name: str(value) for name, value in named.items()}


def tables(reader: DataSourceReader | DataSourceStreamReader, tasks: Iterable[InputPartition]) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    for task in tasks:
        batches.extend(reader.read(task))
    return batches


def rows(reader: DataSourceReader | DataSourceStreamReader, tasks: Iterable[InputPartition]) -> list[Row]:
    """All rows, in the order of tasks."""
    return [Row(*record.values()) for batch in tables(reader, tasks) for record in batch.to_pylist()]


def values(found: Iterable[Row]) -> list[bytes | None]:
    return [row.value for row in found]


def send(
    bootstrap: str, topic: str, count: int, *, first: int = 0, partition: int = 0, codec: str = "none", size: int = 0
) -> None:
    """Records `v<number>` of at least `size` bytes into one partition."""
    producer = Producer(quiet(bootstrap, compression_type=codec, linger_ms=5))
    for number in range(first, first + count):
        producer.produce(topic, b"v%d" % number + b" " * size, b"k%d" % number, partition=partition)
    assert producer.flush(30) == 0
