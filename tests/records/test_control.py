"""Control batches: transaction markers and KRaft's records."""

import pytest

from moldau.records import (
    BatchBuilder,
    BatchOptions,
    ControlType,
    CorruptBatch,
    EndTransactionMarker,
    Record,
    build_control_batch,
    build_end_transaction_marker,
    check_crc,
    control_key,
    empty_batch,
    iter_records,
    read_control_records,
    read_control_type,
    read_end_transaction_marker,
    read_header,
)
from tests.records.samples import NOW_MS, batch_of


def control_batch_of(key: bytes | None, value: bytes | None) -> bytearray:
    builder = BatchBuilder(BatchOptions(control=True, transactional=True, producer_id=1, producer_epoch=0))
    builder.append(NOW_MS, key, value)
    return builder.finish()


@pytest.mark.parametrize("committed", [True, False])
def test_markers_are_read_back(committed: bool) -> None:
    marker = EndTransactionMarker(committed, coordinator_epoch=12)
    batch = build_end_transaction_marker(
        marker, producer_id=2**40, producer_epoch=3, timestamp_ms=NOW_MS, base_offset=55, leader_epoch=6
    )
    header = read_header(batch)
    check_crc(batch, 0, header)
    assert read_end_transaction_marker(batch, 0) == read_end_transaction_marker(batch, 0, header) == marker
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 3, -1)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (55, 55, 6)
    assert header.max_timestamp == NOW_MS


def test_a_marker_has_kafkas_bytes() -> None:
    batch = build_end_transaction_marker(
        EndTransactionMarker(committed=True, coordinator_epoch=258), producer_id=1, producer_epoch=0, timestamp_ms=0
    )
    assert list(iter_records(batch)) == [Record(0, 0, b"\0\0\0\1", b"\0\0\0\0\1\2")]


def test_types_have_kafkas_numbers() -> None:
    assert {each.name: int(each) for each in ControlType} == {
        "UNKNOWN": -1,
        "ABORT": 0,
        "COMMIT": 1,
        "LEADER_CHANGE": 2,
        "SNAPSHOT_HEADER": 3,
        "SNAPSHOT_FOOTER": 4,
        "KRAFT_VERSION": 5,
        "KRAFT_VOTERS": 6,
    }


def test_several_control_records_in_one_batch() -> None:
    values = [(ControlType.LEADER_CHANGE, b"leader"), (ControlType.KRAFT_VOTERS, b"voters")]
    batch = build_control_batch(values, timestamp_ms=NOW_MS, base_offset=9, leader_epoch=4)
    header = read_header(batch)
    assert (header.is_control, header.is_transactional, header.producer_id) == (True, False, -1)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (9, 10, 4)
    assert [(kind, record.value) for kind, record in read_control_records(batch, 0)] == values
    assert read_end_transaction_marker(batch, 0) is None


def test_types_of_a_newer_kafka_are_unknown_not_wrong() -> None:
    batch = control_batch_of(b"\0\1\0\x63and more", b"")
    assert read_control_type(b"\0\1\0\x63and more") is ControlType.UNKNOWN
    assert read_end_transaction_marker(batch, 0) is None


def test_an_emptied_marker_is_no_marker() -> None:
    batch = build_end_transaction_marker(
        EndTransactionMarker(committed=False, coordinator_epoch=0), producer_id=1, producer_epoch=0, timestamp_ms=0
    )
    assert read_end_transaction_marker(empty_batch(read_header(batch)), 0) is None


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\0"])
def test_bad_keys(key: bytes | None) -> None:
    with pytest.raises(CorruptBatch, match="key"):
        read_end_transaction_marker(control_batch_of(key, b"\0\0\0\0\0\0"), 0)


@pytest.mark.parametrize("value", [None, b"", b"\0\0\0\0\0", b"\xff\xff\0\0\0\0"])
def test_bad_values(value: bytes | None) -> None:
    with pytest.raises(CorruptBatch, match="value"):
        read_end_transaction_marker(control_batch_of(control_key(ControlType.ABORT), value), 0)


def test_data_batches_say_so() -> None:
    assert not read_header(batch_of([Record(0, 0, b"", b"")])).is_control
