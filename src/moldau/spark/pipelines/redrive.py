"""Dead letters back to where they came from: after the cause was mended, they are tried again.

A letter goes to the topic, with the key, the value and the headers it had; what was added to explain it is taken off.
The record and a note of it on the topic `LETTERS-redriven` are one transaction, and whoever redrives reads the notes
first, after fencing every other redriver of these letters. So nothing is sent twice, not by `moldau dlq redrive` and
the console either, which keep the same notes; and what one redrive leaves out (another reason, a topic that was not
allowed) the next one can send. The group `PIPELINE-redrive` stands before the first letter that is left.

Whoever may write to the dead-letter topic chooses what a letter's headers say. So a letter goes only to topics that the
pipeline reads, or that were named to `redrive`: the rights of whoever runs it are not lent to whoever wrote the letter.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.records.client_headers import headers_of
from moldau.spark.connecting import librdkafka_settings
from moldau.spark.pipelines import model
from moldau.spark.pipelines.reach import require_brokers
from moldau.spark.pipelines.secrecy import keeping_secrets
from moldau.spark.topic_patterns import topic_pattern

_ADDED = ("kafka_dlt-", "__connect.errors.", "x-original-topic")
_ORIGIN, _QUERY, _REASON = "x-original-topic", "__connect.errors.connector.name", "kafka_dlt-exception-message"
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_BATCH = 500
_REFUSED_SHOWN = 20  # whoever writes letters could name any number of topics
_OTHER_TOPICS = "(others)"
_SECONDS = 30.0
Headers = list[tuple[str, Any]]  # values are bytes or None


class RedriveFailed(RuntimeError):
    """Why it stopped; what was sent so far is counted."""


@dataclass(slots=True)
class Redriven:
    """What was done, or, in a rehearsal, what would be."""

    sent: Counter[str] = field(default_factory=Counter)  # by topic
    left_out: int = 0  # of other pipelines, with other reasons, or without a place to go to
    before: int = 0  # were sent by an earlier redrive
    refused: Counter[str] = field(default_factory=Counter)  # by the topic they name, which the pipeline does not read
    reasons: Counter[str] = field(default_factory=Counter)


def original(headers: Headers | None) -> tuple[str | None, Headers]:
    """Where a letter came from, None if it names no topic there could be, and the headers it had."""
    origin = (dict(headers or ()).get(_ORIGIN) or b"").decode(errors="replace")
    kept = [(name, value) for name, value in headers or () if not name.startswith(_ADDED)]
    return (origin if _TOPIC.fullmatch(origin) else None), kept


def is_ours(headers: Headers | None, pipeline: str) -> bool:
    """Whether a letter is this pipeline's."""
    return (dict(headers or ()).get(_QUERY) or b"").decode(errors="replace").startswith(f"{pipeline}-")


def reason_of(headers: Headers | None) -> str:
    return (dict(headers or ()).get(_REASON) or b"").decode(errors="replace")


def id_of(message: Any) -> str:
    """What is sent once: the record that failed; the letter itself if it does not tell. As in all notes."""
    table = dict(headers_of(message))
    topic, partition, offset = (table.get(f"kafka_dlt-original-{name}") for name in ("topic", "partition", "offset"))
    if topic is None or partition is None or offset is None:
        return f"{message.topic()}-{message.partition()}-{message.offset()}"
    numbers = (int.from_bytes(each, "big", signed=True) for each in (partition, offset))
    group = (table.get("kafka_dlt-original-consumer-group") or b"").decode(errors="replace")
    found = "-".join((topic.decode(errors="replace"), *map(str, numbers)))
    return f"{found}@{group}" if group else found


def is_allowed(topic: str, pipeline: model.Pipeline, also: Collection[str] = ()) -> bool:
    """Whether a letter may go there: to the pipeline's own sources, and to what was named."""
    if topic in also:
        return True
    for source in pipeline.sources.values():
        if isinstance(source, model.TopicSource) and topic in (each.strip() for each in source.topic.split(",")):
            return True
        if isinstance(source, model.PatternSource) and topic_pattern(source.topic_pattern).search(topic) is not None:
            # A pattern may fit what nobody meant: never the cluster's own topics.
            return not topic.startswith("__")
    return False


@keeping_secrets
def redrive(
    pipeline: model.Pipeline,
    *,
    reason: str = "",
    limit: int | None = None,
    rehearse: bool = False,
    also: Collection[str] = (),
) -> Redriven:
    """Send all letters that are there now, or `limit` of them. A rehearsal sends and remembers nothing.

    `also` names topics that letters may go to although the pipeline does not read them (any more).
    """
    letters = pipeline.dead_letter_topic
    settings: dict[str, Any] = librdkafka_settings({"bootstrap.servers": pipeline.bootstrap_servers, **pipeline.kafka})
    require_brokers(pipeline)
    consumer = Consumer(_reading(settings, f"{pipeline.name}-redrive"))
    try:
        positions, ends = _places(consumer, letters)
        producer = None
        if not rehearse:
            _make_notes(settings, notes_of(letters))
            producer = Producer({**settings, "transactional.id": f"moldau-redrive-{letters}", "log_level": 2})
            producer.init_transactions(_SECONDS)  # from here on nobody else adds notes
        walk = _Walk(consumer, producer, _Choice(pipeline, reason, frozenset(also)), _noted(settings, letters))
        consumer.assign(positions)
        for messages in _read(consumer, ends, walk.room(limit)):
            walk.send(messages)
    except KafkaException as error:
        raise RedriveFailed(f"dead letters of {letters}: {error.args[0].str()}") from error
    finally:
        consumer.close()
    return walk.done


def notes_of(letters: str) -> str:
    """The topic that tells which letters were sent."""
    return f"{letters}-redriven"


def _reading(settings: dict[str, Any], group: str) -> dict[str, Any]:
    return {
        **settings,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "log_level": 2,
    }


def _places(consumer: Consumer, topic: str) -> tuple[list[TopicPartition], dict[int, int]]:
    """Where to begin in each partition, and where it ends now."""
    found = consumer.list_topics(topic, _SECONDS).topics[topic]
    if found.error is not None:
        raise RedriveFailed(f"there is no topic {topic!r}: no record was ever refused")
    ends, positions = {}, []
    asked = [TopicPartition(topic, index) for index in found.partitions]
    for place in consumer.committed(asked, _SECONDS):
        low, high = consumer.get_watermark_offsets(place, _SECONDS)
        start = max(place.offset, low)
        if start < high:
            ends[place.partition] = high
            positions.append(TopicPartition(topic, place.partition, start))
    return positions, ends


def _read(consumer: Consumer, ends: dict[int, int], room: Callable[[], int]) -> Iterator[list[Any]]:
    """Messages up to the ends, as many at a time as there is room for."""
    remaining = dict(ends)
    silent_since = time.monotonic()
    while remaining and (count := room()) > 0:
        messages = []
        for each in consumer.consume(count, 1.0):
            error = each.error()
            if error is None:
                messages.append(each)
            elif error.code() == KafkaError._PARTITION_EOF:
                remaining.pop(each.partition() or 0, None)
                silent_since = time.monotonic()
            elif not error.retriable():
                raise KafkaException(error)
        if messages:
            yield messages
            silent_since = time.monotonic()
        for each in messages:
            if (each.offset() or 0) + 1 >= remaining.get(each.partition() or 0, 0):
                remaining.pop(each.partition() or 0, None)
        if time.monotonic() - silent_since > _SECONDS:
            raise RedriveFailed(f"no broker has sent anything for {_SECONDS:.0f} s; what was sent is noted: try again")


def _make_notes(settings: dict[str, Any], name: str) -> None:
    admin = AdminClient({**settings, "log_level": 2})
    (future,) = admin.create_topics([NewTopic(name, 1, -1, config={"cleanup.policy": "compact"})]).values()
    try:
        future.result(_SECONDS)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def _noted(settings: dict[str, Any], letters: str) -> set[str]:
    """Which letters were sent before, by whomever."""
    name = notes_of(letters)
    consumer = Consumer(_reading(settings, f"{name}-reader"))
    try:
        found = consumer.list_topics(name, _SECONDS).topics[name]
        if found.error is not None:
            return set()  # nobody has sent any
        ends = dict.fromkeys(found.partitions, 1 << 62)  # up to where nothing more is there
        consumer.assign([TopicPartition(name, index, 0) for index in ends])
        messages = (each for some in _read(consumer, ends, lambda: _BATCH) for each in some)
        return {(each.key() or b"").decode(errors="replace") for each in messages}
    finally:
        consumer.close()


@dataclass(slots=True, frozen=True)
class _Choice:
    """Which letters are sent."""

    pipeline: model.Pipeline
    reason: str
    also: frozenset[str]


class _Walk:
    """One redrive, from letter to letter."""

    def __init__(self, consumer: Consumer, producer: Producer | None, choice: _Choice, noted: set[str]) -> None:
        self._consumer = consumer
        self._producer = producer  # None in a rehearsal
        self._choice = choice
        self._noted = noted
        self._kept: dict[tuple[str, int], int] = {}  # by partition, the first letter that may be sent later
        self.done = Redriven()

    def room(self, limit: int | None) -> Callable[[], int]:
        return lambda: _BATCH if limit is None else min(_BATCH, limit - self.done.sent.total())

    def send(self, messages: list[Any]) -> None:
        """Send those that are wanted, in one transaction."""
        producer = self._producer
        if producer is not None:
            producer.begin_transaction()
        next_offsets: dict[tuple[str, int], int] = {}
        for each in messages:
            place = each.topic(), each.partition()
            next_offsets[place] = each.offset() + 1
            topic = self._goal(each)
            if topic is not None:
                self._send_one(each, topic)
        if producer is not None:
            places = [
                TopicPartition(topic, index, min(offset, self._kept.get((topic, index), offset)))
                for (topic, index), offset in next_offsets.items()
            ]
            producer.send_offsets_to_transaction(places, self._consumer.consumer_group_metadata(), _SECONDS)
            producer.commit_transaction(_SECONDS)

    def _goal(self, message: Any) -> str | None:
        """Where a letter goes; None if it is not sent, which is counted."""
        choice, done = self._choice, self.done
        topic, _ = original(headers_of(message))
        if topic is None or not is_ours(headers_of(message), choice.pipeline.name):
            done.left_out += 1
        elif id_of(message) in self._noted:
            done.before += 1
        elif choice.reason not in reason_of(headers_of(message)):
            done.left_out += 1
            self._keep(message)
        elif not is_allowed(topic, choice.pipeline, choice.also):
            known = topic in done.refused or len(done.refused) < _REFUSED_SHOWN
            done.refused[topic if known else _OTHER_TOPICS] += 1
            self._keep(message)
        else:
            return topic
        return None

    def _keep(self, message: Any) -> None:
        self._kept.setdefault((message.topic(), message.partition()), message.offset())

    def _send_one(self, message: Any, topic: str) -> None:
        self.done.sent[topic] += 1
        self.done.reasons[reason_of(headers_of(message))] += 1
        self._noted.add(id_of(message))
        if self._producer is None:
            return
        _, headers = original(headers_of(message))
        note = {"at_ms": time.time_ns() // 1_000_000, "to": topic, "by": f"pipeline {self._choice.pipeline.name}"}
        note["from"] = f"{message.partition()}:{message.offset()}"
        self._produce(topic, message.value(), message.key(), headers)
        self._produce(notes_of(message.topic()), json.dumps(note).encode(), id_of(message).encode(), [])

    def _produce(self, topic: str, value: bytes | None, key: bytes | None, headers: Headers) -> None:
        assert self._producer is not None
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers or None)
            except BufferError:
                self._producer.poll(0.1)
            else:
                return
