"""Rows into librdkafka, and certainty that they arrived.

Invariant: `finish` returns only when every row given to `send` was acknowledged; one failed delivery fails the task.
Memory is bounded by librdkafka's queue: a full one holds `send` back.
"""

import logging
from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from moldau.spark.sink_columns import Rows

_UNASSIGNED = -1  # librdkafka's word for: let the partitioner decide
_POLL_SECONDS = 0.05
# What matters comes as exceptions; librdkafka's own words are for those who set up logging.
_log = logging.getLogger(__name__)
LIBRDKAFKA_LOG = logging.getLogger("moldau.spark.librdkafka")
LIBRDKAFKA_LOG.addHandler(logging.NullHandler())


class DeliveryFailed(RuntimeError):
    """Records were not written; the message says which and why."""


def make_producer(settings: Mapping[str, str], **more: Any) -> Producer:
    """A producer, or an error that names the option at fault."""
    try:
        # Reports are wanted of failures only: a callback for each record would cost more than sending it.
        reports: dict[str, Any] = {"delivery.report.only.error": True, "logger": LIBRDKAFKA_LOG, "error_cb": _say_away}
        return Producer({**settings, **reports, **more})
    except KafkaException as refusal:
        error = refusal.args[0]
        advice = "see librdkafka's CONFIGURATION.md for names and values; options are kafka.<name>"
        raise ValueError(f"Kafka options are not accepted: {error.str()}. {advice}") from refusal


def _say_away(error: KafkaError) -> None:
    """librdkafka tries again by itself until delivery.timeout.ms; people want to know why nothing moves."""
    if error.code() == KafkaError._ALL_BROKERS_DOWN:
        _log.warning("waiting for the brokers to write to them (option outage): %s", error.str())


class Sender:
    """Sends rows to one topic, or to the topics the rows name."""

    def __init__(self, producer: Producer, topic: str | None) -> None:
        self._producer = producer
        self._topic = topic
        self._failure: str | None = None
        self._failed = 0
        self.rows = 0
        self.size_bytes = 0

    def send(self, rows: Rows) -> None:
        """Hand over rows; returns when librdkafka has taken them all."""
        topics: Iterable[str] = rows.topics if rows.topics is not None else repeat(self._topic or "", rows.count)
        try:
            if rows.headers is None and rows.partitions is None:
                self._send_plain(topics, rows.keys or repeat(None, rows.count), rows.values)
            else:
                self._send_full(topics, rows)
        except KafkaException as refusal:
            if refusal.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                raise
            advice = "raise kafka.max.request.size, and max.message.bytes of the topic"
            raise DeliveryFailed(f"a record of {self._topic or 'a topic'} is too large: {advice}") from refusal
        self._producer.poll(0)
        self._check()
        self.rows += rows.count
        self.size_bytes += rows.size_bytes

    def _send_plain(self, topics: Iterable[str], keys: Iterable[bytes | None], values: Iterable[bytes | None]) -> None:
        produce, report = self._producer.produce, self._report
        for topic, key, value in zip(topics, keys, values, strict=True):
            while True:
                try:
                    produce(topic, value, key, on_delivery=report)
                    break
                except BufferError:
                    self._wait_for_room()

    def _send_full(self, topics: Iterable[str], rows: Rows) -> None:
        produce, report = self._producer.produce, self._report
        for topic, key, value, headers, partition in zip(
            topics,
            rows.keys or repeat(None, rows.count),
            rows.values,
            rows.headers or repeat(None, rows.count),
            rows.partitions or repeat(None, rows.count),
            strict=True,
        ):
            number = _UNASSIGNED if partition is None else partition
            while True:
                try:
                    produce(topic, value, key, number, on_delivery=report, headers=headers or None)
                    break
                except BufferError:
                    self._wait_for_room()

    def finish(self) -> None:
        """Wait until everything is acknowledged. librdkafka gives up by itself after delivery.timeout.ms."""
        while self._producer.flush(_POLL_SECONDS):
            self._check()
        self._check()

    def _wait_for_room(self) -> None:
        self._producer.poll(_POLL_SECONDS)
        self._check()

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            return
        self._failed += 1
        if self._failure is None:
            place = message.topic() or "?"
            if (partition := message.partition()) is not None and partition >= 0:
                place += f"-{partition}"
            self._failure = f"{place}: {error.str()} ({error.name()})"

    def _check(self) -> None:
        if self._failure is not None:
            raise DeliveryFailed(f"{self._failed} or more records were not written; the first to {self._failure}")
