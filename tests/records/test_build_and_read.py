"""What is built is what is read, whatever the records look like."""

import struct
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.records import (
    HEADER_BYTES,
    BatchBuilder,
    BatchOptions,
    Codec,
    CorruptBatch,
    DecompressedTooLarge,
    InvalidRecord,
    Record,
    build_batch,
    check_crc,
    empty_batch,
    iter_records,
    read_header,
    recompress,
    renew_crc,
)
from moldau.records.varint import encode_varint, read_varint, read_varlong
from tests.records.samples import NOW_MS, batch_of, mixed_records, plain_records, read, record_lists, unhurried


@unhurried
@given(record_lists(), st.sampled_from(Codec))
def test_built_records_are_read_back(records: list[Record], codec: Codec) -> None:
    batch = batch_of(records, codec)
    header = read_header(batch)
    check_crc(batch, 0, header)
    assert read(batch) == records
    assert header.record_count == len(records)
    assert header.max_timestamp == max((record.timestamp for record in records), default=-1)
    if records:
        assert header.last_offset == records[-1].offset
        assert header.base_timestamp == records[0].timestamp


@unhurried
@given(record_lists(min_size=1))
def test_appending_one_by_one_gives_the_same_batch(records: list[Record]) -> None:
    numbered = [record._replace(offset=index) for index, record in enumerate(records)]
    builder = BatchBuilder()
    for record in numbered:
        assert builder.append(record.timestamp, record.key, record.value, record.headers) == record.offset
    assert builder.finish() == build_batch(numbered)


@pytest.mark.parametrize("codec", Codec)
def test_every_kind_of_record(codec: Codec) -> None:
    records = mixed_records(base_offset=2**40)
    assert read(batch_of(records, codec)) == records


def test_one_record_by_hand() -> None:
    """Spelled out from the protocol documentation."""
    batch = build_batch([Record(300, NOW_MS - 1, b"k", None, ((b"h", b"vv"),))], BatchOptions(base_offset=100))
    body = b"\x00" + b"\x00" + b"\x90\x03" + b"\x02k" + b"\x01" + b"\x02" + b"\x02h" + b"\x04vv"
    assert bytes(batch[HEADER_BYTES:]) == bytes([len(body) * 2]) + body
    assert read_header(batch).last_offset_delta == 200


@pytest.mark.parametrize("count", [1, 255, 256, 257, 512, 9000])
def test_any_number_of_records(count: int) -> None:
    records = plain_records(count)
    assert read(batch_of(records)) == records


def test_reading_is_lazy() -> None:
    batch = bytearray(batch_of(plain_records(1000)))
    batch[-1] = 0xFF  # the last record is broken, the first ones are not
    records = iter_records(batch)
    assert list(islice(records, 500)) == plain_records(500)
    with pytest.raises(CorruptBatch):
        list(records)


def test_records_in_the_middle_of_a_buffer() -> None:
    first, second = batch_of(plain_records(3)), batch_of(plain_records(4, base_offset=3), Codec.ZSTD)
    for kind in (bytes, bytearray, memoryview):
        assert list(iter_records(kind(first + second), len(first))) == plain_records(4, base_offset=3)


def test_expansion_is_bounded() -> None:
    batch = batch_of(plain_records(1000), Codec.ZSTD)
    assert len(list(iter_records(batch, max_bytes=200_000))) == 1000
    with pytest.raises(DecompressedTooLarge):
        iter_records(batch, max_bytes=20_000)


def test_half_a_batch_is_not_read() -> None:
    with pytest.raises(CorruptBatch, match="only"):
        iter_records(batch_of(plain_records(3))[:-1])


@pytest.mark.parametrize("change", [-1, 1, 1000, 2**31 - 4])
def test_the_record_count_must_be_right(change: int) -> None:
    batch = bytearray(batch_of(plain_records(3)))
    struct.pack_into(">i", batch, 57, 3 + change)
    with pytest.raises(CorruptBatch):
        read(bytes(batch))


def test_offsets_must_grow_and_nothing_changes_if_they_do_not() -> None:
    builder = BatchBuilder(BatchOptions(base_offset=10))
    builder.append(NOW_MS, b"k", b"v")
    before = builder.finish(), builder.size_bytes, builder.record_count, builder.next_offset
    for offset in (9, 10):
        with pytest.raises(InvalidRecord, match="must grow"):
            builder.extend([Record(15, NOW_MS, b"fine", b""), Record(offset, NOW_MS, b"", b"")])
    assert (builder.finish(), builder.size_bytes, builder.record_count, builder.next_offset) == before
    with pytest.raises(InvalidRecord, match="must grow"):
        build_batch([Record(9, NOW_MS, b"", b"")], BatchOptions(base_offset=10))


def test_size_is_known_before_the_end() -> None:
    builder = BatchBuilder()
    assert builder.size_bytes == HEADER_BYTES
    for record in mixed_records():
        builder.append(record.timestamp, record.key, record.value, record.headers)
        assert builder.size_bytes == len(builder.finish())
    assert builder.record_count == builder.next_offset == len(mixed_records())


def test_the_cleaner_keeps_the_range_of_offsets() -> None:
    original = read_header(batch_of(plain_records(10, base_offset=100)))
    survivors = [record for record in plain_records(10, base_offset=100) if record.offset in (103, 107)]
    builder = BatchBuilder(BatchOptions(base_offset=original.base_offset, delete_horizon_ms=NOW_MS + 999))
    builder.extend(survivors)
    batch = builder.finish(last_offset=original.last_offset)
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.record_count) == (100, 109, 2)
    assert header.delete_horizon_ms == NOW_MS + 999
    assert read(bytes(batch)) == survivors
    with pytest.raises(InvalidRecord, match="last offset 106"):
        builder.finish(last_offset=106)
    with pytest.raises(InvalidRecord, match="last offset"):
        builder.finish(last_offset=100 + 2**31)


@pytest.mark.parametrize("codec", Codec)
def test_an_emptied_batch_keeps_its_producer(codec: Codec) -> None:
    builder = BatchBuilder(
        BatchOptions(codec=codec, producer_id=7, producer_epoch=1, base_sequence=5, transactional=True, leader_epoch=3)
    )
    builder.extend(plain_records(20))
    original = read_header(builder.finish())
    batch = empty_batch(original)
    header = read_header(batch)
    check_crc(batch, 0, header)
    assert len(batch) == HEADER_BYTES
    assert read(bytes(batch)) == []
    assert header.codec is Codec.NONE
    for name in ("last_offset", "last_sequence", "producer_id", "producer_epoch", "max_timestamp", "leader_epoch"):
        assert getattr(header, name) == getattr(original, name)
    assert header.is_transactional
    assert header.base_timestamp == -1


def test_an_empty_builder_makes_a_batch_of_one_offset() -> None:
    batch = BatchBuilder(BatchOptions(base_offset=4, codec=Codec.ZSTD)).finish()
    header = read_header(batch)
    assert (header.base_offset, header.last_offset, header.record_count) == (4, 4, 0)
    assert (header.base_timestamp, header.max_timestamp) == (-1, -1)
    assert read(bytes(batch)) == []


@pytest.mark.parametrize("source", Codec)
@pytest.mark.parametrize("target", Codec)
def test_recompression_changes_nothing_else(source: Codec, target: Codec) -> None:
    builder = BatchBuilder(BatchOptions(codec=source, producer_id=7, producer_epoch=1, base_sequence=5))
    builder.extend(mixed_records())
    original = builder.finish()
    batch = recompress(b"??" + original, 2, target)
    header, before = read_header(batch), read_header(original)
    check_crc(batch, 0, header)
    assert read(bytes(batch)) == mixed_records()
    assert header.codec is target
    changed = {"batch_length", "crc", "attributes"}
    assert {name for name in header._fields if getattr(header, name) != getattr(before, name)} <= changed


def test_log_append_time_of_a_built_batch() -> None:
    builder = BatchBuilder(BatchOptions(log_append_time_ms=NOW_MS + 7))
    for delta in (0, 5, 100_000):
        builder.append(NOW_MS + delta, b"k", b"v")
    assert [record.timestamp for record in iter_records(builder.finish())] == [NOW_MS + 7] * 3


@given(st.integers(-(2**31), 2**31 - 1))
def test_varints(value: int) -> None:
    encoded = encode_varint(value)
    assert read_varint(encoded + b"\xff", 0) == (value, len(encoded))
    assert read_varlong(encoded + b"\xff", 0) == (value, len(encoded))
    assert len(encoded) <= 5


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlongs(value: int) -> None:
    encoded = encode_varint(value)
    assert read_varlong(b"\xff" + encoded, 1) == (value, 1 + len(encoded))
    assert len(encoded) <= 10


@pytest.mark.parametrize("encoded", [b"\xff" * 5, b"\x80\x80\x80\x80\x10", b"\xff" * 20])
def test_varints_that_are_too_long(encoded: bytes) -> None:
    with pytest.raises(CorruptBatch, match="int32"):
        read_varint(encoded, 0)


@pytest.mark.parametrize("encoded", [b"\xff" * 10, b"\x80" * 9 + b"\x02", b"\xff" * 20])
def test_varlongs_that_are_too_long(encoded: bytes) -> None:
    with pytest.raises(CorruptBatch, match="int64"):
        read_varlong(encoded, 0)


def with_body(body: bytes, count: int = 1) -> bytes:
    """A batch with a valid CRC around any records section."""
    batch = bytearray(batch_of([]) + body)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 57, count)
    renew_crc(batch, 0)
    return bytes(batch)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"\x0c\0\0\0\x02k\x01\0", "declared length too short"),
        (b"\x10\0\0\0\x02k\x01\0", "declared length too long"),
        (b"\x0d\0\0\0\x02k\x01\0", "negative record length"),
        (b"\x0e\0\0\0\x02k\x01", "cut off"),
        (b"\x0e\0\0\x01\x02k\x01\0", "negative offset delta"),
        (b"\x0e\0\0\0\x02k\x10\0", "value longer than the record"),
        (b"\x0e\0\0\0\x02k\x01\x01", "negative header count"),
        (b"\x0e\0\0\0\x02k\x01\x02", "headers announced, none there"),
        (b"\x12\0\0\0\x02k\x01\x02\x01\x01", "header without a name"),
        (b"\x12\0\0\0\x02k\x01\x02\x00\x08", "header value beyond the batch"),
        (b"\x0e\0\0\0\xff\xff\xff\xff\x0f", "key of two gigabytes"),
        (b"\xfe\xff\xff\xff\x0f\0\0\0\x01\x01\0", "record of two gigabytes"),
        (b"\xff\xff\xff\xff\x0f\0\0\0\x01\x01\0", "record of minus two gigabytes"),
        (b"\x00" * 8, "record of no bytes"),
    ],
)
def test_records_that_do_not_add_up(body: bytes, what: str) -> None:
    good = b"\x0e\0\0\0\x02k\x01\0"
    assert read(with_body(good)) == [Record(0, -1, b"k", None)]
    with pytest.raises(CorruptBatch):
        pytest.fail(f"{what}: {read(with_body(body))}")


def test_every_negative_length_means_null_as_in_kafka() -> None:
    assert read(with_body(b"\x0c\0\0\0\x05\x03\0")) == [Record(0, -1, None, None)]
    assert read(with_body(b"\x10\0\0\0\x81\x01\x81\x01\0")) == [Record(0, -1, None, None)]
