"""What a shard has under way: transitions being appended, and the requests that wait for them.

Invariant: a transactional id has at most one transition under way; `Transaction.pending` is that one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moldau.transactions.completion import Completion
from moldau.transactions.metadata import TransactionMetadata
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Struct

Reply = Callable[[ErrorCode, TransactionMetadata | None], Struct]

# What a failed append to the transaction log means to a client.
APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


@dataclass(slots=True)
class Transaction:
    """A transactional id: what is committed, and what is on its way."""

    metadata: TransactionMetadata
    pending: TransactionMetadata | None = None
    completion: Completion | None = None
    has_failed_fence: bool = False
    """The old way of fencing (before transaction.version 2) raised the epoch here, but not in the log."""
    complete_at_ms: float | None = None
    """When to append the end of the transaction again, after that failed."""

    @property
    def retry_at_ms(self) -> float | None:
        """When to go on with the end of the transaction; None: nothing is to be tried again."""
        if self.completion is None or self.completion.is_abandoned:
            return None
        return self.completion.retry_at_ms if self.complete_at_ms is None else self.complete_at_ms


@dataclass(slots=True, frozen=True)
class Waiting:
    """A request that is answered when its append is done."""

    request_id: int
    reply: Reply
    success: ErrorCode = ErrorCode.NONE
    """What to say when the append succeeded: InitProducerId that fenced somebody is told to come again."""


@dataclass(slots=True, frozen=True)
class InFlight:
    """An append under way: a transition of one id, or tombstones for several."""

    transactional_ids: tuple[str, ...]
    waiting: Waiting | None = None
    is_fence: bool = False
