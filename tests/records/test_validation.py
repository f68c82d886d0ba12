"""What a leader refuses."""

from collections.abc import Sequence

import pytest

from moldau.records import (
    BatchHeader,
    CheckedRecords,
    Codec,
    CorruptBatch,
    DecompressedTooLarge,
    InvalidRecord,
    InvalidTimestamp,
    Record,
    RecordError,
    TimestampBounds,
    check_produced_header,
    check_produced_records,
    read_header,
)
from tests.records.samples import NOW_MS, batch_of, mixed_records, plain_records

GOOD = read_header(batch_of(plain_records(5)))


def check(
    records: Sequence[Record],
    codec: Codec = Codec.NONE,
    *,
    require_keys: bool = False,
    bounds: TimestampBounds | None = None,
    max_bytes: int = 2**20,
) -> CheckedRecords:
    batch = b"--" + batch_of(list(records), codec)
    header = read_header(batch, 2)
    return check_produced_records(
        batch, 2, header, require_keys=require_keys, timestamp_bounds=bounds, max_bytes=max_bytes
    )


@pytest.mark.parametrize(
    "header",
    [
        GOOD,
        GOOD._replace(producer_id=5, producer_epoch=0, base_sequence=0),
        GOOD._replace(producer_id=5, producer_epoch=0, base_sequence=3, attributes=0x10),
        GOOD._replace(leader_epoch=12),
    ],
)
def test_what_producers_send(header: BatchHeader) -> None:
    check_produced_header(header)


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        (GOOD._replace(base_offset=1), "base offset 0"),
        (GOOD._replace(record_count=0), "no records"),
        (GOOD._replace(record_count=6), "6 records"),
        (GOOD._replace(last_offset_delta=5), "6"),
        (GOOD._replace(attributes=0x20), "control"),
        (GOOD._replace(producer_id=5), "sequence -1"),
        (GOOD._replace(attributes=0x10), "producer id"),
    ],
)
def test_what_no_producer_sends(header: BatchHeader, complaint: str) -> None:
    with pytest.raises(InvalidRecord, match=complaint):
        check_produced_header(header)


@pytest.mark.parametrize("codec", Codec)
def test_the_largest_timestamp_and_where_it_is(codec: Codec) -> None:
    records = [
        Record(offset, NOW_MS + delta, b"k", b"v" * 100) for offset, delta in enumerate([0, 70, -100_000, 9000, 9000])
    ]
    assert check(records, codec) == CheckedRecords(NOW_MS + 9000, 3)
    assert check([record._replace(timestamp=-1) for record in records], codec) == CheckedRecords(-1, 4)


@pytest.mark.parametrize("codec", Codec)
def test_compacted_topics_need_keys(codec: Codec) -> None:
    check(plain_records(300), codec, require_keys=True)
    with pytest.raises(InvalidRecord, match="compacted") as caught:
        check(mixed_records(), codec, require_keys=True)
    assert not isinstance(caught.value, InvalidTimestamp)
    assert [error.batch_index for error in caught.value.record_errors] == [1, 3, 10]


def test_timestamps_out_of_bounds() -> None:
    records = [Record(offset, NOW_MS + delta, b"k", b"v") for offset, delta in enumerate([-11, -10, 0, 20, 21])]
    bounds = TimestampBounds(NOW_MS - 10, NOW_MS + 20)
    with pytest.raises(InvalidTimestamp, match=str(NOW_MS - 11)) as caught:
        check(records, bounds=bounds)
    assert [error.batch_index for error in caught.value.record_errors] == [0, 4]
    no_time = [Record(0, -1, b"k", b"v")]
    assert check(no_time, bounds=bounds) == CheckedRecords(-1, 0)


def test_the_first_bad_record_names_the_error() -> None:
    records = [Record(0, NOW_MS, None, b""), Record(1, 0, b"k", b"")]
    with pytest.raises(InvalidRecord) as caught:
        check(records, require_keys=True, bounds=TimestampBounds(NOW_MS, NOW_MS))
    assert type(caught.value) is InvalidRecord
    assert [error.batch_index for error in caught.value.record_errors] == [0, 1]
    with pytest.raises(InvalidTimestamp):
        check(
            [Record(0, 0, b"k", b""), Record(1, NOW_MS, None, b"")],
            require_keys=True,
            bounds=TimestampBounds(NOW_MS, NOW_MS),
        )


def test_offsets_must_be_consecutive() -> None:
    with pytest.raises(InvalidRecord) as caught:
        check([Record(0, 0, b"", b""), Record(2, 0, b"", b"")])
    assert caught.value.record_errors == (RecordError(1, "offset delta 2, not 1"),)


def test_the_list_of_errors_is_bounded() -> None:
    with pytest.raises(InvalidRecord) as caught:
        check([Record(offset, 0, None, b"") for offset in range(5000)], require_keys=True)
    assert len(caught.value.record_errors) == 100


def test_records_that_cannot_be_read() -> None:
    batch = bytearray(batch_of(plain_records(3)))
    batch[-1] = 7
    with pytest.raises(CorruptBatch):
        check_produced_records(batch, 0, read_header(batch))
    with pytest.raises(DecompressedTooLarge):
        check(plain_records(300), Codec.GZIP, max_bytes=1000)
