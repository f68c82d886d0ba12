"""A topic as a table: what came since is read, and what is given out is what the whole topic would leave."""

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql.datasource import InputPartition

from moldau.spark.options import source_schema
from moldau.spark.pipelines import topic_table
from moldau.spark.pipelines.topic_table import NewestRows, TopicTableDataSource
from moldau.spark.ranges import RangeToRead
from moldau.spark.source import BatchReader
from tests.spark.reading import options_of
from tests.support.clients import create_topic, quiet


def rows_of(batches: Iterator[Any]) -> dict[bytes, int]:
    found = [row for batch in batches for row in batch.to_pylist()]
    newest = {row["key"]: row["offset"] for row in found}
    assert len(newest) == len(found), "a key once"
    return newest


def test_the_newest_rows_are_those_of_a_whole_reading() -> None:
    random.seed(7)
    keys = [random.choice([b"a", b"b", b"c", None]) for _ in range(3_000)]
    asked: list[RangeToRead] = []

    def read(work: RangeToRead) -> Iterator[Any]:
        asked.append(work)
        for start in range(work.start, work.end, 5):
            offsets = range(start, min(start + 5, work.end))
            columns = {"key": [keys[each] for each in offsets], "offset": list(offsets)}
            yield pa.RecordBatch.from_pydict(columns, pa.schema([("key", pa.binary()), ("offset", pa.int64())]))

    table = NewestRows()
    end = 0
    while end < len(keys):
        end = min(end + random.randrange(0, 120), len(keys))
        expected = {key: offset for offset, key in enumerate(keys[:end])}
        assert rows_of(table.updated([RangeToRead("t", 0, 0, end)], read)) == expected
    assert sum(each.end - each.start for each in asked) == len(keys), "nothing was read twice"
    assert len(table._batches) < 200
    assert rows_of(table.updated([RangeToRead("t", 0, 0, 2)], read)) == {keys[0]: 0, keys[1]: 1}, "created anew"


def test_a_topic_made_anew_is_read_anew_whatever_it_holds() -> None:
    """By its id, because it may be longer than the old one was; and one that lost its beginning likewise."""

    def read(work: RangeToRead) -> Iterator[Any]:
        keys = [work.topic_id + b"%d" % offset for offset in range(work.start, work.end)]
        columns = {"key": keys, "offset": list(range(work.start, work.end))}
        yield pa.RecordBatch.from_pydict(columns, pa.schema([("key", pa.binary()), ("offset", pa.int64())]))

    table = NewestRows()
    list(table.updated([RangeToRead("t", 0, 0, 2, topic_id=b"a"), RangeToRead("t", 1, 7, 7, topic_id=b"a")], read))
    later = [RangeToRead("t", 0, 0, 3, topic_id=b"b"), RangeToRead("t", 1, 7, 7, topic_id=b"b")]
    assert rows_of(table.updated(later, read)) == {b"b0": 0, b"b1": 1, b"b2": 2}
    cut = [RangeToRead("t", 0, 2, 4, topic_id=b"b"), RangeToRead("t", 1, 7, 7, topic_id=b"b")]
    assert rows_of(table.updated(cut, read)) == {b"b2": 2, b"b3": 3}


def test_a_partition_without_records_is_no_reason_to_read_others_again() -> None:
    asked: list[RangeToRead] = []

    def read(work: RangeToRead) -> Iterator[Any]:
        asked.append(work)
        yield pa.RecordBatch.from_pydict({"key": [b"%d" % each for each in range(work.start, work.end)]})

    table = NewestRows()
    for end in (3, 3, 5):
        list(table.updated([RangeToRead("t", 0, 0, end), RangeToRead("t", 1, 9, 9)], read))
    assert [(each.start, each.end) for each in asked] == [(0, 3), (3, 5)]


def test_a_large_table_is_not_read_again_for_a_small_change(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_table, "_tables", {})
    topic = create_topic(bootstrap)
    producer = Producer(quiet(bootstrap, compression_type="lz4", linger_ms=20))

    def send(first: int, count: int) -> None:
        for number in range(first, first + count):
            producer.produce(topic, b'{"n":%d}' % number, b"%d" % (number % 30_000))
            if number % 10_000 == 0:
                producer.flush()
        assert producer.flush(30) == 0

    send(0, 30_000)
    options = options_of(bootstrap, {"subscribe": topic})
    source = TopicTableDataSource(options)
    fetched: list[int] = []
    plain = BatchReader.read

    def counted(self: BatchReader, partition: InputPartition) -> Iterator[Any]:
        for batch in plain(self, partition):
            fetched.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(BatchReader, "read", counted)

    def read() -> int:
        reader = source.reader(source_schema(options))
        (task,) = reader.partitions()
        batches: Iterator[Any] = reader.read(task)
        return sum(batch.num_rows for batch in batches)

    assert (read(), sum(fetched)) == (30_000, 30_000)
    fetched.clear()
    send(50, 3)
    assert (read(), sum(fetched)) == (30_000, 3)
