"""Columns hold exactly what reading record by record gives."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.records import (
    BatchBuilder,
    BatchOptions,
    Codec,
    CorruptBatch,
    DecompressedTooLarge,
    EndTransactionMarker,
    Record,
    build_end_transaction_marker,
    empty_batch,
    iter_fetched,
    iter_records,
    read_header,
    stamp_log_append_time,
)
from moldau.records.arrow import binary_array, to_arrow
from moldau.records.columns import read_columns
from tests.records.samples import NOW_MS, as_records, batch_of, mixed_records, plain_records, record_lists, unhurried


def from_arrow(batch: Any) -> list[Record]:
    batch.validate(full=True)
    rows = batch.set_column(1, "timestamp", batch.column("timestamp").view("int64")).to_pylist()
    return [
        Record(
            row["offset"],
            row["timestamp"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row.get("headers", [])),
        )
        for row in rows
    ]


def one_by_one(
    fetch: bytes, fetch_offset: int = 0, until_offset: int = 2**63, aborted: list[tuple[int, int]] | None = None
) -> list[Record]:
    return [
        record
        for batch in iter_fetched(fetch, fetch_offset, aborted or [])
        if batch.visible
        for record in iter_records(fetch, batch.position, batch.header)
        if fetch_offset <= record.offset < until_offset
    ]


@st.composite
def fetches(draw: st.DrawFn) -> bytes:
    """Some batches of every sort, one after the other, the last one perhaps cut off."""
    log = bytearray()
    offset = 0
    for _ in range(draw(st.integers(0, 4))):
        records = draw(record_lists())
        base_offset = offset
        shift = offset - records[0].offset if records else 0
        records = [record._replace(offset=record.offset + shift) for record in records]
        producer_id = draw(st.integers(1, 2))
        kind = draw(st.sampled_from(["plain", "plain", "transactional", "append time", "empty", "marker"]))
        if kind == "marker":
            marker = EndTransactionMarker(committed=draw(st.booleans()), coordinator_epoch=0)
            log += build_end_transaction_marker(
                marker, producer_id=producer_id, producer_epoch=0, timestamp_ms=NOW_MS, base_offset=offset
            )
            offset += 1
            continue
        transactional = kind == "transactional"
        builder = BatchBuilder(
            BatchOptions(
                base_offset=base_offset,
                codec=draw(st.sampled_from(Codec)),
                producer_id=producer_id if transactional else -1,
                producer_epoch=0,
                transactional=transactional,
            )
        )
        builder.extend(records)
        batch = builder.finish()
        if kind == "append time":
            stamp_log_append_time(batch, 0, NOW_MS + 1)
        if kind == "empty":
            batch = empty_batch(read_header(batch))
        log += batch
        offset = read_header(batch).next_offset
    cut = draw(st.sampled_from([0, 0, 1, 30, 62]))
    return bytes(log[: len(log) - cut])


@unhurried
@given(fetches(), st.data())
def test_columns_equal_records(fetch: bytes, data: st.DataObject) -> None:
    borders = [header.base_offset for _, header, _ in iter_fetched(fetch)]
    fetch_offset = data.draw(st.sampled_from([0, *borders]) | st.integers(0, 30))
    until_offset = data.draw(st.none() | st.sampled_from([0, *borders]) | st.integers(0, 60))
    aborted = data.draw(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 30)), max_size=2))
    expected = one_by_one(fetch, fetch_offset, 2**63 if until_offset is None else until_offset, aborted)
    columns = read_columns(fetch, fetch_offset, until_offset=until_offset, aborted=aborted, with_headers=True)
    assert as_records(columns) == expected
    assert from_arrow(to_arrow(columns)) == expected
    without = read_columns(fetch, fetch_offset, until_offset=until_offset, aborted=aborted)
    assert as_records(without) == [record._replace(headers=()) for record in expected]
    assert len(columns) == len(expected)


@pytest.mark.parametrize("codec", Codec)
def test_every_kind_of_record(codec: Codec) -> None:
    fetch = batch_of(mixed_records(7), codec) + batch_of(plain_records(9000, base_offset=18), codec)
    columns = read_columns(fetch, with_headers=True)
    assert as_records(columns) == mixed_records(7) + plain_records(9000, base_offset=18)
    assert from_arrow(to_arrow(columns)) == as_records(columns)
    assert columns.next_offset == 9018


def test_an_empty_fetch() -> None:
    columns = read_columns(b"", 41, with_headers=True)
    assert len(columns) == 0
    assert columns.next_offset == 41
    assert to_arrow(columns).num_rows == 0
    assert to_arrow(columns).schema == to_arrow(read_columns(batch_of(mixed_records()), with_headers=True)).schema


def test_the_next_offset_counts_what_is_hidden() -> None:
    builder = BatchBuilder(BatchOptions(base_offset=10, producer_id=5, producer_epoch=0, transactional=True))
    builder.extend(plain_records(3, base_offset=10))
    marker = EndTransactionMarker(committed=False, coordinator_epoch=0)
    log = bytes(builder.finish()) + bytes(
        build_end_transaction_marker(marker, producer_id=5, producer_epoch=0, timestamp_ms=0, base_offset=13)
    )
    assert len(read_columns(log, 10)) == 3
    hidden = read_columns(log, 10, aborted=[(5, 10)])
    assert len(hidden) == 0
    assert hidden.next_offset == 14
    assert read_columns(log, 10, until_offset=12).next_offset == 12
    assert read_columns(log, 10, until_offset=10).next_offset == 10


def test_arrow_has_headers_only_if_they_were_read() -> None:
    names = ["offset", "timestamp", "timestamp_type", "key", "value"]
    fetch = batch_of(mixed_records())
    assert to_arrow(read_columns(fetch)).schema.names == names
    assert to_arrow(read_columns(fetch, with_headers=True)).schema.names == [*names, "headers"]


def test_timestamp_types() -> None:
    stamped = bytearray(batch_of(plain_records(2)))
    stamp_log_append_time(stamped, 0, NOW_MS + 9)
    columns = read_columns(bytes(stamped) + batch_of(plain_records(3, base_offset=2)))
    assert columns.timestamp_types.tolist() == [1, 1, 0, 0, 0]
    assert columns.timestamps.tolist()[:3] == [NOW_MS + 9, NOW_MS + 9, NOW_MS]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(kind: type) -> None:
    assert as_records(read_columns(kind(batch_of(plain_records(4))))) == plain_records(4)


def test_all_batches_share_one_bound() -> None:
    fetch = batch_of(plain_records(100), Codec.ZSTD) + batch_of(plain_records(100, base_offset=100), Codec.ZSTD)
    size = len(batch_of(plain_records(100))) - 61
    assert len(read_columns(fetch, max_bytes=2 * size + 100)) == 200
    with pytest.raises(DecompressedTooLarge):
        read_columns(fetch, max_bytes=2 * size - 1)


def test_crcs_are_checked_unless_told_otherwise() -> None:
    fetch = bytearray(batch_of(plain_records(3)))
    fetch[-5] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        read_columns(fetch)
    assert len(read_columns(fetch, check_crcs=False)) == 3


def test_data_beyond_32_bits_becomes_large_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.records.arrow._MAX_INT32", 1000)
    columns = read_columns(batch_of(mixed_records()))
    values = binary_array(columns.data, columns.values)
    assert str(values.type) == "large_binary"
    assert values.to_pylist() == [record.value for record in mixed_records()]


def test_a_lying_record_count_is_noticed_before_it_costs_memory() -> None:
    batch = bytearray(batch_of(plain_records(3)))
    batch[57:61] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(CorruptBatch, match="cannot hold 2147483647 records"):
        read_columns(batch, check_crcs=False)


def test_columns_are_numbers_not_objects() -> None:
    columns = read_columns(batch_of(mixed_records()), with_headers=True)
    assert columns.headers is not None
    for array in (
        columns.offsets,
        columns.timestamps,
        columns.keys.starts,
        columns.keys.lengths,
        columns.values.starts,
        columns.values.lengths,
        columns.headers.offsets,
        columns.headers.names.starts,
    ):
        assert array.dtype == np.int64
    assert columns.timestamp_types.dtype == np.int8
