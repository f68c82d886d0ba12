"""Writing and reading from a test, without the ten lines a producer and a consumer take each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

Bytes = bytes | str | None
_SECONDS_MAX = 20.0
_POLL_SECONDS = 0.1
_ANY_PARTITION = -1  # the producer's own choice


@dataclass(frozen=True, slots=True)
class Received:
    """A record as a consumer sees it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = field(default=-1, compare=False)


def produce(
    settings: dict[str, Any],
    topic: str,
    values: Iterable[Bytes],
    *,
    key: Bytes | Callable[[Bytes], Bytes] = None,
    headers: dict[str, bytes] | None = None,
    partition: int | None = None,
    seconds: float = _SECONDS_MAX,
) -> list[tuple[int, int]]:
    """Send, and return (partition, offset) of each in order, once all are acknowledged."""
    from confluent_kafka import KafkaError, KafkaException, Producer

    from moldau.records.client_headers import check_names

    if isinstance(values, str | bytes):
        raise TypeError(f"values={values!r}: give a list of values, as in [{values!r}]")
    producer = Producer({"message.timeout.ms": int(seconds * 1000), "linger.ms": 0, **settings})
    places: dict[int, tuple[int, int]] = {}
    errors: list[Any] = []

    def told(at: int) -> Callable[[Any, Any], None]:
        def on_delivery(error: Any, message: Any) -> None:
            if error is not None:
                errors.append(error)
            else:
                places[at] = (message.partition(), message.offset())

        return on_delivery

    named: Any = headers
    check_names((headers or {}).items())
    count = 0
    try:
        for count, value in enumerate(values, start=1):
            chosen = key(value) if callable(key) else key
            where = _ANY_PARTITION if partition is None else partition
            producer.produce(topic, value, chosen, where, headers=named, on_delivery=told(count - 1))
            producer.poll(0)
        left = producer.flush(seconds)
        failed = errors[:1]
    finally:
        # Whoever keeps the exception keeps this frame, and a producer in it would go on asking for its broker.
        producer.purge()
        producer.poll(0)
        del producer
    for error in failed:
        raise KafkaException(KafkaError(error.code(), _said(error, topic, partition, seconds)))
    if left:
        raise TimeoutError(f"{left} of {count} records were not acknowledged within {seconds} s")
    return [places[at] for at in range(count)]


def _said(error: Any, topic: str, partition: int | None, seconds: float) -> str:
    """The client names neither the topic nor what to look at."""
    from confluent_kafka import KafkaError

    if error.code() == KafkaError._UNKNOWN_PARTITION:
        return f"{topic} has no partition {partition}"
    if error.code() == KafkaError._MSG_TIMED_OUT:
        return f"{topic}: not acknowledged within {seconds} s: is there such a topic, and does its leader answer?"
    return f"{topic}: {error.str()}"


def read(
    settings: dict[str, Any], topic: str, count: int | None = None, *, seconds: float = _SECONDS_MAX
) -> list[Received]:
    """All records of a topic that are there now, by partition and offset; or, with `count`, the first that come, as
    soon as there are so many. TimeoutError, with what came, if they do not."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {"group.id": "moldau.testing", "enable.auto.commit": False, "enable.partition.eof": False} | settings
    )
    try:
        deadline = time.monotonic() + seconds
        found = consumer.list_topics(topic, timeout=seconds).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        places = [TopicPartition(topic, index, OFFSET_BEGINNING) for index in found.partitions]
        ends = {each.partition: consumer.get_watermark_offsets(each, timeout=seconds)[1] for each in places}
        consumer.assign(places)
        records: list[Received] = []
        while not _is_enough(consumer, places, ends, records, count):
            left = deadline - time.monotonic()
            if left <= 0:
                wanted = "all" if count is None else str(count)
                raise TimeoutError(
                    f"{len(records)} of {wanted} records of {topic} came within {seconds} s: {records[:5]}"
                )
            for message in consumer.consume(1000, min(left, _POLL_SECONDS)):
                if message.error() is not None:
                    raise KafkaException(message.error())
                records.append(_received(message))
        if count is None:
            records.sort(key=lambda each: (each.partition, each.offset))
            return records
        return records[:count]
    finally:
        consumer.close()


def _is_enough(
    consumer: Any, places: list[Any], ends: dict[int, int], records: list[Received], count: int | None
) -> bool:
    if count is not None:
        return len(records) >= count
    reached = {each.partition: each.offset for each in consumer.position(places)}
    return all(
        end == 0 or reached[index] >= end or _starts_at(consumer, places, index) == end for index, end in ends.items()
    )


def _starts_at(consumer: Any, places: list[Any], index: int) -> int:
    """A partition that was emptied begins where it ends."""
    return int(
        consumer.get_watermark_offsets(next(each for each in places if each.partition == index), cached=False)[0]
    )


def _received(message: Any) -> Received:
    from moldau.records.client_headers import headers_of  # not above: fixtures are imported with every pytest

    return Received(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        tuple(headers_of(message)),
        message.timestamp()[1],
    )
