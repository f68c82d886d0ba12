"""Headers, checksums, and the fields that are rewritten in place."""

import struct

import pytest

from moldau.records import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchBuilder,
    BatchHeader,
    BatchOptions,
    Codec,
    CorruptBatch,
    UnsupportedCompression,
    check_crc,
    iter_batches,
    read_header,
    renew_crc,
    set_max_timestamp,
    set_producer,
    stamp,
    stamp_log_append_time,
)
from moldau.records.batch import MAX_SEQUENCE
from tests.records.samples import NOW_MS, batch_of, plain_records, read


def header_with(**fields: int) -> BatchHeader:
    return read_header(batch_of(plain_records(3)))._replace(**fields)


def test_the_header_holds_what_was_asked_for() -> None:
    builder = BatchBuilder(
        BatchOptions(
            base_offset=70,
            codec=Codec.LZ4,
            leader_epoch=5,
            producer_id=9,
            producer_epoch=2,
            base_sequence=11,
            transactional=True,
        )
    )
    builder.extend(plain_records(10, base_offset=70))
    batch = builder.finish()
    header = read_header(batch)
    assert header.base_offset == 70
    assert header.last_offset == 79
    assert header.next_offset == 80
    assert header.size_bytes == len(batch) == LOG_OVERHEAD_BYTES + header.batch_length
    assert (header.leader_epoch, header.magic, header.codec) == (5, 2, Codec.LZ4)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 11)
    assert header.last_sequence == 20
    assert header.is_transactional
    assert not header.is_control
    assert not header.is_log_append_time
    assert header.delete_horizon_ms is None
    assert (header.base_timestamp, header.max_timestamp, header.record_count) == (NOW_MS, NOW_MS, 10)


def test_fields_are_where_kafka_has_them() -> None:
    # Written down from the protocol documentation, not from our own constants.
    batch = struct.pack(
        ">qiibIhiqqqhii", 1, 49, 2, 2, 0xDEADBEEF, 0b1111_1100, 3, 10, 20, 30, 4, 5, 6
    )  # attributes: zstd, append time, transactional, control, delete horizon
    header = read_header(batch)
    assert header == BatchHeader(1, 49, 2, 2, 0xDEADBEEF, 0b1111_1100, 3, 10, 20, 30, 4, 5, 6)
    assert header.codec is Codec.ZSTD
    assert header.is_log_append_time
    assert header.is_transactional
    assert header.is_control
    assert header.delete_horizon_ms == 10


@pytest.mark.parametrize(
    ("base_sequence", "last_offset_delta", "expected"),
    [(-1, 5, -1), (0, 0, 0), (MAX_SEQUENCE - 1, 1, MAX_SEQUENCE), (MAX_SEQUENCE, 1, 0), (MAX_SEQUENCE - 2, 5, 2)],
)
def test_sequences_wrap_to_zero(base_sequence: int, last_offset_delta: int, expected: int) -> None:
    header = header_with(base_sequence=base_sequence, last_offset_delta=last_offset_delta)
    assert header.last_sequence == expected


def test_unknown_compression_types_are_refused() -> None:
    with pytest.raises(UnsupportedCompression, match="5"):
        _ = header_with(attributes=5).codec


@pytest.mark.parametrize(
    ("position", "layout", "value", "complaint"),
    [
        (8, ">i", 48, "batch length 48"),
        (8, ">i", -1, "batch length -1"),
        (16, ">b", 1, "magic 1"),
        (23, ">i", -1, "last offset delta"),
        (57, ">i", -1, "record count"),
    ],
)
def test_impossible_headers_are_corrupt(position: int, layout: str, value: int, complaint: str) -> None:
    batch = bytearray(batch_of(plain_records(2)))
    struct.pack_into(layout, batch, position, value)
    with pytest.raises(CorruptBatch, match=complaint):
        read_header(batch)
    with pytest.raises(CorruptBatch, match="batch length" if position == 8 else complaint):
        list(iter_batches(batch))


def test_a_header_needs_all_its_bytes() -> None:
    batch = batch_of(plain_records(1))
    assert read_header(batch[:HEADER_BYTES]).record_count == 1
    for size in (0, 1, HEADER_BYTES - 1):
        with pytest.raises(CorruptBatch, match="too few"):
            read_header(batch[:size])
    with pytest.raises(CorruptBatch, match="too few"):
        read_header(batch, len(batch) + 1)
    with pytest.raises(CorruptBatch, match="too few"):
        read_header(batch, -1)


def test_whole_batches_are_found_and_a_partial_one_ends_the_search() -> None:
    first, second = batch_of(plain_records(3)), batch_of(plain_records(5, base_offset=3))
    both = first + second
    assert [(position, header.base_offset) for position, header in iter_batches(both)] == [(0, 0), (len(first), 3)]
    assert [position for position, _ in iter_batches(both, len(first))] == [len(first)]
    for cut in range(len(first), len(both)):
        assert [position for position, _ in iter_batches(both[:cut])] == [0]
    for cut in range(len(first)):
        assert list(iter_batches(first[:cut])) == []


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(kind: type) -> None:
    batch = kind(b"junk" + batch_of(plain_records(4)))
    ((position, header),) = iter_batches(batch, 4)
    check_crc(batch, position, header)
    assert header.record_count == 4


def test_every_flipped_bit_behind_the_crc_is_noticed() -> None:
    batch = bytearray(batch_of(plain_records(3)))
    header = read_header(batch)
    check_crc(batch, 0, header)
    for position in range(17, len(batch)):
        batch[position] ^= 0x10
        with pytest.raises(CorruptBatch):
            check_crc(batch, 0, read_header(batch))
        batch[position] ^= 0x10
    check_crc(batch, 0, header)


def test_the_crc_of_a_partial_batch_is_not_computed() -> None:
    batch = batch_of(plain_records(3))
    with pytest.raises(CorruptBatch, match="only"):
        check_crc(batch[:-1], 0, read_header(batch))


def test_stamping_keeps_the_crc_and_all_else() -> None:
    batch = bytearray(b"before" + batch_of(plain_records(3)) + b"after")
    before = read_header(batch, 6)
    stamp(batch, 6, 2**50, 77)
    after = read_header(batch, 6)
    assert after == before._replace(base_offset=2**50, leader_epoch=77)
    check_crc(batch, 6, after)
    assert batch[:6] == b"before"
    assert batch[-5:] == b"after"


@pytest.mark.parametrize("codec", Codec)
def test_log_append_time_replaces_every_timestamp(codec: Codec) -> None:
    batch = bytearray(batch_of(plain_records(30), codec))
    stamp_log_append_time(batch, 0, NOW_MS + 5000)
    header = read_header(batch)
    check_crc(batch, 0, header)
    assert header.is_log_append_time
    assert header.max_timestamp == NOW_MS + 5000
    assert header.codec is codec
    assert {record.timestamp for record in read(bytes(batch))} == {NOW_MS + 5000}


def test_the_largest_create_time_can_be_corrected() -> None:
    batch = bytearray(batch_of(plain_records(30)))
    stamp_log_append_time(batch, 0, 1)
    set_max_timestamp(batch, 0, NOW_MS + 2)
    header = read_header(batch)
    check_crc(batch, 0, header)
    assert not header.is_log_append_time
    assert header.max_timestamp == NOW_MS + 2
    assert read(bytes(batch)) == plain_records(30)
    once = bytes(batch)
    set_max_timestamp(batch, 0, NOW_MS + 2)
    assert batch == once


def test_a_producer_can_be_put_on_a_finished_batch() -> None:
    batch = bytearray(batch_of(plain_records(2)))
    set_producer(batch, 0, producer_id=2**40, producer_epoch=3, base_sequence=4)
    header = read_header(batch)
    check_crc(batch, 0, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 3, 4)


def test_no_crc_for_bytes_that_are_not_there() -> None:
    batch = bytearray(batch_of(plain_records(2)))
    with pytest.raises(CorruptBatch, match="only"):
        renew_crc(batch[:-1], 0)
