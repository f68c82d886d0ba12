"""Clients that go on while nodes come and go, and what they saw."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

QUIET = {"log_level": 0}


def wait_until(condition: Callable[[], object], what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def admin(bootstrap_servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap_servers, **QUIET})


def create_topic(bootstrap_servers: str, name: str, partitions: int, replicas: int = 3, **config: str) -> None:
    topic = NewTopic(name, partitions, replicas, config={key.replace("_", "."): value for key, value in config.items()})
    client = admin(bootstrap_servers)
    for future in client.create_topics([topic]).values():
        future.result(30)


def seen(message: Message) -> tuple[bytes, int, int]:
    value, partition, offset = message.value(), message.partition(), message.offset()
    assert value is not None
    assert partition is not None
    assert offset is not None
    return value, partition, offset


class Producing:
    """Sends numbers, acks=all and idempotent, until told to stop. Every error that reaches the application counts."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.acked: dict[bytes, tuple[int, int]] = {}
        self.confirmed: set[bytes] = set()
        self.errors: list[KafkaError] = []
        self.sent = 0
        self._topic = topic
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap_servers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 2,
            "delivery.timeout.ms": 60_000,
            **QUIET,
        }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        producer = Producer(self._settings)
        while not self._stop.is_set():
            producer.produce(self._topic, b"%d" % self.sent, on_delivery=self._on_delivery)
            self.sent += 1
            producer.poll(0.003)
        assert producer.flush(50) == 0

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
        elif message.offset() is None:  # sent again, and known to the broker as written long ago: not where
            self.confirmed.add(message.value() or b"")
        else:
            value, partition, offset = seen(message)
            self.acked[value] = (partition, offset)

    def wait_for_more(self, count: int = 100) -> None:
        """Until so many more were acknowledged than now."""
        goal = len(self.acked) + count
        wait_until(lambda: len(self.acked) >= goal, "acknowledgements")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Consuming:
    """Reads as the only member of a group until told to stop; what an application would see as an error counts."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.values: list[bytes] = []
        self.errors: list[KafkaError] = []
        settings = {"bootstrap.servers": bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest", **QUIET}
        self._consumer = Consumer(settings)
        self._consumer.subscribe([topic])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(500, 0.1):
                error = message.error()
                if error is not None:
                    self.errors.append(error)
                else:
                    self.values.append(message.value() or b"")
        self._consumer.close()

    def wait_for(self, producing: Producing) -> None:
        """Until everything acknowledged was read."""
        wait_until(lambda: set(self.values) >= producing.acked.keys(), "the group has read everything", 60)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()


def read_all(bootstrap_servers: str, topic: str, count: int, **settings: Any) -> list[tuple[bytes, int, int]]:
    """(value, partition, offset) of so many records, read by a new group."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"reader-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
            **QUIET,
            **settings,
        }
    )
    consumer.subscribe([topic])
    found: list[tuple[bytes, int, int]] = []
    deadline = time.monotonic() + 40
    try:
        while len(found) < count:
            assert time.monotonic() < deadline, f"read {len(found)} of {count}"
            for message in consumer.consume(500, 0.2):
                if message.error() is None:
                    found.append(seen(message))
    finally:
        consumer.close()
    return found


def check_nothing_lost(producing: Producing, bootstrap_servers: str, topic: str) -> None:
    """Every acknowledged record is there once, where its acknowledgement said."""
    assert producing.errors == []
    found = read_all(bootstrap_servers, topic, len(producing.acked) + len(producing.confirmed))
    places = {value: (partition, offset) for value, partition, offset in found}
    assert len(places) == len(found), "a record is there twice"
    assert places.items() >= producing.acked.items()
    assert places.keys() >= producing.confirmed
