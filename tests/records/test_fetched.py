"""What a consumer may see of the bytes a broker sends."""

import pytest

from moldau.records import (
    AbortedTransaction,
    BatchBuilder,
    BatchOptions,
    CorruptBatch,
    EndTransactionMarker,
    build_end_transaction_marker,
    iter_fetched,
)
from tests.records.samples import batch_of, plain_records


def data(base_offset: int, count: int, producer_id: int = -1, *, transactional: bool = False) -> bytes:
    builder = BatchBuilder(
        BatchOptions(base_offset=base_offset, producer_id=producer_id, producer_epoch=0, transactional=transactional)
    )
    builder.extend(plain_records(count, base_offset))
    return bytes(builder.finish())


def marker(offset: int, producer_id: int, *, committed: bool) -> bytes:
    return bytes(
        build_end_transaction_marker(
            EndTransactionMarker(committed, 0),
            producer_id=producer_id,
            producer_epoch=0,
            timestamp_ms=0,
            base_offset=offset,
        )
    )


# Producer 1 aborts at 5 and commits at 9; producer 2's transaction is open between; producer 3 has none.
LOG = b"".join([
    data(0, 2, 1, transactional=True),
    data(2, 1, 2, transactional=True),
    data(3, 2, 1, transactional=True),
    marker(5, 1, committed=False),
    data(6, 1, 3),
    data(7, 2, 1, transactional=True),
    marker(9, 1, committed=True),
    marker(10, 2, committed=False),
    data(11, 1, 2, transactional=True),
])  # fmt: skip


def visible(fetch_offset: int, aborted: list[tuple[int, int]]) -> list[int]:
    return [batch.header.base_offset for batch in iter_fetched(LOG, fetch_offset, aborted) if batch.visible]


def test_without_a_list_of_aborted_transactions_all_data_is_visible() -> None:
    assert visible(0, []) == [0, 2, 3, 6, 7, 11]


@pytest.mark.parametrize("aborted", [[(1, 0), (2, 2)], [(2, 2), (1, 0)]])
def test_aborted_data_is_hidden_up_to_its_marker(aborted: list[tuple[int, int]]) -> None:
    assert visible(0, aborted) == [6, 7, 11]


def test_a_transaction_that_starts_later_hides_nothing_earlier() -> None:
    assert visible(0, [AbortedTransaction(1, 3)]) == [0, 2, 6, 7, 11]


def test_records_without_transaction_stay_visible() -> None:
    assert visible(0, [(3, 0)]) == [0, 2, 3, 6, 7, 11]


def test_whole_batches_below_the_fetch_offset_are_left_out() -> None:
    offsets = [batch.header.base_offset for batch in iter_fetched(LOG, 4)]
    assert offsets == [3, 5, 6, 7, 9, 10, 11]


def test_a_marker_in_the_skipped_part_does_not_end_a_later_transaction() -> None:
    # From offset 7 on, producer 1 is listed once more: its abort marker at 5 was for another transaction.
    assert visible(7, [(1, 7)]) == [11]


def test_crcs_are_checked_unless_told_otherwise() -> None:
    broken = bytearray(batch_of(plain_records(2)))
    broken[-1] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        list(iter_fetched(broken))
    assert len(list(iter_fetched(broken, check_crcs=False))) == 1


def test_a_cut_off_batch_ends_the_fetch() -> None:
    assert [batch.header.base_offset for batch in iter_fetched(LOG[:-1])] == [0, 2, 3, 5, 6, 7, 9, 10]
