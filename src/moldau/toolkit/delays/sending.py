"""Asking for a message later: at a time, after a while, again and again; and taking it back.

    delays = Delays(producer)
    await delays.send("reminders", reminder, after="1h", id="reminder-17")
    await delays.cancel("reminder-17")

`app.send(..., after="1h")` does the same. Acknowledged means durable: a relay (`moldau relay`) sends it when it is due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from moldau.seams import SystemClock
from moldau.toolkit import letters
from moldau.toolkit.delays import entry
from moldau.toolkit.delays.cron import next_due_ms
from moldau.toolkit.delays.entry import Delayed
from moldau.toolkit.delays.topics import DELAYS, PARTITIONS, DelayTopics, make_topics
from moldau.toolkit.durations import Duration, milliseconds
from moldau.toolkit.errors import SetupError
from moldau.toolkit.partitioners import by_key
from moldau.toolkit.sending import Delivery, Header, Producer, Record


class Delays:
    """Delayed messages of one name, sent through a producer."""

    def __init__(
        self,
        producer: Producer,
        *,
        topic: str = DELAYS,
        partitions: int = PARTITIONS,
        wall_ms: Callable[[], int] | None = None,
        send_record: Callable[[Record], Delivery] | None = None,
    ) -> None:
        """The topics are made at the first call, with so many partitions, if they are not there."""
        self.topics = DelayTopics(topic)
        self.partitions = partitions
        self.was_used = False
        self._producer = producer
        self._wall_ms = wall_ms or SystemClock().wall_ms
        self._send_record = send_record or producer.send_record

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Mapping[str, bytes | str] | Sequence[Header] = (),
        partition: int | None = None,
        at: datetime | int | None = None,
        after: Duration | None = None,
        cron: str | None = None,
        zone: str = "UTC",
        id: str | None = None,  # noqa: A002  what it is
    ) -> Delivery:
        """Have it sent at a time (a datetime with time zone, or milliseconds since 1970), after a while, or by cron.

        The delivery is that of the order; its `id` is what `cancel` takes. The same id again replaces what is pending.
        """
        if (at is not None) + (after is not None) + (cron is not None) != 1:
            raise SetupError("say when: one of at=, after= and cron=")
        if cron is not None:
            due_ms = next_due_ms(cron, self._wall_ms(), zone)
        else:
            due_ms = self._wall_ms() + milliseconds(after) if after is not None else _at_ms(at)
        record = self._producer.encode(topic, value, key, headers, partition)
        own = [header for header in record.headers if id is None or header[0] != letters.ID]
        if id is not None:
            own.append((letters.ID, _checked(id).encode()))
        name = id if id is not None else (letters.find(own, letters.ID) or b"").decode()
        delayed = Delayed(due_ms, topic, record.key, record.value, own, partition, cron, zone)
        return self._command(_checked(name), entry.encode(delayed))

    def cancel(self, id: str) -> Delivery:  # noqa: A002  what it is
        """Send nothing under this id (any more).

        Acknowledged before the message is due: it is not sent. Later: it may have been. An id nobody knows is no error.
        """
        return self._command(_checked(id), None)

    def make_topics(self) -> None:
        """Have the topics; blocks the first time."""
        if not self.was_used:
            self.partitions = make_topics(self._producer.client_config, self.topics, self.partitions)
            self.was_used = True

    def command(self, id_: str, data: bytes | None) -> Record:
        """What asks the relay for it; the topics are there."""
        name = id_.encode()
        # An id belongs to its partition, wherever the app would send others of that key.
        partition = None if self._producer.is_by_key else by_key(self.topics.commands, name, self.partitions)
        return Record(self.topics.commands, data, name, [(letters.ID, name)], partition)

    def _command(self, id_: str, data: bytes | None) -> Delivery:
        self.make_topics()
        return self._send_record(self.command(id_, data))


def _at_ms(at: datetime | int | None) -> int:
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise SetupError("at= is a datetime with a time zone: datetime.now(UTC) + …")
        at = round(at.timestamp() * 1_000)
    if not isinstance(at, int) or not 0 <= at <= entry.DUE_MS_MAX:
        raise SetupError(f"at={at!r}: a datetime with a time zone, or milliseconds since 1970")
    return at


def _checked(id_: str) -> str:
    if not id_ or id_.startswith("\0") or len(id_.encode()) > entry.ID_BYTES_MAX:
        raise SetupError(f"{id_!r} is no id of a delayed message: 1 to {entry.ID_BYTES_MAX} bytes")
    return id_
