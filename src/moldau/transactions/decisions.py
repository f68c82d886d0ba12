"""What the coordinator answers, as functions of the state: an error, or the transition that has to be committed
first.

`ErrorCode.NONE` means: already so, answer at once. Every function here is a table of Kafka 4.3's answers, in the
order in which Kafka checks; the order is part of the protocol, because clients retry on some codes and give up on
others.

Invariant: a producer id or epoch that is not current never gets a transition. What looks like an exception is the
same producer again: a retry of the request that bumped its epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from moldau.transactions import metadata as md
from moldau.transactions.metadata import (
    IDLE,
    MAX_PRODUCER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    TopicPartition,
    TransactionMetadata,
    TransactionState,
)
from moldau.wire.errors import ErrorCode

_COMPLETE = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}
_PREPARE = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}

Decision = ErrorCode | TransactionMetadata
NewProducerId = Callable[[], int | None]
"""A fresh producer id, or None while the controller still has to hand out a block of them."""


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int
    epoch: int


class Fence(Enum):
    """InitProducerId found an open transaction: abort it at a higher epoch, and let the client ask again."""

    NEEDED = "needed"


def decide_init(
    current: TransactionMetadata,
    is_pending: bool,
    *,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None,
    new_producer_id: NewProducerId,
    wall_ms: int,
) -> Decision | Fence:
    """InitProducerId. `expected` is what a producer that recovers from an error believes to be (KIP-360)."""
    if is_pending:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if expected is not None and not _may_continue(current, expected):
        return ErrorCode.PRODUCER_FENCED
    if current.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if current.state is TransactionState.ONGOING:
        return Fence.NEEDED
    assert current.state in IDLE
    if current.is_epoch_exhausted and (expected is None or expected.epoch == current.producer_epoch):
        producer_id = new_producer_id()
        if producer_id is None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return md.rotate_producer_id(current, producer_id, timeout_ms, wall_ms, keep_last_epoch=expected is not None)
    return md.increment_epoch(current, timeout_ms, None if expected is None else expected.epoch, wall_ms)


def _may_continue(current: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    return (
        current.producer_epoch == NO_PRODUCER_EPOCH  # just created: the id had expired, a new producer id is fine
        or expected.producer_id == current.producer_id  # the epoch is checked when it is incremented
        # A retry of the request that exhausted the former producer id.
        or (expected.producer_id == current.previous_producer_id and md.is_epoch_exhausted(expected.epoch))
    )


def decide_add_partitions(
    current: TransactionMetadata | None,
    is_pending: bool,
    *,
    producer: ProducerIdAndEpoch,
    partitions: frozenset[TopicPartition],
    transaction_version: int,
    wall_ms: int,
) -> Decision:
    """AddPartitionsToTxn and AddOffsetsToTxn."""
    if current is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if is_pending:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if current.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if current.producer_epoch != producer.epoch:
        return ErrorCode.PRODUCER_FENCED
    if current.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if current.state is TransactionState.ONGOING and partitions <= current.partitions:
        return ErrorCode.NONE
    return md.add_partitions(current, partitions, transaction_version, wall_ms)


def verify_partitions(
    current: TransactionMetadata | None, *, producer: ProducerIdAndEpoch, partitions: frozenset[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """AddPartitionsToTxn with verify_only: a partition leader asks whether these are in the transaction (KIP-890).

    A pending transition does not matter: the guard at the append notices what changes meanwhile."""
    if current is None or current.producer_id != producer.producer_id:
        return dict.fromkeys(partitions, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if current.producer_epoch != producer.epoch:
        return dict.fromkeys(partitions, ErrorCode.PRODUCER_FENCED)
    if current.state in PREPARED:
        return dict.fromkeys(partitions, ErrorCode.CONCURRENT_TRANSACTIONS)
    return {
        partition: ErrorCode.NONE if partition in current.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for partition in partitions
    }


def decide_end(
    current: TransactionMetadata | None,
    is_pending: bool,
    *,
    producer: ProducerIdAndEpoch,
    committed: bool,
    transaction_version: int,
    new_producer_id: NewProducerId,
    wall_ms: int,
) -> Decision:
    """EndTxn, from a client of either kind."""
    if current is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if md.supports_epoch_bump(transaction_version):
        decision = _answer_with_bump(current, is_pending, producer, committed)
        if decision is _End.ALLOWED:
            return _prepare_end_with_bump(current, _PREPARE[committed], new_producer_id, wall_ms)
        return decision
    decision = _answer_without_bump(current, is_pending, producer, committed)
    if decision is _End.ALLOWED:
        return md.prepare_end(current, _PREPARE[committed], md.TV_0, NO_PRODUCER_ID, wall_ms)
    return decision


class _End(Enum):
    """The transaction may end as asked."""

    ALLOWED = "allowed"


def _answer_without_bump(
    current: TransactionMetadata, is_pending: bool, producer: ProducerIdAndEpoch, committed: bool
) -> ErrorCode | _End:
    """Up to EndTxn v4: the epoch stays, so a repeated EndTxn looks like the first and must ask for the same result."""
    if current.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if current.producer_epoch != producer.epoch:
        return ErrorCode.PRODUCER_FENCED
    if is_pending:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if current.state is TransactionState.ONGOING:
        return _End.ALLOWED
    if current.state is _COMPLETE[committed]:
        return ErrorCode.NONE
    if current.state is _PREPARE[committed]:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.INVALID_TXN_STATE


def _answer_with_bump(
    current: TransactionMetadata, is_pending: bool, producer: ProducerIdAndEpoch, committed: bool
) -> ErrorCode | _End:
    """EndTxn v5 (KIP-890): every end bumps the epoch, so the epoch tells a retry from the next transaction.

    An abort without a transaction is granted, with a bump: the client cannot know whether its first write was added."""
    if is_pending:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    is_retry_of_overflow = (
        current.previous_producer_id == producer.producer_id
        and producer.epoch == MAX_PRODUCER_EPOCH - 1
        and current.producer_epoch == 0
    )
    is_retry = is_retry_of_overflow or current.producer_epoch == producer.epoch + 1
    is_current = producer.epoch == current.producer_epoch
    if current.producer_id != producer.producer_id and not is_retry_of_overflow:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    match current.state:
        case TransactionState.ONGOING | TransactionState.EMPTY:
            is_valid_epoch = is_current
        case TransactionState.PREPARE_COMMIT | TransactionState.PREPARE_ABORT:
            is_valid_epoch = current.producer_epoch == producer.epoch + 1
        case _:
            is_valid_epoch = is_current or is_retry
    if not is_valid_epoch:
        return ErrorCode.PRODUCER_FENCED
    if current.state in PREPARED:
        is_same = current.state is _PREPARE[committed]
        return ErrorCode.CONCURRENT_TRANSACTIONS if is_same else ErrorCode.INVALID_TXN_STATE
    if is_retry:
        return ErrorCode.NONE if current.state is _COMPLETE[committed] else ErrorCode.INVALID_TXN_STATE
    if committed and current.state is not TransactionState.ONGOING:
        return ErrorCode.INVALID_TXN_STATE
    return _End.ALLOWED


def _prepare_end_with_bump(
    current: TransactionMetadata, state: TransactionState, new_producer_id: NewProducerId, wall_ms: int
) -> Decision:
    next_producer_id = new_producer_id() if current.is_epoch_exhausted else NO_PRODUCER_ID
    if next_producer_id is None:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return md.prepare_end(current, state, md.TV_2, next_producer_id, wall_ms)


class FenceDecision(NamedTuple):
    visible: TransactionMetadata
    """What requests see while the abort is being appended."""
    decision: Decision


def decide_fence(
    current: TransactionMetadata,
    *,
    has_failed_before: bool,
    transaction_version: int,
    new_producer_id: NewProducerId,
    wall_ms: int,
) -> FenceDecision:
    """Abort an open transaction at a higher epoch, for a timeout or for a new producer of the same transactional id.

    `transaction_version` is the cluster's, whatever the client speaks."""
    assert current.state is TransactionState.ONGOING
    if md.supports_epoch_bump(transaction_version):
        decision = _prepare_end_with_bump(current, TransactionState.PREPARE_ABORT, new_producer_id, wall_ms)
        return FenceDecision(current, decision)
    # The old way: the producer is fenced from this moment, even if the append fails. It must then not be bumped again:
    # the epoch was given to nobody, and epochs are few.
    is_kept = has_failed_before or current.producer_epoch == MAX_PRODUCER_EPOCH
    visible = replace(
        current,
        producer_epoch=current.producer_epoch + (0 if is_kept else 1),
        last_producer_epoch=NO_PRODUCER_EPOCH,
    )
    abort = md.prepare_end(visible, TransactionState.PREPARE_ABORT, md.TV_0, NO_PRODUCER_ID, wall_ms)
    return FenceDecision(visible, abort)
