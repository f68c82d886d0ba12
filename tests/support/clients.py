"""Three stock clients behind two verbs, `send` and `read`, so that a test says once what all of them must do."""

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition as PythonTopicPartition

from moldau.net import new_event_loop

T = TypeVar("T")
Headers = tuple[tuple[str, bytes | None], ...]
PATIENCE_SECONDS = 30.0
_names = itertools.count()


class Sent(NamedTuple):
    """A record as a producer gives it."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None


class Got(NamedTuple):
    """A record as a consumer sees it."""

    offset: int
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp_ms: int
    timestamp_type: int  # 0 CreateTime, 1 LogAppendTime


class Client(NamedTuple):
    """`send(bootstrap, topic, records, codec)` gives offsets; `read(bootstrap, topic, count, start)` gives records.

    Both use partition 0; `read` has no group.
    """

    name: str
    send: Callable[[str, str, Sequence[Sent], str], list[int]]
    read: Callable[[str, str, int, int], list[Got]]


def quiet(bootstrap: str, **settings: Any) -> dict[str, Any]:
    """librdkafka settings, `_` for `.`, with its own log off: errors come through calls."""
    more = {key.replace("_", "."): value for key, value in settings.items()}
    return {"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 20_000, **more}


def fresh(base: str) -> str:
    """A name nobody else uses in this run."""
    return f"{base}-{os.getpid()}-{next(_names)}"


def wait_for(condition: Callable[[], T], what: str, seconds: float = PATIENCE_SECONDS) -> T:
    """The first true answer of `condition`, asked again and again."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {what}; last seen: {answer!r}")
        time.sleep(0.01)


def run(work: Callable[[], Any]) -> Any:
    """Run a coroutine function on an event loop of its own."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work())


# confluent-kafka


def admin(bootstrap: str) -> AdminClient:
    return AdminClient(quiet(bootstrap))


def create_topic(bootstrap: str, base: str = "topic", partitions: int = 1, **configs: str) -> str:
    """A topic under a fresh name; settings like `cleanup_policy="compact"`."""
    name = fresh(base)
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    client = admin(bootstrap)  # kept: a client that is gone takes its requests with it
    (future,) = client.create_topics([NewTopic(name, partitions, 1, config=settings)]).values()
    future.result(PATIENCE_SECONDS)
    return name


def add_partitions(bootstrap: str, topic: str, total: int) -> None:
    client = admin(bootstrap)
    (future,) = client.create_partitions([NewPartitions(topic, total)]).values()
    future.result(PATIENCE_SECONDS)


class Deliveries:
    """Delivery reports, for `on_delivery`."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.errors: list[KafkaError] = []

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        else:
            offset = message.offset()
            self.offsets.append(-1 if offset is None else offset)  # with acks=0 nobody knows


def send_confluent(bootstrap: str, topic: str, records: Sequence[Sent], codec: str = "none") -> list[int]:
    producer = Producer(quiet(bootstrap, compression_type=codec, linger_ms=20, message_max_bytes=20_000_000))
    report = Deliveries()
    for record in records:
        producer.produce(
            topic,
            record.value,
            record.key,
            partition=0,
            headers=list(record.headers),
            timestamp=record.timestamp_ms or 0,
            on_delivery=report,
        )
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert not report.errors, report.errors
    return report.offsets


def got(message: Message) -> Got:
    assert message.error() is None, message.error()
    kind, timestamp_ms = message.timestamp()
    offset = message.offset()
    assert offset is not None
    headers: Any = message.headers() or ()
    return Got(offset, message.value(), message.key(), tuple(headers), timestamp_ms, kind - 1)


def take(consumer: Consumer, count: int, seconds: float = PATIENCE_SECONDS) -> list[Message]:
    """Exactly `count` records, or TimeoutError; errors raise."""
    found: list[Message] = []
    deadline = time.monotonic() + seconds
    while len(found) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {len(found)} of {count} records came")
        message = consumer.poll(0.1)
        if message is not None:
            error = message.error()
            if error is not None:
                raise AssertionError(error)
            found.append(message)
    return found


def read_confluent(bootstrap: str, topic: str, count: int, start: int = 0) -> list[Got]:
    consumer = Consumer(quiet(bootstrap, group_id=fresh("reader"), enable_auto_commit=False))
    try:
        consumer.assign([TopicPartition(topic, 0, start)])
        return [got(message) for message in take(consumer, count)]
    finally:
        consumer.close()


def read_all(bootstrap: str, topic: str, partitions: int = 1, isolation: str = "read_committed") -> list[Message]:
    """Everything in the topic up to its end as this isolation level sees it, partition by partition."""
    settings = quiet(bootstrap, group_id=fresh("reader"), enable_auto_commit=False, enable_partition_eof=True)
    consumer = Consumer({**settings, "isolation.level": isolation, "auto.offset.reset": "earliest"})
    found: list[list[Message]] = [[] for _ in range(partitions)]
    unfinished = set(range(partitions))
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        while unfinished:
            if time.monotonic() > deadline:
                raise TimeoutError(f"partitions {unfinished} of {topic} have no end")
            for message in consumer.consume(1_000, 0.1):
                index, error = message.partition(), message.error()
                assert index is not None
                if error is None:
                    found[index].append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(index)
                else:
                    raise AssertionError(error)
    finally:
        consumer.close()
    return list(itertools.chain(*found))


# kafka-python


def send_kafka_python(bootstrap: str, topic: str, records: Sequence[Sent], codec: str = "none") -> list[int]:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        linger_ms=20,
        max_request_size=20_000_000,
    )
    try:
        futures = [
            producer.send(
                topic,
                record.value,
                record.key,
                headers=list(record.headers),
                partition=0,
                timestamp_ms=record.timestamp_ms,
            )
            for record in records
        ]
        return [future.get(PATIENCE_SECONDS).offset for future in futures]
    finally:
        producer.close(PATIENCE_SECONDS)


def read_kafka_python(bootstrap: str, topic: str, count: int, start: int = 0) -> list[Got]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False)
    try:
        where = PythonTopicPartition(topic, 0)
        consumer.assign([where])
        consumer.seek(where, start)
        found: list[Got] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {len(found)} of {count} records came")
            for batch in consumer.poll(timeout_ms=200).values():
                found.extend(map(_got_python, batch))
        return found[:count]
    finally:
        consumer.close()


def _got_python(record: Any) -> Got:
    """kafka-python and aiokafka name the fields alike."""
    headers = tuple((key, value) for key, value in record.headers)
    return Got(record.offset, record.value, record.key, headers, record.timestamp, record.timestamp_type)


# aiokafka


def send_aiokafka(bootstrap: str, topic: str, records: Sequence[Sent], codec: str = "none") -> list[int]:
    async def work() -> list[int]:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
            max_request_size=20_000_000,
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic,
                    record.value,
                    record.key,
                    partition=0,
                    timestamp_ms=record.timestamp_ms,
                    headers=list(record.headers),
                )
                for record in records
            ]
            async with asyncio.timeout(PATIENCE_SECONDS):
                return [(await future).offset for future in futures]
        finally:
            await producer.stop()

    found: list[int] = run(work)
    return found


def read_aiokafka(bootstrap: str, topic: str, count: int, start: int = 0) -> list[Got]:
    async def work() -> list[Got]:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False)
        await consumer.start()
        try:
            where = AioTopicPartition(topic, 0)
            consumer.assign([where])
            consumer.seek(where, start)
            async with asyncio.timeout(PATIENCE_SECONDS):
                return [_got_python(await consumer.getone()) for _ in range(count)]
        finally:
            await consumer.stop()

    found: list[Got] = run(work)
    return found


CONFLUENT = Client("confluent-kafka", send_confluent, read_confluent)
KAFKA_PYTHON = Client("kafka-python", send_kafka_python, read_kafka_python)
AIOKAFKA = Client("aiokafka", send_aiokafka, read_aiokafka)
CLIENTS = (CONFLUENT, KAFKA_PYTHON, AIOKAFKA)
