"""One transactional id: its state, and the transitions between states.

`TransactionMetadata` is a value. A transition is a function from one value to the next; nothing becomes true until
the next value is committed to `__transaction_state`. Invariants: a state is only ever entered from the states Kafka
enters it from; a transition keeps the producer id it leaves as `previous_producer_id`, so that a retried request
can be recognised.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

from moldau.wire.errors import ErrorCode

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
MAX_PRODUCER_EPOCH = 32_767
NO_TIMESTAMP = -1
# Transactions of an external coordinator (KIP-939) have no timeout; this value says so.
NO_TIMEOUT_MS = 2**31 - 1

# transaction.version, the feature level (KIP-890): 0 as ever, 1 writes tagged fields, 2 bumps the epoch with every
# transaction.
TV_0, TV_1, TV_2 = 0, 1, 2


def supports_epoch_bump(transaction_version: int) -> bool:
    return transaction_version >= TV_2


def log_value_version(transaction_version: int) -> int:
    """The version of TransactionLogValue that a cluster at this level writes."""
    return 1 if transaction_version >= TV_1 else 0


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class TransactionState(IntEnum):
    """The numbers are those in the log; `label` is the name on the wire."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """Being expired. Never written: the record is a tombstone."""
    PREPARE_EPOCH_FENCE = 7
    """About to be fenced. Never written: the fence goes to the log as PREPARE_ABORT with a higher epoch."""

    @property
    def label(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))


STATE_BY_LABEL = {state.label: state for state in TransactionState}

_E, _O, _D = TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.DEAD
_PC, _PA = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
_CC, _CA = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT

PREPARED = frozenset({_PC, _PA})
"""Decided, markers not all written."""
IDLE = frozenset({_E, _CC, _CA})
"""No transaction open: a new one may start, and the id may expire."""

VALID_PREVIOUS_STATES: dict[TransactionState, frozenset[TransactionState]] = {
    _E: IDLE,
    _O: IDLE | {_O},
    _PC: frozenset({_O}),
    _PA: IDLE | {_O},  # from an idle state: a KIP-890 client aborts before it added a partition
    _CC: frozenset({_PC}),
    _CA: frozenset({_PA}),
    _D: IDLE,
    TransactionState.PREPARE_EPOCH_FENCE: frozenset({_O}),
}


@dataclass(slots=True, frozen=True)
class TransactionMetadata:
    """What the coordinator knows about one transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    last_update_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """Set while a transaction ends whose epoch bump exhausts the producer id."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before the last bump. Not in the log: a coordinator that takes over does not know it, as in Kafka."""
    client_transaction_version: int = TV_0

    @property
    def is_epoch_exhausted(self) -> bool:
        return is_epoch_exhausted(self.producer_epoch)


def is_epoch_exhausted(producer_epoch: int) -> bool:
    """The last epoch is never given to a client, so that there is always one left to fence it with."""
    return producer_epoch >= MAX_PRODUCER_EPOCH - 1


def created(transactional_id: str, producer_id: int, timeout_ms: int, wall_ms: int) -> TransactionMetadata:
    """An id seen for the first time. It has no epoch yet, and is not in the log."""
    return TransactionMetadata(
        transactional_id, producer_id, NO_PRODUCER_EPOCH, timeout_ms, TransactionState.EMPTY, last_update_ms=wall_ms
    )


def _transit(old: TransactionMetadata, state: TransactionState, **changes: Any) -> TransactionMetadata:
    assert old.state in VALID_PREVIOUS_STATES[state], f"{old.transactional_id}: {old.state.label} to {state.label}"
    new = replace(old, state=state, previous_producer_id=old.producer_id, **changes)
    assert new.producer_id >= 0
    assert new.producer_epoch >= 0 or state is TransactionState.DEAD
    return new


def increment_epoch(
    old: TransactionMetadata, timeout_ms: int, expected_epoch: int | None, wall_ms: int
) -> TransactionMetadata | ErrorCode:
    """The next epoch for a producer that starts (`expected_epoch` None) or recovers from an error (KIP-360)."""
    if old.is_epoch_exhausted:
        # Kafka fails here too, when a producer expects another epoch than the last one of this producer id.
        return ErrorCode.UNKNOWN_SERVER_ERROR
    if expected_epoch is None:
        epoch, last_epoch = old.producer_epoch + 1, NO_PRODUCER_EPOCH
    elif old.producer_epoch in {NO_PRODUCER_EPOCH, expected_epoch}:
        epoch, last_epoch = old.producer_epoch + 1, old.producer_epoch
    elif expected_epoch == old.last_producer_epoch:
        # A retry whose first answer got lost. Nobody else came in between: that would have cleared the last epoch.
        epoch, last_epoch = old.producer_epoch, old.last_producer_epoch
    else:
        return ErrorCode.PRODUCER_FENCED
    return _transit(
        old,
        TransactionState.EMPTY,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_ms=NO_TIMESTAMP,
        last_update_ms=wall_ms,
    )


def rotate_producer_id(
    old: TransactionMetadata, producer_id: int, timeout_ms: int, wall_ms: int, *, keep_last_epoch: bool
) -> TransactionMetadata:
    """A new producer id at epoch 0, because the epochs of the old one are used up."""
    return _transit(
        old,
        TransactionState.EMPTY,
        producer_id=producer_id,
        producer_epoch=0,
        last_producer_epoch=old.producer_epoch if keep_last_epoch else NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_ms=NO_TIMESTAMP,
        last_update_ms=wall_ms,
    )


def add_partitions(
    old: TransactionMetadata, partitions: frozenset[TopicPartition], transaction_version: int, wall_ms: int
) -> TransactionMetadata:
    return _transit(
        old,
        TransactionState.ONGOING,
        partitions=old.partitions | partitions,
        start_ms=wall_ms if old.state in IDLE else old.start_ms,
        last_update_ms=wall_ms,
        client_transaction_version=transaction_version,
    )


def prepare_end(
    old: TransactionMetadata,
    state: TransactionState,
    transaction_version: int,
    next_producer_id: int,
    wall_ms: int,
) -> TransactionMetadata:
    """The decision: PREPARE_COMMIT or PREPARE_ABORT. Once committed to the log there is no way back."""
    epoch, last_epoch = old.producer_epoch, old.last_producer_epoch
    if supports_epoch_bump(transaction_version):
        last_epoch = old.producer_epoch
        # At the very last epoch (an older release could get there) an abort still goes through, without a bump.
        if not (epoch == MAX_PRODUCER_EPOCH and state is _PA):
            epoch += 1
    return _transit(
        old,
        state,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        next_producer_id=next_producer_id,
        # A transaction aborted before any partition was added has no start of its own.
        start_ms=wall_ms if old.state in IDLE else old.start_ms,
        last_update_ms=wall_ms,
        client_transaction_version=transaction_version,
    )


def complete(old: TransactionMetadata, wall_ms: int) -> TransactionMetadata:
    """All markers are written: the state that follows a decision."""
    producer_id, epoch = old.producer_id, old.producer_epoch
    if supports_epoch_bump(old.client_transaction_version) and old.next_producer_id != NO_PRODUCER_ID:
        producer_id, epoch = old.next_producer_id, 0
    return _transit(
        old,
        _CC if old.state is _PC else _CA,
        producer_id=producer_id,
        producer_epoch=epoch,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
        last_update_ms=wall_ms,
    )


def dead(old: TransactionMetadata) -> TransactionMetadata:
    return _transit(old, TransactionState.DEAD, partitions=frozenset())
