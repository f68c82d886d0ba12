"""Rows that leave as columns: batches as any reader understands them, each row once, in order, where it belongs."""

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from moldau.client.connection import Connection, Disconnected
from moldau.records import Codec
from moldau.records.batch import check_crc, read_header
from moldau.records.murmur2 import murmur2 as murmur2_of_one
from moldau.records.reader import iter_records
from moldau.spark import column_sender, sink
from moldau.spark.column_sender import ColumnSender
from moldau.spark.producing import DeliveryFailed
from moldau.spark.record_columns import batch_parts, murmur2, record_bytes
from moldau.spark.sink_options import sink_options
from moldau.wire.messages import ProduceRequest
from tests.support.clients import create_topic, fresh, read_all

PARTITIONS = 3
ROWS = 900
CHANCE = random.Random(5)
LENGTHS = (0, 1, 62, 63, 64, 65, 127, 128, 8_191, 8_192, 20_000)


def some_bytes(count: int, lengths: tuple[int, ...]) -> list[bytes | None]:
    return [None if CHANCE.random() < 0.2 else CHANCE.randbytes(CHANCE.choice(lengths)) for _ in range(count)]


def binary(values: list[bytes | None]) -> Any:
    """A slice of something larger, as Spark's batches may be."""
    return pa.array([b"before", *values], pa.binary()).slice(1)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("keyed", [True, False])
def test_a_batch_reads_as_what_it_was_made_of(codec: Codec, keyed: bool) -> None:
    keys: list[bytes | None] = some_bytes(300, (0, 1, 5, 70, 200)) if keyed else [None] * 300
    values = some_bytes(300, LENGTHS)
    records = record_bytes(binary(keys) if keyed else None, binary(values))
    batch = b"".join(batch_parts(records, 300, 1_234, codec, producer=(7, 2, 5)))
    header = read_header(batch)
    check_crc(batch, 0, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 5)
    found = [(each.key, each.value, each.offset, each.timestamp) for each in iter_records(batch)]
    assert found == [(key, value, n, 1_234) for n, (key, value) in enumerate(zip(keys, values, strict=True))]


@pytest.mark.parametrize("keyed", [True, False])
def test_a_long_batch_of_equally_long_rows_reads_as_what_it_was_made_of(keyed: bool) -> None:
    """Numbers of rows take one byte, then two, then three; lengths change now and then."""
    count = 9_000
    values: list[bytes | None] = [b"%0*d" % (70 if number < 5_000 else 20, number) for number in range(count)]
    values[7_000] = None
    keys: list[bytes | None] = [b"%04d" % number if keyed else None for number in range(count)]
    records = record_bytes(binary(keys) if keyed else None, binary(values))
    found = [(each.key, each.value, each.offset) for each in iter_records(b"".join(batch_parts(records, count, 1)))]
    assert found == list(zip(keys, values, range(count), strict=True))


def test_keys_are_hashed_as_java_does() -> None:
    keys = [CHANCE.randbytes(length) for length in (*range(70), 4_096, 4_097, 70_001)]
    assert [int(each) for each in murmur2(binary([*keys]))] == [murmur2_of_one(key) for key in keys]
    assert len(murmur2(binary([]))) == 0


@pytest.mark.parametrize(
    ("asked", "size_bytes", "level"),
    [
        ({"kafka.compression.type": "zstd"}, 1 << 20, 1),
        ({"kafka.compression.type": "zstd"}, 10_000, None),
        ({"kafka.compression.type": "zstd", "kafka.compression.zstd.level": "7"}, 1 << 20, 7),
        ({"kafka.compression.type": "gzip"}, 1 << 20, None),
        ({}, 1 << 20, None),
    ],
)
def test_large_batches_are_compressed_at_a_level_that_fits_them(
    asked: dict[str, str], size_bytes: int, level: int | None
) -> None:
    settings = column_sender._settings(options_for("127.0.0.1:1", "t", **asked))
    assert settings is not None
    assert column_sender._level(settings, size_bytes) == level


@pytest.fixture
def topic(bootstrap: str) -> str:
    return create_topic(bootstrap, partitions=PARTITIONS)


def options_for(bootstrap: str, topic: str, **more: str) -> Any:
    return sink_options({"kafka.bootstrap.servers": bootstrap, "topic": topic, **more})


def numbered(first: int, count: int, **columns: Any) -> Any:
    values = pa.array([b"%d" % number for number in range(first, first + count)], pa.binary())
    return pa.RecordBatch.from_pydict({"value": values, **columns})


def written(bootstrap: str, topic: str, batches: list[Any], **more: str) -> dict[int, list[bytes]]:
    """Each partition's values, in their order, after a task that wrote these batches."""
    done = sink.write_at_least_once(options_for(bootstrap, topic, **more), iter(batches))
    assert done.rows == sum(batch.num_rows for batch in batches)
    found: dict[int, list[bytes]] = {}
    for message in read_all(bootstrap, topic, PARTITIONS):
        found.setdefault(message.partition() or 0, []).append(bytes(message.value() or b""))
    return found


@pytest.fixture
def only_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka has no part in it."""
    monkeypatch.delattr(sink, "Sender")


@pytest.mark.usefixtures("only_columns")
@pytest.mark.parametrize("codec", ["none", "lz4", "zstd", "gzip", "snappy"])
def test_rows_go_where_they_are_told_to_in_their_order(bootstrap: str, topic: str, codec: str) -> None:
    numbers = pa.array([(n // 7) % PARTITIONS for n in range(ROWS)], pa.int32())
    batches = [numbered(start, ROWS, partition=numbers) for start in range(0, 3 * ROWS, ROWS)]
    found = written(bootstrap, topic, batches, **{"kafka.compression.type": codec})
    for partition in range(PARTITIONS):
        assert found[partition] == [b"%d" % n for n in range(3 * ROWS) if (n % ROWS // 7) % PARTITIONS == partition]


@pytest.mark.usefixtures("only_columns")
def test_keys_lie_where_java_puts_them_and_other_rows_anywhere(bootstrap: str, topic: str) -> None:
    keys: list[bytes | None] = [None if n % 5 == 0 else b"key-%d" % n for n in range(ROWS)]
    written(bootstrap, topic, [numbered(0, ROWS, key=pa.array(keys, pa.binary()))])
    messages = read_all(bootstrap, topic, PARTITIONS)
    assert Counter(message.key() for message in messages) == Counter(keys)
    for message in messages:
        key = message.key()
        if key is not None:
            assert message.partition() == (murmur2_of_one(bytes(key)) & 0x7FFFFFFF) % PARTITIONS


@pytest.mark.usefixtures("only_columns")
def test_rows_without_a_partition_go_where_their_keys_do(bootstrap: str, topic: str) -> None:
    keys = [b"key-%d" % n for n in range(ROWS)]
    named = [None if n % 2 else n % PARTITIONS for n in range(ROWS)]
    columns = {"key": pa.array(keys, pa.binary()), "partition": pa.array(named, pa.int32())}
    written(bootstrap, topic, [numbered(0, ROWS, **columns)])
    found = {bytes(message.key() or b""): message.partition() for message in read_all(bootstrap, topic, PARTITIONS)}
    hashed = [(murmur2_of_one(key) & 0x7FFFFFFF) % PARTITIONS for key in keys]
    assert found == {
        key: other if number is None else number for key, number, other in zip(keys, named, hashed, strict=True)
    }


@pytest.mark.usefixtures("only_columns")
def test_a_topic_is_made_by_writing_to_it(bootstrap: str) -> None:
    topic = fresh("made")
    assert sink.write_at_least_once(options_for(bootstrap, topic), iter([numbered(0, ROWS)])).rows == ROWS
    assert len(read_all(bootstrap, topic)) == ROWS


@pytest.mark.usefixtures("only_columns")
def test_rows_without_keys_are_shared_out(bootstrap: str, topic: str) -> None:
    found = written(bootstrap, topic, [numbered(0, ROWS)])
    assert {len(values) for values in found.values()} == {ROWS // PARTITIONS}
    assert Counter(value for values in found.values() for value in values) == Counter(b"%d" % n for n in range(ROWS))


def test_a_batch_of_another_kind_is_librdkafkas(bootstrap: str, topic: str) -> None:
    """The first go as columns, and are acknowledged before the others."""
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "h", "value": b"1"}]] * 10, kind)
    zeros = pa.array([0] * ROWS, pa.int32())
    plain = numbered(0, ROWS, partition=zeros, headers=pa.nulls(ROWS, kind))
    other = numbered(ROWS, 10, partition=zeros[:10], headers=headers)
    assert written(bootstrap, topic, [plain, other, plain])[0] == [
        b"%d" % n for n in (*range(ROWS), *range(ROWS, ROWS + 10), *range(ROWS))
    ]


def test_what_is_not_known_here_is_librdkafkas(bootstrap: str, topic: str) -> None:
    many, few = numbered(0, ROWS), numbered(0, 10)
    for settings in ({"kafka.partitioner": "random"}, {"kafka.acks": "0"}, {"kafka.batch.size": "100"}):
        assert column_sender.opened(options_for(bootstrap, topic, **settings), many) is None
    assert column_sender.opened(options_for(bootstrap, topic), few) is None
    assert column_sender.opened(options_for("127.0.0.1:1", topic), many) is None
    found = column_sender.opened(options_for(bootstrap, topic), many)
    assert found is not None
    with found:
        assert not found.send(numbered(0, ROWS, partition=pa.array([PARTITIONS] * ROWS, pa.int32())))


@pytest.mark.usefixtures("only_columns")
def test_a_lost_answer_doubles_nothing(bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker has written the batch, and the connection breaks before it can say so."""
    receive = Connection.receive
    lost: list[Any] = []

    def loses_one(self: Connection, api: Any, version: int) -> Any:
        answer = receive(self, api, version)
        if api.key == ProduceRequest.number and len(lost) < 2:
            lost.append(answer)
            self.close()
            raise Disconnected("lost")
        return answer

    monkeypatch.setattr(Connection, "receive", loses_one)
    zeros = pa.array([0] * ROWS, pa.int32())
    found = written(bootstrap, topic, [numbered(start, ROWS, partition=zeros) for start in (0, ROWS)])
    assert len(lost) == 2
    assert found[0] == [b"%d" % n for n in range(2 * ROWS)]


@pytest.mark.usefixtures("only_columns")
def test_a_topic_that_takes_small_batches_gets_small_ones(bootstrap: str) -> None:
    topic = create_topic(bootstrap, partitions=PARTITIONS, max_message_bytes="3000")
    zeros = pa.array([0] * ROWS, pa.int32())
    found = written(bootstrap, topic, [numbered(start, ROWS, partition=zeros) for start in (0, ROWS)])
    assert found[0] == [b"%d" % n for n in range(2 * ROWS)]


def test_what_cannot_be_written_fails_the_task(bootstrap: str, topic: str) -> None:
    huge = pa.RecordBatch.from_pydict({"value": pa.array([b"x"] * ROWS + [b"x" * 2_000_000], pa.binary())})
    with pytest.raises(DeliveryFailed, match=r"too large: raise kafka.max.request.size"):
        sink.write_at_least_once(options_for(bootstrap, topic), iter([huge]))
    found = column_sender.opened(options_for(bootstrap, topic, outage="1s"), numbered(0, ROWS))
    assert found is not None
    with found:
        sender: ColumnSender = found
        sender._settings = column_sender._Settings(Codec.NONE, None, -1, True, 1_000_000, 0.0)
        sender._topics = sender._topics.__class__({(topic, n): -1 for n in range(PARTITIONS)}, {}, frozenset())
        with pytest.raises(DeliveryFailed, match=r"records were not written; the first to .*cannot be reached"):
            _send_and_finish(sender, numbered(0, ROWS))


def _send_and_finish(sender: ColumnSender, batch: Any) -> None:
    assert sender.send(batch)
    sender.finish()
