"""What goes into a coordinator shard and what comes out of it.

A shard never waits, reads a clock or touches a socket: it is given a request and the time, and returns records to
append and responses to send. Responses may belong to requests handed in long before (a JoinGroup waits for the
others).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from moldau.wire.errors import ErrorCode
from moldau.wire.message import Message


class Now(NamedTuple):
    """The time of one event. Timeouts use the monotonic clock, records the wall clock; the two are never mixed."""

    monotonic_ms: float
    wall_ms: int


class RequestContext(NamedTuple):
    """Where a request came from."""

    request_id: int
    """Chosen by the broker; names the request in `Effects.responses`."""
    api_version: int
    client_id: str
    client_host: str
    """As Kafka prints addresses: a slash and the address, "/127.0.0.1"."""
    principal: str = "User:ANONYMOUS"


class Record(NamedTuple):
    """One record of `__consumer_offsets`; a value of None is a tombstone."""

    key: bytes
    value: bytes | None


class Entry(NamedTuple):
    """A record as messages; a value of None is a tombstone."""

    key: Message
    value: Message | None


class Prepared(NamedTuple):
    """What a commit would write, and answer: made before it is decided whether it may."""

    records: list[Record]
    entries: list[Entry]
    results: list[Any]
    """Topics of the response."""


class Response(NamedTuple):
    request_id: int
    message: Message


class Producer(NamedTuple):
    """The transactional producer a batch of offset commits belongs to."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class RegexResolution(NamedTuple):
    """A group wants to know which topics its regular expressions match, as seen by the client `context` describes.

    The broker calls `moldau.groups.regex.resolve` (off the loop if there are many topics), removes the topics the
    client may not describe, and hands the result to `GroupShard.on_regexes_resolved`.
    """

    group_id: str
    regexes: tuple[str, ...]
    context: RequestContext


@dataclass(slots=True, frozen=True)
class Effects:
    """What the broker does next, in this order: append `records` as one batch; once that batch and all of the same
    group before it are committed (high watermark), send `responses`; call `tick` at `next_deadline_ms`.

    Responses without records wait for the group's earlier batches too: they may tell of what is not committed yet. Once
    the records are in the log, `GroupShard.on_appended` lets those take effect that have not yet. When an append
    fails, `GroupShard.on_append_failed` takes back what the event did; its effects are carried out instead of these.
    """

    records: tuple[Record, ...] = ()
    responses: tuple[Response, ...] = ()
    regex_resolutions: tuple[RegexResolution, ...] = ()
    next_deadline_ms: float | None = None
    """On the monotonic clock; None: nothing is pending."""
    producer: Producer | None = None
    """Set: the records are transactional."""
    entries: tuple[Entry, ...] = ()
    """Those records (committed offsets and their tombstones) that take effect once they are in the log."""
    atomic: bool = True
    """False: the records may be split over several batches (clean-up; each record stands for itself, and is among
    `entries`)."""
    failures: tuple[Exception, ...] = ()
    """Mistakes in our own code, for the broker's log. What the event did so far was taken back."""


class GroupFailure(Exception):
    """A request that is refused, with the error code its response carries. Raised before anything was changed."""

    def __init__(self, error: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or error.meaning)
        self.error = error
        self.message = message or error.meaning
