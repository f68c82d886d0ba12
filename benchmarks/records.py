"""Record batches: reading, building, and whole fetches as columns, beside the Python clients' own code.

Every figure is the best of several short runs, taken in turns with the peers, so that a machine that speeds up or slows
down does so for all. A record is 100 bytes: a key of 10 and a value of 90. Peers give their keys and values as bytes,
as ours do.
"""

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaReader
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonReader
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from kio.records.readers import read_batch as kio_read_batch

from benchmarks.rows import Row
from moldau.records import (
    BatchOptions,
    Codec,
    Record,
    build_batch,
    check_crc,
    compress,
    decompress,
    iter_batches,
    iter_records,
    read_header,
    stamp,
)
from moldau.records.arrow import to_arrow
from moldau.records.columns import read_columns

BATCH_RECORDS = 150  # about 16 KB, a producer's default
FETCH_BATCHES = 60  # about 1 MB, a consumer's default per partition
NOW_MS = 1_700_000_000_000
RUNS = 60


def records(count: int, base_offset: int = 0) -> list[Record]:
    return [
        Record(base_offset + index, NOW_MS + index // 10, b"key-%06d" % (index % 999_999), b"%090d" % (index * 7919))
        for index in range(count)
    ]


def fetch(codec: Codec) -> bytes:
    return b"".join(
        build_batch(records(BATCH_RECORDS, offset), BatchOptions(base_offset=offset, codec=codec))
        for offset in range(0, BATCH_RECORDS * FETCH_BATCHES, BATCH_RECORDS)
    )


def per_second(count: int, contenders: dict[str, Callable[[], object]]) -> dict[str, float]:
    """How many of `count` things each contender does in a second."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(RUNS):
        for name, work in contenders.items():
            start = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: count / seconds for name, seconds in best.items()}


def row(name: str, unit: str, figures: dict[str, float], target: str = "") -> Row:
    ours, *others = figures
    return Row(name, figures[ours], unit, {peer: figures[peer] for peer in others}, target)


def iteration(codec: Codec) -> Row:
    batch = bytes(build_batch(records(BATCH_RECORDS), BatchOptions(codec=codec)))

    def ours() -> None:
        for record in iter_records(batch):
            _ = record.key, record.value

    def peer(reader: Any) -> Callable[[], None]:
        def read() -> None:
            for record in reader(batch):
                _ = record.key, record.value

        return read

    contenders: dict[str, Callable[[], object]] = {
        "moldau": ours,
        "aiokafka (Cython)": peer(AiokafkaReader),
    }
    if codec in (Codec.NONE, Codec.GZIP):  # what kafka-python has without further libraries
        contenders["kafka-python"] = peer(KafkaPythonReader)
    if codec is Codec.NONE:
        contenders["kio"] = lambda: kio_read_batch(batch, 0)
    target = "1,000,000" if codec is Codec.NONE else ""
    return row(f"iterate records, {codec.name.lower()}", "records/s", per_second(BATCH_RECORDS, contenders), target)


def building() -> Row:
    given = records(BATCH_RECORDS)

    def peer(builder: Any) -> Callable[[], None]:
        def build() -> None:
            batch = builder(2, 0, False, -1, -1, -1, 1_000_000)
            for offset, timestamp, key, value, _ in given:
                batch.append(offset, timestamp, key, value, [])
            batch.build()

        return build

    contenders: dict[str, Callable[[], object]] = {
        "moldau": lambda: build_batch(given),
        "aiokafka (Cython)": peer(AiokafkaBuilder),
        "kafka-python": peer(KafkaPythonBuilder),
    }
    return row("build a batch", "records/s", per_second(BATCH_RECORDS, contenders), "1,500,000")


def aiokafka_lists(data: bytes) -> tuple[list[int], list[int], list[bytes | None], list[bytes | None]]:
    """The same columns with the fastest reader a Python client has; it takes one batch at a time."""
    offsets, timestamps, keys, values = [], [], [], []
    for position, header in iter_batches(data):
        for record in AiokafkaReader(data[position : position + header.size_bytes]):
            offsets.append(record.offset)
            timestamps.append(record.timestamp)
            keys.append(record.key)
            values.append(record.value)
    return offsets, timestamps, keys, values


def columns(codec: Codec) -> Row:
    data = fetch(codec)
    figures = per_second(
        BATCH_RECORDS * FETCH_BATCHES,
        {"moldau": lambda: read_columns(data), "aiokafka into lists": lambda: aiokafka_lists(data)},
    )
    target = "1,300,000" if codec is Codec.NONE else ""
    return row(f"fetch to columns, {codec.name.lower()}", "records/s", figures, target)


def arrow() -> Row:
    data = fetch(Codec.NONE)

    def through_lists() -> None:
        types = pa.int64(), pa.int64(), pa.binary(), pa.binary()
        arrays = [pa.array(each, kind) for each, kind in zip(aiokafka_lists(data), types, strict=True)]
        pa.RecordBatch.from_arrays(arrays, names=["offset", "timestamp", "key", "value"])

    figures = per_second(
        BATCH_RECORDS * FETCH_BATCHES,
        {"moldau": lambda: to_arrow(read_columns(data)), "aiokafka into lists into Arrow": through_lists},
    )
    return row("fetch to an Arrow record batch", "records/s", figures)


def headers() -> list[Row]:
    batch = build_batch(records(100))
    header = read_header(batch)
    times = 1000

    def repeat(work: Callable[[], object]) -> Callable[[], None]:
        def loop() -> None:
            for _ in range(times):
                work()

        return loop

    def check() -> None:
        check_crc(batch, 0, read_header(batch))

    rates = per_second(
        times,
        {"check": repeat(check), "stamp": repeat(lambda: stamp(batch, 0, header.base_offset, 0))},
    )
    return [
        Row("read header and check CRC of an 11 KB batch", 1e6 / rates["check"], "us", better="lower"),
        Row("stamp offset and epoch in place", 1e6 / rates["stamp"], "us", better="lower"),
    ]


def compression(codec: Codec) -> list[Row]:
    body = b"".join(b'{"id": %d, "name": "user-%d", "score": %d}' % (n, n % 97, n * 7919 % 1000) for n in range(5000))
    squeezed = compress(codec, body)
    rates = per_second(
        len(body),
        {"compress": lambda: compress(codec, body), "decompress": lambda: decompress(codec, squeezed)},
    )
    name = codec.name.lower()
    return [
        Row(f"{name} compress", rates["compress"] / 1e6, "MB/s"),
        Row(f"{name} decompress", rates["decompress"] / 1e6, "MB/s"),
    ]


def rows() -> list[Row]:
    return [
        iteration(Codec.NONE),
        iteration(Codec.LZ4),
        building(),
        columns(Codec.NONE),
        columns(Codec.LZ4),
        columns(Codec.ZSTD),
        arrow(),
        *headers(),
        *(each for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD) for each in compression(codec)),
    ]


if __name__ == "__main__":
    for each in rows():
        peers = ", ".join(f"{name} {value:,.2f}" for name, value in each.peers.items())
        print(f"{each.name}: {each.ours:,.2f} {each.unit}  (target {each.target or 'none'}; {peers or 'no peers'})")
