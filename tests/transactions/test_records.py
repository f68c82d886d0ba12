"""The bytes of `__transaction_state`. The expected ones were written by Apache Kafka 4.3.1's TransactionLog."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.transactions import TopicPartition, TransactionMetadata, TransactionState
from moldau.transactions.records import Loaded, decode, encode, encode_key, tombstone
from moldau.wire.primitives import MalformedFrame

_T0 = frozenset({TopicPartition("t", 0)})

_EMPTY = TransactionMetadata(
    "a", 1000, 0, 60_000, TransactionState.EMPTY, last_update_ms=1_700_000_000_000, previous_producer_id=1000
)
_ONGOING = TransactionMetadata(
    "a",
    1000,
    3,
    60_000,
    TransactionState.ONGOING,
    partitions=_T0,
    start_ms=1_700_000_000_001,
    last_update_ms=1_700_000_000_002,
    previous_producer_id=1000,
    client_transaction_version=2,
)
_PREPARE_COMMIT = TransactionMetadata(
    "a",
    1000,
    32_767,
    900_000,
    TransactionState.PREPARE_COMMIT,
    partitions=_T0,
    start_ms=1_700_000_000_001,
    last_update_ms=1_700_000_000_003,
    previous_producer_id=1000,
    next_producer_id=2000,
    client_transaction_version=2,
)
_COMPLETE_ABORT = TransactionMetadata(
    "a",
    2000,
    0,
    900_000,
    TransactionState.COMPLETE_ABORT,
    start_ms=1_700_000_000_001,
    last_update_ms=1_700_000_000_004,
    previous_producer_id=1000,
    client_transaction_version=2,
)


@pytest.mark.parametrize(
    ("metadata", "version", "expected"),
    [
        (_EMPTY, 0, "000000000000000003e800000000ea6000ffffffff0000018bcfe56800ffffffffffffffff"),
        (_EMPTY, 1, "000100000000000003e800000000ea6000000000018bcfe56800ffffffffffffffff01000800000000000003e8"),
        (
            _ONGOING,
            2,
            "000100000000000003e800030000ea60010202740200000000000000018bcfe568020000018bcfe56801"
            "02000800000000000003e802020002",
        ),
        (
            _PREPARE_COMMIT,
            2,
            "000100000000000003e87fff000dbba0020202740200000000000000018bcfe568030000018bcfe56801"
            "03000800000000000003e8010800000000000007d002020002",
        ),
        (
            _COMPLETE_ABORT,
            2,
            "000100000000000007d00000000dbba005010000018bcfe568040000018bcfe5680102000800000000000003e802020002",
        ),
    ],
)
def test_values_are_kafkas(metadata: TransactionMetadata, version: int, expected: str) -> None:
    record = encode(metadata, version)
    assert record.value is not None
    assert record.value.hex() == expected
    if version > 0:
        assert decode(record.key, record.value) == Loaded("a", metadata)


def test_keys_are_kafkas() -> None:
    assert encode_key("orders-é").hex() == "000000096f72646572732dc3a9"


def test_a_tombstone_has_no_value() -> None:
    record = tombstone("a")
    assert record.value is None
    assert decode(record.key, None) == Loaded("a", None)


@given(
    transactional_id=st.text(min_size=1, max_size=20),
    numbers=st.tuples(
        st.integers(0, 2**63 - 1),
        st.integers(0, 32_767),
        st.integers(1, 2**31 - 1),
        st.integers(-1, 2**62),
        st.integers(-1, 2**62),
        st.integers(-1, 2**63 - 1),
        st.integers(-1, 2**63 - 1),
    ),
    state=st.sampled_from(TransactionState),
    partitions=st.frozensets(st.builds(TopicPartition, st.sampled_from(["t", "u", "v"]), st.integers(0, 200))),
    client_version=st.integers(0, 2),
)
def test_what_is_written_is_read(
    transactional_id: str,
    numbers: tuple[int, ...],
    state: TransactionState,
    partitions: frozenset[TopicPartition],
    client_version: int,
) -> None:
    producer_id, epoch, timeout_ms, start_ms, update_ms, previous, following = numbers
    metadata = TransactionMetadata(
        transactional_id,
        producer_id,
        epoch,
        timeout_ms,
        state,
        partitions=frozenset() if state is TransactionState.EMPTY else partitions,
        start_ms=start_ms,
        last_update_ms=update_ms,
        previous_producer_id=previous,
        next_producer_id=following,
        client_transaction_version=client_version,
    )
    record = encode(metadata, 2)
    assert decode(record.key, record.value) == Loaded(transactional_id, metadata)


def test_records_of_a_later_release_are_skipped() -> None:
    record = encode(_EMPTY, 2)
    assert record.value is not None
    assert decode(b"\x00\x01" + record.key[2:], record.value) is None
    assert decode(record.key, b"\x00\x02" + record.value[2:]) is None


@pytest.mark.parametrize("value", [b"", b"\x00", b"\x00\x01\x00", b"\x00\x01" + bytes(200)])
def test_nonsense_is_refused(value: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode(encode_key("a"), value)


def test_an_unknown_state_is_refused() -> None:
    value = bytearray(encode(_EMPTY, 2).value or b"")
    value[2 + 8 + 2 + 4] = 9
    with pytest.raises(MalformedFrame, match="state 9"):
        decode(encode_key("a"), bytes(value))
