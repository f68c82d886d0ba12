"""Dead letters back to where they came from: after the cause was mended, they are tried again.

A letter goes to the topic, with the key, the value and the headers it had; what was added to explain it is taken off.
Reading and writing are one transaction after the other, so a redrive that is cut off goes on where it was, and nothing
is sent twice. The group `PIPELINE-redrive` shows how far it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from moldau.spark.connecting import librdkafka_settings
from moldau.spark.pipelines import model

_ADDED = ("kafka_dlt-", "__connect.errors.", "x-original-topic")
_ORIGIN, _QUERY, _REASON = "x-original-topic", "__connect.errors.connector.name", "kafka_dlt-exception-message"
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_BATCH = 500
_SECONDS = 30.0
Headers = list[tuple[str, Any]]  # values are bytes or None


class RedriveFailed(RuntimeError):
    """Why it stopped; what was sent so far is counted."""


@dataclass(slots=True)
class Redriven:
    """What was done, or, in a rehearsal, what would be."""

    sent: Counter[str] = field(default_factory=Counter)  # by topic
    left_out: int = 0  # of other pipelines, with other reasons, or without a place to go to
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


def redrive(
    pipeline: model.Pipeline, *, reason: str = "", limit: int | None = None, rehearse: bool = False
) -> Redriven:
    """Send all letters that are there now, or `limit` of them. A rehearsal sends and remembers nothing."""
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
        return _walk(consumer, producer, pipeline.name, ends, reason, limit)
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


def _walk(
    consumer: Consumer, producer: Producer | None, pipeline: str, ends: dict[int, int], reason: str, limit: int | None
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
            _send(consumer, producer, messages, pipeline, reason, done)
        for each in messages:
            partition, offset = each.partition() or 0, each.offset() or 0
            if offset + 1 >= remaining.get(partition, 0):
                remaining.pop(partition, None)
    return done


def _send(
    consumer: Consumer,
    producer: Producer | None,
    messages: Iterable[Any],
    pipeline: str,
    reason: str,
    done: Redriven,
) -> None:
    if producer is not None:
        producer.begin_transaction()
    next_offsets: dict[tuple[str, int], int] = {}
    for each in messages:
        next_offsets[each.topic(), each.partition()] = each.offset() + 1
        topic, headers = original(each.headers())
        if topic is None or not is_wanted(each.headers(), pipeline, reason):
            done.left_out += 1
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
