"""Kafka 4.3's answers, row by row: which request, in which state, with which producer id and epoch, gets what.

Names of rows: the current id and epoch is 7/5; `retry` is 7/4, what a KIP-890 client sends again when the answer to
its EndTxn got lost; `stale` is 7/3, `ahead` 7/6, `other` another producer id.
"""

from dataclasses import replace

import pytest

from moldau.transactions import TopicPartition, TransactionMetadata, TransactionState
from moldau.transactions.decisions import (
    Fence,
    ProducerIdAndEpoch,
    decide_add_partitions,
    decide_end,
    decide_fence,
    decide_init,
    verify_partitions,
)
from moldau.transactions.metadata import VALID_PREVIOUS_STATES
from moldau.wire.errors import ErrorCode

E, OG, PC, PA, CC, CA = (
    TransactionState.EMPTY,
    TransactionState.ONGOING,
    TransactionState.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT,
    TransactionState.COMPLETE_COMMIT,
    TransactionState.COMPLETE_ABORT,
)
NONE, FENCED, MAPPING, STATE, CONCURRENT = (
    ErrorCode.NONE,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)

PRODUCERS = {
    "current": ProducerIdAndEpoch(7, 5),
    "retry": ProducerIdAndEpoch(7, 4),
    "stale": ProducerIdAndEpoch(7, 3),
    "ahead": ProducerIdAndEpoch(7, 6),
    "other": ProducerIdAndEpoch(8, 5),
}
NOW = 2_000


def metadata(state: TransactionState, epoch: int = 5) -> TransactionMetadata:
    return TransactionMetadata(
        "a",
        7,
        epoch,
        60_000,
        state,
        partitions=frozenset({T0}) if state in {OG, PC, PA} else frozenset(),
        start_ms=1_000,
        last_update_ms=1_000,
        previous_producer_id=7,
    )


def no_producer_id() -> int | None:
    return None


# ---- EndTxn ----

# (state, who, committed) -> answer; a state is the transition. Clients up to v4:
# TransactionCoordinator.endTransactionWithTV1.
END_V4: list[tuple[TransactionState, str, bool, ErrorCode | TransactionState]] = [
    (OG, "current", True, PC),
    (OG, "current", False, PA),
    (E, "current", True, STATE),
    (E, "current", False, STATE),
    (PC, "current", True, CONCURRENT),
    (PC, "current", False, STATE),
    (PA, "current", True, STATE),
    (PA, "current", False, CONCURRENT),
    (CC, "current", True, NONE),
    (CC, "current", False, STATE),
    (CA, "current", True, STATE),
    (CA, "current", False, NONE),
    *[(state, who, committed, FENCED) for state in (E, OG, PC, PA, CC, CA) for who in ("retry", "stale", "ahead")
      for committed in (True, False)],
    *[(state, "other", committed, MAPPING) for state in (E, OG, PC, PA, CC, CA) for committed in (True, False)],
]  # fmt: skip

# Clients from v5 (KIP-890, part 2): TransactionCoordinator.endTransaction and the table in its comment.
END_V5: list[tuple[TransactionState, str, bool, ErrorCode | TransactionState]] = [
    (OG, "current", True, PC),
    (OG, "current", False, PA),
    (OG, "retry", True, FENCED),
    (OG, "retry", False, FENCED),
    (E, "current", True, STATE),
    (E, "current", False, PA),
    (E, "retry", True, FENCED),
    (E, "retry", False, FENCED),
    (PC, "current", True, FENCED),
    (PC, "current", False, FENCED),
    (PC, "retry", True, CONCURRENT),
    (PC, "retry", False, STATE),
    (PA, "current", True, FENCED),
    (PA, "current", False, FENCED),
    (PA, "retry", True, STATE),
    (PA, "retry", False, CONCURRENT),
    (CC, "current", True, STATE),
    (CC, "current", False, PA),
    (CC, "retry", True, NONE),
    (CC, "retry", False, STATE),
    (CA, "current", True, STATE),
    (CA, "current", False, PA),
    (CA, "retry", True, STATE),
    (CA, "retry", False, NONE),
    *[(state, who, committed, FENCED) for state in (E, OG, PC, PA, CC, CA) for who in ("stale", "ahead")
      for committed in (True, False)],
    *[(state, "other", committed, MAPPING) for state in (E, OG, PC, PA, CC, CA) for committed in (True, False)],
]  # fmt: skip


@pytest.mark.parametrize("is_pending", [False, True])
@pytest.mark.parametrize(
    ("version", "state", "who", "committed", "expected"),
    [(0, *row) for row in END_V4] + [(2, *row) for row in END_V5],
)
def test_end_txn(
    version: int,
    state: TransactionState,
    who: str,
    committed: bool,
    expected: ErrorCode | TransactionState,
    is_pending: bool,
) -> None:
    current = metadata(state)
    decision = decide_end(
        current,
        is_pending,
        producer=PRODUCERS[who],
        committed=committed,
        transaction_version=version,
        new_producer_id=no_producer_id,
        wall_ms=NOW,
    )
    if is_pending:
        # The new way looks whether a transition is under way first, the old way after it knows who asks.
        assert decision is (CONCURRENT if version == 2 or expected not in {FENCED, MAPPING} else expected)
    elif isinstance(expected, TransactionState):
        assert isinstance(decision, TransactionMetadata)
        assert decision == replace(
            current,
            state=expected,
            producer_epoch=6 if version == 2 else 5,
            last_producer_epoch=5 if version == 2 else -1,
            start_ms=1_000 if state is OG else NOW,
            last_update_ms=NOW,
            client_transaction_version=version,
        )
    else:
        assert decision is expected


@pytest.mark.parametrize("version", [0, 2])
def test_end_txn_of_an_unknown_id(version: int) -> None:
    decision = decide_end(
        None,
        False,
        producer=PRODUCERS["current"],
        committed=True,
        transaction_version=version,
        new_producer_id=no_producer_id,
        wall_ms=NOW,
    )
    assert decision is MAPPING


@pytest.mark.parametrize(
    ("state", "epoch", "producer", "committed", "expected"),
    [
        # After an overflow: the id is 9, at epoch 0, and 7/32766 was the last that the client knew.
        (CC, 0, ProducerIdAndEpoch(7, 32_766), True, NONE),
        (CC, 0, ProducerIdAndEpoch(7, 32_766), False, STATE),
        (CA, 0, ProducerIdAndEpoch(7, 32_766), False, NONE),
        (CA, 0, ProducerIdAndEpoch(7, 32_766), True, STATE),
        (CC, 0, ProducerIdAndEpoch(7, 32_765), True, MAPPING),
        (CC, 1, ProducerIdAndEpoch(7, 32_766), True, MAPPING),
        (E, 0, ProducerIdAndEpoch(7, 32_766), False, FENCED),
        (OG, 0, ProducerIdAndEpoch(7, 32_766), True, FENCED),
    ],
)
def test_end_txn_again_after_the_epochs_ran_out(
    state: TransactionState, epoch: int, producer: ProducerIdAndEpoch, committed: bool, expected: ErrorCode
) -> None:
    current = replace(metadata(state, epoch), producer_id=9, previous_producer_id=7)
    decision = decide_end(
        current,
        False,
        producer=producer,
        committed=committed,
        transaction_version=2,
        new_producer_id=no_producer_id,
        wall_ms=NOW,
    )
    assert decision is expected


# ---- AddPartitionsToTxn, AddOffsetsToTxn: handleAddPartitionsToTransaction ----


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize(
    ("state", "who", "is_pending", "expected"),
    [
        (E, "current", False, OG),
        (OG, "current", False, OG),
        (CC, "current", False, OG),
        (CA, "current", False, OG),
        (PC, "current", False, CONCURRENT),
        (PA, "current", False, CONCURRENT),
        (OG, "current", True, CONCURRENT),
        # A transition under way comes first, whoever asks (KAFKA-18654): after it, the epoch may be right.
        (OG, "stale", True, CONCURRENT),
        (OG, "other", True, CONCURRENT),
        (OG, "stale", False, FENCED),
        (OG, "retry", False, FENCED),
        (OG, "ahead", False, FENCED),
        (OG, "other", False, MAPPING),
        (PC, "stale", False, FENCED),
        (PC, "other", False, MAPPING),
        (None, "current", False, MAPPING),
    ],
)
def test_add_partitions(
    state: TransactionState | None,
    who: str,
    is_pending: bool,
    expected: ErrorCode | TransactionState,
    version: int,
) -> None:
    current = None if state is None else metadata(state)
    decision = decide_add_partitions(
        current,
        is_pending,
        producer=PRODUCERS[who],
        partitions=frozenset({T1}),
        transaction_version=version,
        wall_ms=NOW,
    )
    if isinstance(expected, ErrorCode):
        assert decision is expected
        return
    assert current is not None
    assert decision == replace(
        current,
        state=OG,
        partitions=current.partitions | {T1},
        start_ms=1_000 if state is OG else NOW,
        last_update_ms=NOW,
        client_transaction_version=version,
    )


def test_add_partitions_that_are_there_already() -> None:
    decision = decide_add_partitions(
        metadata(OG),
        False,
        producer=PRODUCERS["current"],
        partitions=frozenset({T0}),
        transaction_version=0,
        wall_ms=NOW,
    )
    assert decision is NONE


# ---- AddPartitionsToTxn with verify_only: handleVerifyPartitionsInTransaction ----


@pytest.mark.parametrize(
    ("state", "who", "in_transaction", "not_in_transaction"),
    [
        (OG, "current", NONE, ErrorCode.TRANSACTION_ABORTABLE),
        (E, "current", ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (CC, "current", ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (CA, "current", ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (PC, "current", CONCURRENT, CONCURRENT),
        (PA, "current", CONCURRENT, CONCURRENT),
        (OG, "stale", FENCED, FENCED),
        (OG, "ahead", FENCED, FENCED),
        (OG, "other", MAPPING, MAPPING),
        (None, "current", MAPPING, MAPPING),
    ],
)
def test_verify(
    state: TransactionState | None, who: str, in_transaction: ErrorCode, not_in_transaction: ErrorCode
) -> None:
    current = None if state is None else metadata(state)
    errors = verify_partitions(current, producer=PRODUCERS[who], partitions=frozenset({T0, T1}))
    assert errors == {T0: in_transaction, T1: not_in_transaction}


# ---- InitProducerId: prepareInitProducerIdTransit, prepareIncrementProducerEpoch, prepareProducerIdRotation ----

INIT: list[tuple[str, TransactionMetadata, ProducerIdAndEpoch | None, ErrorCode | Fence | tuple[int, int, int]]] = [
    # A tuple is: producer id, epoch, last epoch.
    ("starts", metadata(E), None, (7, 6, -1)),
    ("starts after a commit", metadata(CC), None, (7, 6, -1)),
    ("starts after an abort", metadata(CA), None, (7, 6, -1)),
    ("starts during a transaction", metadata(OG), None, Fence.NEEDED),
    ("starts while one is being committed", metadata(PC), None, CONCURRENT),
    ("starts while one is being aborted", metadata(PA), None, CONCURRENT),
    ("is new", metadata(E, -1), None, (7, 0, -1)),
    ("is new but believes otherwise", metadata(E, -1), ProducerIdAndEpoch(1, 1), (7, 0, -1)),
    ("recovers", metadata(CC), PRODUCERS["current"], (7, 6, 5)),
    ("recovers, again", replace(metadata(E), last_producer_epoch=4), PRODUCERS["retry"], (7, 5, 4)),
    ("recovers, but somebody else started", metadata(E), PRODUCERS["retry"], FENCED),
    ("recovers from long ago", replace(metadata(E), last_producer_epoch=4), PRODUCERS["stale"], FENCED),
    ("comes from the future", metadata(E), PRODUCERS["ahead"], FENCED),
    ("is somebody else", metadata(E), PRODUCERS["other"], FENCED),
    ("is somebody else, during a transaction", metadata(OG), PRODUCERS["other"], FENCED),
    ("recovers during a transaction", metadata(OG), PRODUCERS["current"], Fence.NEEDED),
    ("is stale during a transaction", metadata(OG), PRODUCERS["stale"], Fence.NEEDED),
    ("is somebody else, during a commit", metadata(PC), PRODUCERS["other"], FENCED),
    ("starts, epochs used up", metadata(E, 32_766), None, (99, 0, -1)),
    ("starts, after a fence at the last epoch", metadata(CA, 32_767), None, (99, 0, -1)),
    ("recovers, epochs used up", metadata(E, 32_766), ProducerIdAndEpoch(7, 32_766), (99, 0, 32_766)),
    ("is stale, epochs used up", metadata(E, 32_766), ProducerIdAndEpoch(7, 5), ErrorCode.UNKNOWN_SERVER_ERROR),
    (
        "recovers from the former producer id, again",
        replace(metadata(E, 0), producer_id=9, last_producer_epoch=32_766),
        ProducerIdAndEpoch(7, 32_766),
        (9, 0, 32_766),
    ),
    ("recovers from long ago at the former producer id", replace(metadata(E, 0), producer_id=9),
     ProducerIdAndEpoch(7, 32_765), FENCED),
    ("recovers from the former producer id, but somebody started", replace(metadata(E, 0), producer_id=9),
     ProducerIdAndEpoch(7, 32_766), FENCED),
]  # fmt: skip


@pytest.mark.parametrize(
    ("current", "expected_producer", "expected"), [row[1:] for row in INIT], ids=[r[0] for r in INIT]
)
def test_init_producer_id(
    current: TransactionMetadata,
    expected_producer: ProducerIdAndEpoch | None,
    expected: ErrorCode | Fence | tuple[int, int, int],
) -> None:
    decision = decide_init(
        current,
        False,
        timeout_ms=5_000,
        expected=expected_producer,
        new_producer_id=lambda: 99,
        wall_ms=NOW,
    )
    if not isinstance(expected, tuple):
        assert decision is expected
        return
    producer_id, epoch, last_epoch = expected
    assert decision == replace(
        current,
        state=E,
        producer_id=producer_id,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        previous_producer_id=current.producer_id,
        timeout_ms=5_000,
        partitions=frozenset(),
        start_ms=-1,
        last_update_ms=NOW,
    )


@pytest.mark.parametrize("state", [E, OG, PC, PA, CC, CA])
def test_init_producer_id_waits_for_what_is_under_way(state: TransactionState) -> None:
    decision = decide_init(
        metadata(state),
        True,
        timeout_ms=5_000,
        expected=PRODUCERS["other"],
        new_producer_id=no_producer_id,
        wall_ms=NOW,
    )
    assert decision is CONCURRENT


def test_no_producer_id_at_hand() -> None:
    exhausted = metadata(CC, 32_766)
    assert (
        decide_init(exhausted, False, timeout_ms=1, expected=None, new_producer_id=no_producer_id, wall_ms=NOW)
        is LOADING
    )
    ongoing = metadata(OG, 32_766)
    ended = decide_end(
        ongoing,
        False,
        producer=ProducerIdAndEpoch(7, 32_766),
        committed=True,
        transaction_version=2,
        new_producer_id=no_producer_id,
        wall_ms=NOW,
    )
    assert ended is LOADING
    fenced = decide_fence(
        ongoing, has_failed_before=False, transaction_version=2, new_producer_id=no_producer_id, wall_ms=NOW
    )
    assert fenced == (ongoing, LOADING)


# ---- fencing an open transaction: prepareFenceProducerEpoch and the end that follows ----


@pytest.mark.parametrize(
    ("version", "epoch", "has_failed", "visible_epoch", "new_epoch", "new_last", "next_id"),
    [
        (2, 5, False, 5, 6, 5, -1),
        (2, 5, True, 5, 6, 5, -1),
        (2, 32_766, False, 32_766, 32_767, 32_766, 99),
        (2, 32_767, False, 32_767, 32_767, 32_767, 99),
        (1, 5, False, 6, 6, -1, -1),
        (0, 5, False, 6, 6, -1, -1),
        (1, 5, True, 5, 5, -1, -1),
        (1, 32_766, False, 32_767, 32_767, -1, -1),
        (1, 32_767, False, 32_767, 32_767, -1, -1),
    ],
)
def test_fence(
    version: int,
    epoch: int,
    has_failed: bool,
    visible_epoch: int,
    new_epoch: int,
    new_last: int,
    next_id: int,
) -> None:
    fence = decide_fence(
        metadata(OG, epoch),
        has_failed_before=has_failed,
        transaction_version=version,
        new_producer_id=lambda: 99,
        wall_ms=NOW,
    )
    assert fence.visible.producer_epoch == visible_epoch
    assert fence.visible.state is OG
    decision = fence.decision
    assert isinstance(decision, TransactionMetadata)
    assert decision.state is PA
    assert decision.producer_id == 7
    assert decision.producer_epoch == new_epoch
    assert decision.last_producer_epoch == new_last
    assert decision.next_producer_id == next_id
    assert decision.partitions == {T0}


def test_transitions_are_kafkas() -> None:
    """TransactionState.VALID_PREVIOUS_STATES."""
    expected = {
        E: {E, CC, CA},
        OG: {OG, E, CC, CA},
        PC: {OG},
        PA: {OG, E, CC, CA},  # and PREPARE_EPOCH_FENCE, which is never a state here
        CC: {PC},
        CA: {PA},
        TransactionState.DEAD: {E, CA, CC},
        TransactionState.PREPARE_EPOCH_FENCE: {OG},
    }
    assert expected == VALID_PREVIOUS_STATES
