"""Dead letters: list them by reason, look into one, send one, some or all of them back.

Invariants: a letter goes back as it came (key, value, the sender's headers), and never twice: the record and a note of
it on the audit topic (`orders-dlt-redriven`) are one transaction, and whoever redrives reads the notes first, after
fencing every other redriver of that topic.
"""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.records.client_headers import headers_of
from moldau.toolkit import letters
from moldau.toolkit.errors import NotThere, ToolkitError
from moldau.toolkit.letters import Origin
from moldau.toolkit.reading import read_topic

_SECONDS = 30.0
_CHUNK = 100


@dataclass(slots=True, frozen=True)
class Letter:
    """A dead letter, as it lies in its topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[letters.Header]

    @property
    def origin(self) -> Origin:
        here = Origin(self.topic, self.partition, self.offset, self.timestamp_ms, "CreateTime")
        return letters.origin_of(self.headers, here)

    @property
    def group(self) -> str:
        return letters.group_of(self.headers) or ""

    @property
    def id(self) -> str:
        """What is redriven once: the record that failed, and for whom."""
        return f"{self.origin.id}@{self.group}" if self.group else self.origin.id

    @property
    def error(self) -> str:
        return self._text(
            "kafka_dlt-exception-message", "kafka_exception-message", "__connect.errors.exception.message"
        )

    @property
    def reason(self) -> str:
        """The exception's class: what letters are grouped by."""
        found = self._text("kafka_dlt-exception-fqcn", "kafka_exception-fqcn", "__connect.errors.exception.class.name")
        return found or "unknown"

    @property
    def stacktrace(self) -> str:
        return self._text("kafka_dlt-exception-stacktrace", "kafka_exception-stacktrace")

    @property
    def attempts(self) -> int:
        return letters.attempts_of(self.headers)

    def _text(self, *names: str) -> str:
        for name in names:
            if (found := letters.find(self.headers, name)) is not None:
                return found.decode(errors="replace")
        return ""


@dataclass(slots=True, frozen=True)
class Reason:
    """Letters that died of the same."""

    name: str
    count: int
    first_ms: int
    last_ms: int
    example: Letter


@dataclass(slots=True, frozen=True)
class Redriven:
    """What a redrive did."""

    sent: int
    skipped: int  # redriven before
    left: int  # not chosen


def audit_topic(topic: str) -> str:
    return f"{topic}-redriven"


def letters_in(config: Mapping[str, Any], topic: str) -> Iterator[Letter]:
    """The letters of a topic up to its end now; partition by partition in offset order."""
    for message in read_topic(config, topic):
        where = message.topic(), message.partition(), message.offset()
        yield Letter(*where, message.timestamp()[1], message.key(), message.value(), headers_of(message))  # type: ignore[arg-type]  # read records have all of them


def by_reason(found: Iterable[Letter]) -> list[Reason]:
    """Grouped, the most frequent first."""
    groups: dict[str, Reason] = {}
    for letter in found:
        old = groups.get(letter.reason)
        at = letter.timestamp_ms
        if old is None:
            groups[letter.reason] = Reason(letter.reason, 1, at, at, letter)
        else:
            first, last = min(old.first_ms, at), max(old.last_ms, at)
            groups[letter.reason] = Reason(old.name, old.count + 1, first, last, old.example)
    return sorted(groups.values(), key=lambda reason: (-reason.count, reason.name))


def find_letter(config: Mapping[str, Any], topic: str, letter_id: str) -> Letter:
    """By its id, with or without the group, or by partition:offset in the dead-letter topic itself."""
    for letter in letters_in(config, topic):
        if letter_id in (letter.id, letter.origin.id, f"{letter.partition}:{letter.offset}"):
            return letter
    raise NotThere(f"{topic} has no letter {letter_id}: `moldau dlq list {topic}` shows what there is")


def redriven_ids(config: Mapping[str, Any], topic: str) -> set[str]:
    """What was sent back before."""
    try:
        return {(message.key() or b"").decode(errors="replace") for message in read_topic(config, audit_topic(topic))}
    except NotThere:  # nothing was; whatever else is wrong must not let us send one twice
        return set()


def redrive(
    config: Mapping[str, Any],
    topic: str,
    choose: Callable[[Letter], bool] = lambda _: True,
    *,
    to: str | None = None,
    rate: float | None = None,
    by: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Redriven:
    """Send letters back to where they came from, or elsewhere; at most `rate` a second. Blocks until done."""
    _make_audit_topic(config, audit_topic(topic))
    producer = Producer(
        {"log_level": 0, **config, "transactional.id": f"moldau-redrive-{topic}", "enable.idempotence": True}
    )
    producer.init_transactions(_SECONDS)
    known = redriven_ids(config, topic)  # after init: nobody else can add any more
    who = by or getpass.getuser()
    sent = skipped = left = 0
    chunk: list[Letter] = []
    size = _CHUNK if rate is None else max(1, min(_CHUNK, int(rate)))
    for letter in letters_in(config, topic):
        if not choose(letter):
            left += 1
        elif letter.id in known:
            skipped += 1
        else:
            known.add(letter.id)
            chunk.append(letter)
            if len(chunk) == size:
                sent += _send_chunk(producer, chunk, topic, to, who)
                chunk = []
                if rate is not None:
                    sleep(size / rate)
    if chunk:
        sent += _send_chunk(producer, chunk, topic, to, who)
    return Redriven(sent, skipped, left)


def _send_chunk(producer: Producer, chunk: Sequence[Letter], topic: str, to: str | None, who: str) -> int:
    failed: list[KafkaError] = []

    def noted(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(error)

    for letter in chunk:
        if (to or letter.origin.topic) == topic:
            raise ToolkitError(f"{letter.id} does not say where it came from: say where to with --to")
    producer.begin_transaction()
    try:
        for letter in chunk:
            target = to or letter.origin.topic
            note = {
                "at_ms": time.time_ns() // 1_000_000,
                "to": target,
                "by": who,
                "from": f"{letter.partition}:{letter.offset}",
            }
            headers: list[Any] = list(letters.foreign(letter.headers))
            producer.produce(target, letter.value, letter.key, headers=headers, on_delivery=noted)
            producer.produce(audit_topic(topic), json.dumps(note).encode(), letter.id.encode(), on_delivery=noted)
            producer.poll(0)
        producer.flush(_SECONDS)
        producer.commit_transaction(_SECONDS)  # fails if one of them did
    except KafkaException as error:
        producer.abort_transaction(_SECONDS)
        raise (KafkaException(failed[0]) if failed else error) from error
    return len(chunk)


def _make_audit_topic(config: Mapping[str, Any], name: str) -> None:
    admin = AdminClient({"log_level": 0, **config})
    (future,) = admin.create_topics([NewTopic(name, 1, -1, config={"cleanup.policy": "compact"})]).values()
    try:
        future.result(_SECONDS)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
