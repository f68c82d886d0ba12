"""Which partitions of a decided transaction still need their marker.

Invariant: a partition has its marker, waits for an answer, or waits for its turn to be tried again; when
all have it the transaction is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from moldau.transactions.metadata import TopicPartition
from moldau.wire.errors import ErrorCode

# The partition has the marker, or can have no open transaction: no release that accepts one answers like this.
_SETTLED = frozenset({ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION})
# Somebody newer is at work: this coordinator must not go on.
_REFUSED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})


@dataclass(slots=True)
class Completion:
    """The markers of one transaction. `token` tells its answers from those of an earlier transaction of the same
    producer."""

    token: int
    in_flight: set[TopicPartition]
    to_retry: set[TopicPartition] = field(default_factory=set)
    retry_at_ms: float | None = None
    is_abandoned: bool = False

    @property
    def remaining(self) -> set[TopicPartition]:
        return self.in_flight | self.to_retry

    def on_results(
        self, results: Mapping[TopicPartition, ErrorCode], retry_at_ms: float
    ) -> list[tuple[TopicPartition, ErrorCode]]:
        """Take answers into account; returns those that refuse the marker for good."""
        refused = []
        for partition, error in results.items():
            if partition not in self.in_flight:
                continue
            if error in _REFUSED:
                refused.append((partition, error))
                self.is_abandoned = True
                continue
            self.in_flight.discard(partition)
            if error not in _SETTLED:
                self.to_retry.add(partition)
        if self.to_retry and self.retry_at_ms is None:
            self.retry_at_ms = retry_at_ms
        return refused

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions were deleted: they need no marker any more."""
        self.in_flight.difference_update(partitions)
        self.to_retry.difference_update(partitions)
        if not self.to_retry:
            self.retry_at_ms = None

    def take_retries(self) -> list[TopicPartition]:
        partitions = sorted(self.to_retry)
        self.in_flight |= self.to_retry
        self.to_retry = set()
        self.retry_at_ms = None
        return partitions
