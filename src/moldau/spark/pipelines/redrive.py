"""Dead letters back to where they came from: after the cause was mended, they are tried again.

A letter goes to the topic, with the key, the value and the headers it had; what was added to explain it is taken off.
Reading and writing are one transaction after the other, so a redrive that is cut off goes on where it was, and nothing
is sent twice. The group `PIPELINE-redrive` shows how far it is.

Whoever may write to the dead-letter topic chooses what a letter's headers say. So a letter goes only to topics that the
pipeline reads, or that were named to `redrive`: the rights of whoever runs it are not lent to whoever wrote the letter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from moldau.spark.connecting import librdkafka_settings
from moldau.spark.pipelines import model
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
    refused: Counter[str] = field(default_factory=Counter)  # by the topic they name, which the pipeline does not read
    reasons: Counter[str] = field(default_factory=Counter)


def original(headers: Headers | None) -> tuple[str | None, Headers]:
    """Where a letter came from, None if it names no topic there could be, and the headers it had."""
    origin = (dict(headers or ()).get(_ORIGIN) or b"").decode(errors="replace")
    kept = [(name, value) for name, value in headers or () if not name.startswith(_ADDED)]
    return (origin if _TOPIC.fullmatch(origin) else None), kept


def is_wanted(headers: Headers | None, pipeline: str, reason: str) -> bool:
    """Whether a letter is this pipeline's, and says `reason`."""
    table = dict(headers or ())
    query = (table.get(_QUERY) or b"").decode(errors="replace")
    told = (table.get(_REASON) or b"").decode(errors="replace")
    return query.startswith(f"{pipeline}-") and reason in told


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
    settings: dict[str, Any] = librdkafka_settings({"bootstrap.servers": pipeline.bootstrap_servers, **pipeline.kafka})
    consumer = Consumer(
        {
            **settings,
            "group.id": f"{pipeline.name}-redrive",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 2,
        }
    )
    producer = None
    try:
        positions, ends = _places(consumer, pipeline.dead_letter_topic)
        consumer.assign(positions)
        if not rehearse:
            producer = Producer({**settings, "transactional.id": f"{pipeline.name}-redrive", "log_level": 2})
            producer.init_transactions(_SECONDS)
        return _walk(consumer, producer, _Choice(pipeline, reason, frozenset(also)), ends, limit)
    except KafkaException as error:
        raise RedriveFailed(f"dead letters of {pipeline.dead_letter_topic}: {error.args[0].str()}") from error
    finally:
        consumer.close()


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


@dataclass(slots=True, frozen=True)
class _Choice:
    """Which letters are sent."""

    pipeline: model.Pipeline
    reason: str
    also: frozenset[str]


def _walk(
    consumer: Consumer, producer: Producer | None, choice: _Choice, ends: dict[int, int], limit: int | None
) -> Redriven:
    done = Redriven()
    remaining = dict(ends)
    quiet = 0
    while remaining and (limit is None or done.sent.total() < limit):
        room = _BATCH if limit is None else min(_BATCH, limit - done.sent.total())
        messages = [each for each in consumer.consume(room, 1.0) if each.error() is None]
        quiet = 0 if messages else quiet + 1
        if quiet > 3:
            break  # what is left are marks of transactions, which nobody is shown
        if messages:
            _send(consumer, producer, messages, choice, done)
        for each in messages:
            partition, offset = each.partition() or 0, each.offset() or 0
            if offset + 1 >= remaining.get(partition, 0):
                remaining.pop(partition, None)
    return done


def _send(
    consumer: Consumer,
    producer: Producer | None,
    messages: Iterable[Any],
    choice: _Choice,
    done: Redriven,
) -> None:
    if producer is not None:
        producer.begin_transaction()
    next_offsets: dict[tuple[str, int], int] = {}
    for each in messages:
        next_offsets[each.topic(), each.partition()] = each.offset() + 1
        topic, headers = original(each.headers())
        if topic is None or not is_wanted(each.headers(), choice.pipeline.name, choice.reason):
            done.left_out += 1
            continue
        if not is_allowed(topic, choice.pipeline, choice.also):
            known = topic in done.refused or len(done.refused) < _REFUSED_SHOWN
            done.refused[topic if known else _OTHER_TOPICS] += 1
            continue
        done.sent[topic] += 1
        done.reasons[(dict(each.headers()).get(_REASON) or b"").decode(errors="replace")] += 1
        if producer is not None:
            while True:
                try:
                    producer.produce(topic, each.value(), each.key(), headers=headers or None)
                    break
                except BufferError:
                    producer.poll(0.1)
    if producer is not None:
        places = [TopicPartition(topic, index, offset) for (topic, index), offset in next_offsets.items()]
        producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), _SECONDS)
        producer.commit_transaction(_SECONDS)
