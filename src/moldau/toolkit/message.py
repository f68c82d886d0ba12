"""A record as a handler sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from moldau.records.client_headers import headers_of
from moldau.toolkit import letters
from moldau.toolkit.letters import Origin

if TYPE_CHECKING:
    from confluent_kafka import Message as RawMessage

    from moldau.toolkit.scheduler import Entry

_TIMESTAMP_TYPES = ("NoTimestampType", "CreateTime", "LogAppendTime")


class Message:
    """The record beside its decoded value: where it is from, its bytes, its headers, how often it was delivered.

    With `commit="manual"`, `done()` says that it is finished (it is committed with the next interval), `commit()` says
    the same and waits for the broker; with `earlier=True` all earlier records of the partition are finished with it.
    """

    __slots__ = ("_commit", "_done", "_headers", "entry", "raw", "value")

    def __init__(
        self,
        entry: Entry,
        done: Callable[[Entry, bool], None] | None = None,
        commit: Callable[[Entry, bool], Awaitable[None]] | None = None,
    ) -> None:
        self.entry = entry
        self.raw: RawMessage = entry.raw
        self.value: Any = None
        self._headers: list[letters.Header] | None = None
        self._done = done
        self._commit = commit

    @property
    def topic(self) -> str:
        """Where it was read: for a retry, the retry topic."""
        return str(self.raw.topic())

    @property
    def partition(self) -> int:
        """The partition of that topic."""
        return self.entry.part.where[1]

    @property
    def offset(self) -> int:
        """Its place in that partition."""
        return self.entry.offset

    @property
    def generation(self) -> int:
        """The assignment of the partition under which it was read."""
        return self.entry.part.generation

    @property
    def is_ours(self) -> bool:
        """Whether the partition is still assigned to this member as it was; what ends later does not count."""
        return self.entry.part.alive

    @property
    def key(self) -> bytes | None:
        """The key, as it was sent."""
        return self.entry.key

    @property
    def raw_value(self) -> bytes | None:
        """The value, as it was sent; None: a tombstone."""
        found: bytes | None = self.raw.value()
        return found

    @property
    def headers(self) -> list[letters.Header]:
        """Names and values, in the order in which they were sent."""
        if self._headers is None:
            self._headers = headers_of(self.raw)
        return self._headers

    def header(self, name: str) -> bytes | None:
        """The last header of that name."""
        return letters.find(self.headers, name)

    @property
    def timestamp_ms(self) -> int:
        """When it was made, or appended, as its topic has it."""
        return int(self.raw.timestamp()[1])

    @property
    def origin(self) -> Origin:
        """Where it was before it was ever retried."""
        kind, timestamp = self.raw.timestamp()
        name = _TIMESTAMP_TYPES[kind] if 0 <= kind < len(_TIMESTAMP_TYPES) else _TIMESTAMP_TYPES[0]
        here = Origin(self.topic, self.partition, self.offset, timestamp, name)
        return letters.origin_of(self.headers, here)

    @property
    def attempt(self) -> int:
        """1 at the first delivery; each retry, in place or through a topic, counts one more."""
        return letters.attempts_of(self.headers) + self.entry.attempts

    @property
    def id(self) -> str:
        """The sender's id, or else topic, partition and offset of the first delivery."""
        found = self.header(letters.ID)
        return found.decode(errors="replace") if found is not None else self.origin.id

    def done(self, *, earlier: bool = False) -> None:
        """It is handled, for handlers with `commit="manual"`; with `earlier`, so is all of its partition before it. The
        offset is committed with the next ones."""
        if self._done is None:
            raise RuntimeError('done() is for handlers with commit="manual"; others are finished when they return')
        self._done(self.entry, earlier)

    async def commit(self, *, earlier: bool = False) -> None:
        """As `done`, and return when the offset is committed."""
        if self._commit is None:
            raise RuntimeError('commit() is for handlers with commit="manual"; others are committed by themselves')
        await self._commit(self.entry, earlier)

    def __repr__(self) -> str:
        return f"<Message {self.topic}-{self.partition}@{self.offset} attempt {self.attempt}>"
