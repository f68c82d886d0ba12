"""What goes into a transaction shard and what comes out of it.

A shard never waits, reads a clock or touches a socket: it is given an event and the time, and returns what the
broker has to do. Responses may belong to requests handed in before: most wait until their record is committed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from moldau.transactions.metadata import TopicPartition
from moldau.transactions.records import Record
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Struct


class Now(NamedTuple):
    """The time of one event. Pauses use the monotonic clock. What is in the log (the age of a transaction, of an
    id) has to be compared with the wall clock, because another machine may have written it."""

    monotonic_ms: float
    wall_ms: int


class RequestContext(NamedTuple):
    request_id: int
    """Chosen by the broker; names the request in `Effects.responses`."""
    api_version: int
    offsets_partition: int = -1
    """For AddOffsetsToTxn: the partition of `__consumer_offsets` that the group belongs to."""


class Append(NamedTuple):
    """Records to append to the shard's partition as one batch, with acks=all and no compression.

    The broker calls `on_append(token, …)` exactly once: when the batch is committed (high watermark), or has
    failed. Appends need not wait for one another; there is at most one at a time for a transactional id."""

    token: int
    records: tuple[Record, ...]
    timeout_ms: int


class TxnMarker(NamedTuple):
    """Commit or abort markers to write. The broker finds the leaders, sends WriteTxnMarkers (or writes them
    itself), and reports every partition exactly once, in one call of `on_marker_results` or in several."""

    token: int
    """Names the transaction in `on_marker_results`; sending again keeps the token."""
    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


class Response(NamedTuple):
    request_id: int
    message: Struct
    """A whole response; for AddPartitionsToTxn the result of the one transaction (see `add_partitions.response`)."""


class Abandoned(NamedTuple):
    """A partition refused a marker for good, so the transaction stays as it is until the coordinator moves. Worth a
    log line: with TRANSACTION_COORDINATOR_FENCED a newer coordinator exists and finishes it; with
    INVALID_PRODUCER_EPOCH an operator may have to look (kafka-transactions find-hanging)."""

    transactional_id: str
    partition: TopicPartition
    error: ErrorCode


@dataclass(slots=True)
class Effects:
    """What the broker does next, in any order. Afterwards it looks at `TransactionShard.next_deadline_ms`."""

    appends: list[Append] = field(default_factory=list)
    responses: list[Response] = field(default_factory=list)
    markers: list[TxnMarker] = field(default_factory=list)
    abandoned: list[Abandoned] = field(default_factory=list)
