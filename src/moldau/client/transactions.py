"""The transaction of one producer, step by step: its coordinator is found and asked, and asked again while it moves.

`fence`, then any number of times `add` (before the partitions are written to) and `note`, then `end`. This is the
protocol of KIP-98, which brokers of every version serve beside that of KIP-890.

Invariant: a step may be asked for again when its answer was lost, and has the same effect. It returns when it took
effect and raises when it never will. If patience ended first, nobody knows; the next to `fence` the same id finds out.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from moldau.client.cluster import Cluster, Committed, TopicPartition
from moldau.client.connection import BrokerError, ClientError, Connection, Disconnected
from moldau.wire import ErrorCode
from moldau.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

# The last versions of the first protocol: later ones mean that partitions are added by writing to them.
PRODUCE_LAST = 11
_ADD_PARTITIONS_LAST, _ADD_OFFSETS_LAST, _END_LAST, _COMMIT_OFFSETS_LAST = 3, 3, 4, 4
_INIT_LAST = 4
_PAUSE_MIN_SECONDS, _PAUSE_MAX_SECONDS = 0.01, 0.5
_UNKNOWN_TOPIC_SECONDS = 10.0  # one just made is known everywhere by then
_TRIES_UNSAID = 8  # a coordinator that moves, or the end of the last transaction, is no outage
_ENDED_BY_OTHERS = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
)


class Patience(Protocol):
    """How long a step is tried, from its first failure on."""

    def is_over(self) -> bool: ...

    def say(self, error: ClientError) -> None:
        """Tell people what is waited for; called again and again."""


class TransactionOver(ClientError):
    """Somebody else uses the transactional id, or the coordinator ended the transaction when its time was up."""


@dataclass(slots=True, frozen=True)
class ProducerIdentity:
    """What a broker calls a producer: the epoch tells a former life of the same id from the present one."""

    id: int
    epoch: int


def raise_if_over(code: ErrorCode, transactional_id: str) -> None:
    """Whether an answer means that the transaction is no longer ours; asked by whoever writes in it, too."""
    if code in _ENDED_BY_OTHERS:
        raise TransactionOver(f"the transaction of {transactional_id!r} is over: {code.name}. {code.meaning}")


class Transaction:
    """One transactional id, of which one transaction at a time is under way."""

    def __init__(self, cluster: Cluster, transactional_id: str, patience: Callable[[], Patience]) -> None:
        self.transactional_id = transactional_id
        self.producer = ProducerIdentity(-1, -1)
        self._cluster = cluster
        self._patience = patience
        self._added: set[TopicPartition] = set()

    def fence(self, timeout_ms: int) -> None:
        """Become the only producer of this id: what an earlier one left open is ended, and it can write no more."""
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms)

        def ask() -> ErrorCode:
            answer = self._coordinator().call(request, InitProducerIdResponse, _INIT_LAST)
            self.producer = ProducerIdentity(answer.producer_id, answer.producer_epoch)
            return ErrorCode(answer.error_code)

        self._added.clear()
        self._until_done("starting a transactional producer", ask)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Tell the coordinator where the transaction is about to write."""
        new = sorted(set(partitions) - self._added)
        if not new:
            return
        by_topic: dict[str, list[int]] = {}
        for topic, partition in new:
            by_topic.setdefault(topic, []).append(partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer.id,
            v3_and_below_producer_epoch=self.producer.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=numbers)
                for topic, numbers in by_topic.items()
            ],
        )

        def ask() -> ErrorCode:
            answer = self._coordinator().call(request, AddPartitionsToTxnResponse, _ADD_PARTITIONS_LAST)
            return _first_error(
                row.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for row in topic.results_by_partition
            )

        self._until_done("adding partitions to the transaction", ask)
        self._added.update(new)

    def note(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Store offsets of a group; they count if the transaction is committed."""
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            group_id=group,
        )

        def add() -> ErrorCode:
            return ErrorCode(self._coordinator().call(request, AddOffsetsToTxnResponse, _ADD_OFFSETS_LAST).error_code)

        self._until_done("adding offsets to the transaction", add)
        rows: dict[str, list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]] = {}
        for (topic, index), each in sorted(offsets.items()):
            row = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                partition_index=index, committed_offset=each.offset, committed_metadata=each.metadata
            )
            rows.setdefault(topic, []).append(row)
        commit = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic, partitions=partitions)
                for topic, partitions in rows.items()
            ],
        )

        def store() -> ErrorCode:
            coordinator = self._cluster.coordinator(group)
            answer = coordinator.call(commit, TxnOffsetCommitResponse, _COMMIT_OFFSETS_LAST)
            return _first_error(row.error_code for topic in answer.topics for row in topic.partitions)

        self._until_done("storing offsets in the transaction", store)

    def end(self, *, commit: bool, patience: Patience | None = None) -> None:
        """Make all of it visible, or nothing."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            committed=commit,
        )

        def ask() -> ErrorCode:
            return ErrorCode(self._coordinator().call(request, EndTxnResponse, _END_LAST).error_code)

        what = "committing the transaction" if commit else "aborting the transaction"
        self._until_done(what, ask, patience)
        self._added.clear()

    def _coordinator(self) -> Connection:
        return self._cluster.coordinator(self.transactional_id, transactional=True)

    def _until_done(self, what: str, ask: Callable[[], ErrorCode], patience: Patience | None = None) -> None:
        began = time.monotonic()
        pause_s, tries = _PAUSE_MIN_SECONDS, 0
        while (error := self._attempted(what, ask)) is not None:
            patience = patience or self._patience()
            if patience.is_over() or not _may_be_cured(error, time.monotonic() - began):
                raise error
            if tries >= _TRIES_UNSAID:
                patience.say(error)
            tries += 1
            time.sleep(pause_s)  # nobody is told when a coordinator is there, or done with the last transaction
            pause_s = min(pause_s * 2, _PAUSE_MAX_SECONDS)

    def _attempted(self, what: str, ask: Callable[[], ErrorCode]) -> BrokerError | Disconnected | None:
        """What went wrong and may be cured by time; None if nothing did."""
        try:
            code = ask()
        except BrokerError as error:
            return error
        except Disconnected as error:
            self._cluster.close()
            return error
        raise_if_over(code, self.transactional_id)
        return None if code is ErrorCode.NONE else BrokerError(code, f"{what} of {self.transactional_id!r}")


def _may_be_cured(error: BrokerError | Disconnected, seconds: float) -> bool:
    if isinstance(error, Disconnected):
        return True
    if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return seconds < _UNKNOWN_TOPIC_SECONDS
    return bool(error.code.retriable)


def _first_error(codes: Iterable[int]) -> ErrorCode:
    """The one that says why: others of the same request were not even tried."""
    found = [ErrorCode(code) for code in codes if code]
    told = [code for code in found if code is not ErrorCode.OPERATION_NOT_ATTEMPTED]
    return next(iter(told or found), ErrorCode.NONE)
