"""Asking the coordinator before a transactional write (KIP-890): is this partition in the transaction, or please
add it.

The partition leader's side. The log hands out a guard for a producer without an open transaction; the broker asks
here, and appends with the guard once the answer is NONE. Pure: questions and responses in, AddPartitionsToTxn
requests and answers out. Asking again is for who asked: it needs a new guard (`broker.txn_verification`).

Invariants: one request at a time to a coordinator, so that questions gather into batches; every question is
answered exactly once; an old epoch never gets a yes because of a newer one in the same batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from moldau.transactions.metadata import TopicPartition
from moldau.transactions.replies import AddPartitionsTransaction, error_code
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode

_RETRY_ELSEWHERE = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class Operation(Enum):
    """What the client that writes understands."""

    DEFAULT_ERROR = "default"
    """Verify only. TRANSACTION_ABORTABLE is not known yet: say INVALID_TXN_STATE."""
    GENERIC_ERROR_SUPPORTED = "generic"
    """Verify only."""
    ADD_PARTITION = "add"
    """The client relies on us to add the partition (transaction.version 2)."""


def produce_operation(api_version: int) -> Operation:
    if api_version >= 12:
        return Operation.ADD_PARTITION
    return Operation.GENERIC_ERROR_SUPPORTED if api_version == 11 else Operation.DEFAULT_ERROR


def txn_offset_commit_operation(api_version: int) -> Operation:
    if api_version >= 5:
        return Operation.ADD_PARTITION
    return Operation.GENERIC_ERROR_SUPPORTED if api_version == 4 else Operation.DEFAULT_ERROR


def produce_error(error: ErrorCode, operation: Operation) -> ErrorCode:
    """What a producer is told. NOT_ENOUGH_REPLICAS makes any client send the batch again, without a metadata
    refresh."""
    if error in _RETRY_ELSEWHERE:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and operation is not Operation.ADD_PARTITION:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return error


def txn_offset_commit_error(error: ErrorCode) -> ErrorCode:
    """What TxnOffsetCommit says: old clients retry a loading coordinator, but not a network error."""
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if error is ErrorCode.NETWORK_EXCEPTION else error


class Question(NamedTuple):
    question_id: int
    """Chosen by the broker; names the question in `Answer`."""
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    operation: Operation

    @property
    def is_verify_only(self) -> bool:
        return self.operation is not Operation.ADD_PARTITION


class Answer(NamedTuple):
    question_id: int
    errors: dict[TopicPartition, ErrorCode]
    """One for each partition asked about, before `produce_error` or `txn_offset_commit_error`."""


class Send(NamedTuple):
    """An AddPartitionsToTxn (the newest version both know) to the node; `on_response` or `on_failure` must follow."""

    node_id: int
    request: m.AddPartitionsToTxnRequest


@dataclass(slots=True)
class VerifierEffects:
    sends: list[Send] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)


@dataclass(slots=True)
class _Node:
    waiting: dict[str, list[Question]] = field(default_factory=dict)
    """By transactional id: what goes into the next request. All of one id agree on producer, epoch and operation."""
    in_flight: dict[str, list[Question]] | None = None


class TransactionVerifier:
    """One for each broker. `ask` needs the node that leads the transaction's partition of `__transaction_state`."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}

    def ask(self, question: Question, node_id: int | None) -> VerifierEffects:
        """`node_id` None: no coordinator is known, the client has to try again."""
        effects = VerifierEffects()
        if node_id is None:
            effects.answers.append(_same_answer(question, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return effects
        node = self._nodes.setdefault(node_id, _Node())
        others = node.waiting.setdefault(question.transactional_id, [])
        if others and not _agree(others[0], question):
            first = others[0]
            if first.producer_epoch > question.producer_epoch:
                effects.answers.append(_same_answer(question, ErrorCode.INVALID_PRODUCER_EPOCH))
                return effects
            # An equal epoch is a producer that changed its mind about the version; it sent the old one again, too.
            is_older = first.producer_epoch < question.producer_epoch
            error = ErrorCode.INVALID_PRODUCER_EPOCH if is_older else ErrorCode.NETWORK_EXCEPTION
            effects.answers.extend(_same_answer(other, error) for other in others)
            others.clear()
        others.append(question)
        self._send(node_id, node, effects)
        return effects

    def _send(self, node_id: int, node: _Node, effects: VerifierEffects) -> None:
        if node.in_flight is not None:
            return
        if not node.waiting:
            del self._nodes[node_id]
            return
        node.in_flight, node.waiting = node.waiting, {}
        transactions = [_transaction(group) for group in node.in_flight.values()]
        effects.sends.append(Send(node_id, m.AddPartitionsToTxnRequest(transactions=transactions)))

    def on_response(self, node_id: int, response: m.AddPartitionsToTxnResponse) -> VerifierEffects:
        error = error_code(response.error_code)
        if error is not ErrorCode.NONE:
            # This broker may not act for the cluster: the client cannot help it, and must abort.
            is_forbidden = error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            return self.on_failure(node_id, ErrorCode.INVALID_TXN_STATE if is_forbidden else error)
        effects = VerifierEffects()
        results = {result.transactional_id: errors_of(result) for result in response.results_by_transaction}
        for transactional_id, group in self._take(node_id).items():
            errors = results.get(transactional_id, {})
            effects.answers.extend(_answer(question, errors) for question in group)
        self._next(node_id, effects)
        return effects

    def on_failure(self, node_id: int, error: ErrorCode = ErrorCode.NETWORK_EXCEPTION) -> VerifierEffects:
        """No response: disconnected, or timed out."""
        effects = VerifierEffects()
        for group in self._take(node_id).values():
            effects.answers.extend(_same_answer(question, error) for question in group)
        self._next(node_id, effects)
        return effects

    def _take(self, node_id: int) -> dict[str, list[Question]]:
        node = self._nodes[node_id]
        assert node.in_flight is not None, f"node {node_id} was not asked"
        groups, node.in_flight = node.in_flight, None
        return groups

    def _next(self, node_id: int, effects: VerifierEffects) -> None:
        self._send(node_id, self._nodes[node_id], effects)


def _agree(first: Question, second: Question) -> bool:
    return (first.producer_id, first.producer_epoch, first.is_verify_only) == (
        second.producer_id,
        second.producer_epoch,
        second.is_verify_only,
    )


def _transaction(questions: list[Question]) -> AddPartitionsTransaction:
    together = questions[0]._replace(partitions=_union(question.partitions for question in questions))
    return as_transaction(together)


def as_transaction(question: Question) -> AddPartitionsTransaction:
    """The question as the coordinator takes it."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(question.partitions):
        by_topic.setdefault(topic, []).append(partition)
    return AddPartitionsTransaction(
        transactional_id=question.transactional_id,
        producer_id=question.producer_id,
        producer_epoch=question.producer_epoch,
        verify_only=question.is_verify_only,
        topics=[
            m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ],
    )


def _union(sets: Iterable[frozenset[TopicPartition]]) -> frozenset[TopicPartition]:
    return frozenset().union(*sets)


def errors_of(result: m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(topic.name, partition.partition_index): error_code(partition.partition_error_code)
        for topic in result.topic_results
        for partition in topic.results_by_partition
    }


def client_error(error: ErrorCode, operation: Operation) -> ErrorCode:
    """The coordinator's error as the writer's client knows it."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH  # recoverable: the producer may bump its epoch and go on
    if error is ErrorCode.TRANSACTION_ABORTABLE and operation is Operation.DEFAULT_ERROR:
        return ErrorCode.INVALID_TXN_STATE
    return error


def _answer(question: Question, results: dict[TopicPartition, ErrorCode]) -> Answer:
    # A partition the coordinator says nothing about is not known to be in the transaction.
    errors = {
        partition: client_error(results.get(partition, ErrorCode.NETWORK_EXCEPTION), question.operation)
        for partition in question.partitions
    }
    return Answer(question.question_id, errors)


def _same_answer(question: Question, error: ErrorCode) -> Answer:
    return Answer(question.question_id, dict.fromkeys(question.partitions, error))
