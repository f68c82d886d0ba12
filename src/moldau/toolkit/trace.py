"""Where was message X produced, stored, consumed, by whom, how often retried: events on a trace topic, by message id.

With `App(trace=True)` every send and every outcome of a handler is noted as a small JSON record on `moldau-trace`, with
the message's id as key, so that the story of one message lies on one partition in order. Noting is best effort and
never holds up a record. OpenTelemetry's context travels in `traceparent`, when that library is installed.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from moldau.toolkit import letters
from moldau.toolkit.errors import SendFailed, ToolkitError
from moldau.toolkit.partitioners import by_key
from moldau.toolkit.sending import Receipt, Record

if TYPE_CHECKING:
    from moldau.toolkit.message import Message
    from moldau.toolkit.sending import Producer
    from moldau.toolkit.spec import CallNext
    from moldau.toolkit.timekeeping import Time

    class Traced(Protocol):
        """The app, as far as its tracer may touch it."""

        @property
        def name(self) -> str: ...
        @property
        def time(self) -> Time: ...
        @property
        def producer(self) -> Producer: ...


log = logging.getLogger("moldau.toolkit")

TRACE_TOPIC = "moldau-trace"


class Tracer:
    """Notes what one app does; a producer interceptor, and told by handlers."""

    def __init__(self, app: Traced, topic: str) -> None:
        self._app = app
        self._topic = topic
        self._who = f"{socket.gethostname()}:{os.getpid()}"

    def on_send(self, record: Record) -> Record:
        if record.topic != self._topic:
            message_id = _id(record)
            if message_id is not None:
                self._note(message_id, "produced", {"topic": record.topic})
        return record

    def on_acknowledgement(self, record: Record, receipt: Receipt | None, error: SendFailed | None) -> None:
        if record.topic == self._topic or (message_id := _id(record)) is None:
            return
        if receipt is None:
            self._note(message_id, "not stored", {"topic": record.topic, "error": str(error)[:500]})
        elif receipt.is_spooled:
            self._note(message_id, "spooled", {"topic": record.topic})
        else:
            where = {"topic": receipt.topic, "partition": receipt.partition, "offset": receipt.offset}
            self._note(message_id, "stored", where)

    def consumed(self, what: str, message: Message, details: dict[str, Any]) -> None:
        """A handler ended with a record."""
        where = {"topic": message.topic, "partition": message.partition, "offset": message.offset}
        self._note(message.id, what, where | {"attempt": message.attempt} | details)

    def _note(self, message_id: str, what: str, details: Mapping[str, Any]) -> None:
        event = {"at_ms": self._app.time.wall_ms(), "event": what, "app": self._app.name, "by": self._who, **details}
        try:
            data = json.dumps(event).encode()
            self._app.producer.send_record(Record(self._topic, data, message_id.encode()))
        except (ToolkitError, ValueError) as error:
            log.warning("a trace event was not noted: %s", error)


def _id(record: Record) -> str | None:
    found = letters.find(list(record.headers), letters.ID)
    return found.decode(errors="replace") if found is not None else None


@dataclass(slots=True, frozen=True)
class Step:
    """One event in a message's life."""

    at_ms: int
    event: str
    details: Mapping[str, Any]


def story(config: Mapping[str, Any], message_id: str, topic: str = TRACE_TOPIC) -> list[Step]:
    """Everything noted about a message, oldest first. Blocks; reads one partition of the trace topic."""
    from moldau.toolkit.reading import partition_count, read_partition

    count = partition_count(config, topic)
    key = message_id.encode()
    index = by_key(topic, key, count)
    assert index is not None
    steps = list(_steps(read_partition(config, topic, index), key))
    return sorted(steps, key=lambda step: step.at_ms)


def _steps(messages: Any, key: bytes) -> Iterator[Step]:
    for message in messages:
        if message.key() != key:
            continue
        try:
            found = json.loads(message.value() or b"")
            yield Step(int(found.pop("at_ms")), str(found.pop("event")), found)
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError):
            continue  # not one of ours


class OpenTelemetry:
    """An interceptor that carries OpenTelemetry's context: `App(interceptors=[OpenTelemetry()])`.

    What is sent takes the current context along; a handler runs in the context of its record, so that its spans, and
    what it sends, belong to the trace of whoever sent the record.
    """

    def __init__(self) -> None:
        try:
            from opentelemetry import context, propagate
        except ImportError as error:
            raise ToolkitError("install opentelemetry-api to carry its context") from error
        self._context = context
        self._propagate = propagate

    def on_send(self, record: Record) -> Record:
        """The same record, with the headers of the current trace."""
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier)
        names = {name for name, _ in record.headers}
        more = [(name, value.encode()) for name, value in carrier.items() if name not in names]
        return Record(
            record.topic, record.value, record.key, [*record.headers, *more], record.partition, record.timestamp_ms
        )

    async def around(self, message: Message, call: CallNext) -> Any:
        """Every call of a handler, in its record's context."""
        carrier = {name: value.decode(errors="replace") for name, value in message.headers if value is not None}
        token = self._context.attach(self._propagate.extract(carrier))
        try:
            return await call()
        finally:
            self._context.detach(token)
