"""The cleaner's reader against the real one, on any records and on damaged bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.log.cleaner.scan import SHORT_KEY_BYTES, rebuild, scan_records
from moldau.records import BatchOptions, Codec, CorruptBatch, build_batch, check_crc, iter_records, read_header
from moldau.records.reader import RecordTuple, read_body

fields = st.one_of(st.none(), st.binary(max_size=200))
headers = st.lists(st.tuples(st.binary(max_size=5), fields), max_size=2).map(tuple)
batches = st.lists(
    st.tuples(st.integers(1, 300), st.integers(0, 2**41), fields, fields, headers), min_size=1, max_size=12
)


def build(
    steps: list[tuple[int, int, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]],
) -> bytearray:
    records: list[RecordTuple] = []
    offset = 1000
    for step, timestamp, key, value, record_headers in steps:
        offset += step
        records.append((offset, timestamp, key, value, record_headers))
    return build_batch(records, BatchOptions(base_offset=1000, codec=Codec.NONE))


@given(steps=batches, keep=st.integers(0, 2**12))
def test_what_is_kept_is_kept_unchanged(
    steps: list[tuple[int, int, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]], keep: int
) -> None:
    batch = build(steps)
    header = read_header(batch)
    body = read_body(batch, 0, header)
    expected = list(iter_records(batch, 0, header))
    scanned = scan_records(body, header.record_count, header.base_offset)
    assert scanned.marks == [2 * r.offset + (r.value is None) for r in expected]
    assert scanned.keys == [r.key for r in expected]
    assert [header.base_timestamp + delta for delta in scanned.timestamp_deltas] == [r.timestamp for r in expected]
    assert scanned.odd_keys == [i for i, r in enumerate(expected) if r.key is None or len(r.key) > SHORT_KEY_BYTES]
    kept = [bool(keep >> index & 1) for index in range(len(expected))]
    chosen = [index for index in range(len(expected)) if kept[index]]
    if chosen:
        rebuilt = rebuild(header, scanned, kept)
        after = read_header(rebuilt)
        check_crc(rebuilt, 0, after)
        assert list(iter_records(rebuilt, 0, after)) == [expected[index] for index in chosen]
        assert (after.base_offset, after.last_offset) == (header.base_offset, header.last_offset)
        assert after.max_timestamp == max(expected[index].timestamp for index in chosen)


@given(steps=batches, position=st.integers(0, 10_000), value=st.integers(0, 255))
def test_damaged_bytes_end_in_one_exception(
    steps: list[tuple[int, int, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]],
    position: int,
    value: int,
) -> None:
    batch = build(steps)
    header = read_header(batch)
    body = bytearray(read_body(batch, 0, header))
    body[position % len(body)] = value
    try:
        scanned = scan_records(bytes(body), header.record_count, 0)
    except CorruptBatch:
        return
    assert scanned.ends[-1] == len(body)
    assert scanned.ends == sorted(set(scanned.ends))
    assert min(scanned.marks) >= 0


def test_missing_and_extra_bytes() -> None:
    batch = build([(1, 5, b"key", b"value", ()), (1, 6, None, None, ())])
    body = read_body(batch, 0, read_header(batch))
    for damaged, count in ((body[:-1], 2), (body + b"\0", 2), (body, 1), (body, 3), (b"", 1), (b"\1" * 20, 1)):
        with pytest.raises(CorruptBatch):
            scan_records(damaged, count, 0)
