"""Mutated batches: whatever the bytes, only RecordsError comes out, quickly, and both readers agree.

FUZZ_CASES sets how many (`make fuzz` asks for millions). The seed is pytest-randomly's: `-p randomly_seed=…` repeats
a run, and a failure shows the bytes.
"""

import os
import random
import resource
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import cramjam
import pytest

from moldau.log import AppendOrigin, LogConfig, LogError
from moldau.log.validation import validate_for_leader
from moldau.records import (
    BatchBuilder,
    BatchHeader,
    BatchOptions,
    Codec,
    ControlType,
    DecompressedTooLarge,
    EndTransactionMarker,
    Record,
    RecordsError,
    build_control_batch,
    build_end_transaction_marker,
    check_crc,
    compress,
    compute_crc,
    decompress,
    iter_batches,
    iter_fetched,
    iter_records,
    read_control_records,
    read_end_transaction_marker,
    read_header,
    recompress,
    stamp_log_append_time,
)
from moldau.records.columns import read_columns
from moldau.records.reader import read_body
from tests.records.samples import as_records, batch_of, mixed_records, plain_records

CASES = int(os.environ.get("FUZZ_CASES", "20000"))
SHARDS = 8
MAX_BYTES = 1_000_000
SPENT_MEMORY_KIB = 256 * 1024

# position, layout, worth trying
FIELDS: list[tuple[int, str, int]] = [
    (0, ">q", 63), (8, ">i", 31), (12, ">i", 31), (16, ">b", 7), (17, ">i", 31), (21, ">h", 15), (23, ">i", 31),
    (27, ">q", 63), (35, ">q", 63), (43, ">q", 63), (51, ">h", 15), (53, ">i", 31), (57, ">i", 31),
]  # fmt: skip


@cache
def corpus() -> list[bytes]:
    batches = [batch_of(records, codec) for codec in Codec for records in (mixed_records()[:8], plain_records(40))]
    small = [Record(0, 5, b"k", b"v"), Record(1, 5, None, None, ((b"h", b"x"),))]
    batches += [batch_of(small, codec) for codec in Codec]
    builder = BatchBuilder(BatchOptions(producer_id=4, producer_epoch=0, base_sequence=0, transactional=True))
    builder.extend(plain_records(3))
    batches.append(bytes(builder.finish()))
    stamped = builder.finish()
    stamp_log_append_time(stamped, 0, 77)
    batches.append(bytes(stamped))
    marker = EndTransactionMarker(committed=False, coordinator_epoch=1)
    batches.append(bytes(build_end_transaction_marker(marker, producer_id=4, producer_epoch=0, timestamp_ms=5)))
    batches.append(bytes(build_control_batch([(ControlType.LEADER_CHANGE, b"value")], timestamp_ms=5)))
    return batches


def change_bytes(rng: random.Random, data: bytearray, start: int) -> None:
    """Flip, set, insert, drop or repeat bytes from `start` on; varints and lengths suffer most from 0x80 and 0xff."""
    for _ in range(rng.choice([1, 1, 2, 5])):
        if len(data) <= start:
            return
        at = rng.randrange(start, len(data))
        match rng.randrange(6):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF])
            case 2:
                data[at:at] = rng.choice([b"\x80" * 12, b"\xff" * 5, b"\xfe\xff\xff\xff\x0f", b"\0", rng.randbytes(3)])
            case 3:
                del data[at : at + rng.randrange(1, 20)]
            case 4:
                data[at:at] = data[at : at + rng.randrange(1, 200)]
            case _:
                data[at : at + 5] = rng.choice(
                    [b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x08"]
                )


def mutated(rng: random.Random) -> bytes:
    batch = bytearray(rng.choice(corpus()))
    match rng.randrange(6):
        case 0:
            change_bytes(rng, batch, 0)
        case 1:
            del batch[rng.randrange(len(batch)) :]
        case 2:
            position, layout, bits = rng.choice(FIELDS)
            value = rng.choice(
                [0, 1, -1, 2**bits - 1, -(2**bits), rng.getrandbits(bits), rng.getrandbits(min(bits, 7))]
            )
            struct.pack_into(layout, batch, position, value)
        case 3 | 4:  # the records inside, under whatever compression
            header = read_header(batch)
            body = bytearray(read_body(batch, 0, header))
            change_bytes(rng, body, 0)
            batch[61:] = compress(header.codec, body)
            if rng.random() < 0.2:
                struct.pack_into(">i", batch, 57, rng.choice([0, 1, header.record_count + 1, 2**31 - 1]))
        case _:
            batch += rng.choice(corpus())
            change_bytes(rng, batch, 61)
    if rng.random() < 0.8 and len(batch) > 61:  # let the bytes past the first two checks
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        struct.pack_into(">I", batch, 17, compute_crc(batch, 0, len(batch)))
    return bytes(batch)


def int64(value: int) -> int:
    """As Java's longs and numpy's have it: beyond the largest comes the smallest."""
    return (value + 2**63) % 2**64 - 2**63


def both_readers_agree(case: bytes) -> None:
    by_record: list[Record] | None = None
    by_column: list[Record] | None = None
    lowest = -(2**63)
    try:
        by_record = [
            record._replace(offset=int64(record.offset), timestamp=int64(record.timestamp))
            for position, header, visible in iter_fetched(case, lowest, check_crcs=False)
            if visible
            for record in iter_records(case, position, header, MAX_BYTES)
        ]
    except DecompressedTooLarge:
        return
    except RecordsError:
        pass
    with suppress(RecordsError):
        by_column = as_records(read_columns(case, lowest, with_headers=True, check_crcs=False, max_bytes=4 * MAX_BYTES))
    assert by_column == by_record


COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}), max_decompressed_bytes=MAX_BYTES)


def check_as_leader(case: bytes, position: int, header: BatchHeader) -> None:
    """The log's own checks, where it must look at every record."""
    with suppress(LogError):
        validate_for_leader(
            bytearray(case[position : position + header.size_bytes]), COMPACTED, AppendOrigin.CLIENT, 2**60
        )


READERS: list[Callable[[bytes, int, BatchHeader], object]] = [
    check_crc,
    check_as_leader,
    read_control_records,
    read_end_transaction_marker,
    lambda case, position, header: recompress(case, position, Codec.LZ4, max_bytes=MAX_BYTES),
]


def read_every_way(case: bytes) -> None:
    with suppress(RecordsError):
        for position, header in iter_batches(case):
            for reader in READERS:
                with suppress(RecordsError):
                    reader(case, position, header)
    with suppress(RecordsError):
        read_header(case)
    with suppress(RecordsError):
        list(iter_fetched(case, 1, [(4, 0)]))
    both_readers_agree(case)


def run(cases: int, make: Callable[[random.Random], bytes], use: Callable[[bytes], object]) -> None:
    rng = random.Random(random.getrandbits(64))
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(cases):
        case = make(rng)
        try:
            use(case)
        except BaseException as error:
            raise AssertionError(f"bytes.fromhex({case.hex()!r})") from error
    spent_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert spent_kib < SPENT_MEMORY_KIB


@pytest.mark.parametrize("shard", range(SHARDS))
def test_mutated_batches(shard: int) -> None:
    run(CASES // SHARDS, mutated, read_every_way)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_mutated_streams(codec: Codec) -> None:
    text = b"".join(record.value or b"" for record in plain_records(200))
    streams = [compress(codec, data) for data in (b"", b"x", text, bytes(300_000))]
    if codec is Codec.SNAPPY:
        streams.append(bytes(cramjam.snappy.compress_raw(text)))

    def make(rng: random.Random) -> bytes:
        stream = bytearray(rng.choice(streams) + rng.choice([b"", b"", rng.choice(streams)]))
        change_bytes(rng, stream, 0)
        return bytes(stream)

    def use(stream: bytes) -> None:
        with suppress(RecordsError):
            assert len(decompress(codec, stream, MAX_BYTES)) <= MAX_BYTES

    run(CASES // 10, make, use)


def test_random_bytes() -> None:
    run(CASES // 10, lambda rng: rng.randbytes(rng.choice([0, 11, 12, 60, 61, 62, 200])), read_every_way)
