"""Reading topics from end to end without a group: for tools that look and do not work."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from moldau.toolkit.errors import ClusterAway, NotThere

_SECONDS = 15.0
_UNKNOWN = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)


def reader(config: Mapping[str, Any]) -> Consumer:
    """A consumer that joins no group and commits nothing."""
    quiet = {
        "log_level": 0,
        "group.id": "moldau-tools",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 20,  # an end is told by an answer without records
    }
    return Consumer({**quiet, "isolation.level": "read_committed", **config})


def partition_count(config: Mapping[str, Any], topic: str) -> int:
    """How many partitions a topic has; an error that says so if there is none."""
    consumer = reader(config)
    try:
        return _count(consumer, topic)
    finally:
        consumer.close()


def _count(consumer: Consumer, topic: str) -> int:
    found = consumer.list_topics(topic, timeout=_SECONDS).topics.get(topic)
    if found is None or not found.partitions:
        if found is not None and found.error is not None and found.error.code() not in _UNKNOWN:
            raise KafkaException(found.error)  # that we may not see it, say
        raise NotThere(f"there is no topic {topic}")
    return len(found.partitions)


def read_partition(config: Mapping[str, Any], topic: str, index: int) -> Iterator[Message]:
    """Every record of a partition up to its end now."""
    return read_topic(config, topic, [index])


def read_topic(config: Mapping[str, Any], topic: str, indexes: Sequence[int] | None = None) -> Iterator[Message]:
    """Every record of a topic up to its end now, partition by partition in no order."""
    consumer = reader(config)
    try:
        wanted = range(_count(consumer, topic)) if indexes is None else indexes
        consumer.assign([TopicPartition(topic, index, 0) for index in wanted])
        # Retention may have deleted the beginning; a reset to the earliest is meant then.
        unfinished = set(wanted)
        last = time.monotonic()
        while unfinished:
            messages = consumer.consume(500, 0) or consumer.consume(1, 0.2)  # it waits for as many as it was asked for
            if messages:
                last = time.monotonic()
            elif time.monotonic() - last > _SECONDS:
                raise ClusterAway(f"{topic} cannot be read to its end: no broker answers for {sorted(unfinished)}")
            for message in messages:
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition())
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
