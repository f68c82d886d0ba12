"""A task's transaction by librdkafka, row by row: for rows with headers or topics of their own, unusual settings."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from moldau.client import cluster
from moldau.spark.producing import LIBRDKAFKA_LOG, DeliveryFailed, Sender, make_producer
from moldau.spark.sink_columns import read_rows
from moldau.spark.sink_options import SinkOptions
from moldau.spark.transactions import advice_for, fenced

T = TypeVar("T")
_ATTEMPT_SECONDS = 10.0
_ABORT_SECONDS = 10.0
_PAUSE_SECONDS = 0.05
_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


class RowWriting:
    """See `transactions.Writing`."""

    def __init__(self, options: SinkOptions, transactional_id: str) -> None:
        self._options = options
        self._transactional_id = transactional_id
        self._deadline_seconds = options.max_block_ms / 1000
        self._topics: set[str] = set()
        self._producer: Producer
        self._sender: Sender

    @property
    def rows(self) -> int:
        return self._sender.rows

    @property
    def size_bytes(self) -> int:
        return self._sender.size_bytes

    def fence(self) -> None:
        self._producer = make_producer(
            self._options.producer,
            **{
                "transactional.id": self._transactional_id,
                "transaction.timeout.ms": self._options.transaction_timeout_ms,
            },
        )
        self._call("starting a transactional producer", lambda: self._producer.init_transactions(_ATTEMPT_SECONDS))

    def begin(self) -> None:
        self._producer.begin_transaction()
        self._sender = Sender(self._producer, self._options.topic)

    def send(self, batch: Any) -> None:
        for rows in read_rows(iter((batch,)), self._options.topic):
            self._topics.update(rows.topics if rows.topics is not None else (self._options.topic or "",))
            with self._explaining("writing in the transaction"):
                self._sender.send(rows)

    def finish(self) -> Iterable[str]:
        with self._explaining("writing in the transaction"):
            self._sender.finish()
        return self._topics

    def note(self, group: str, offsets: Mapping[cluster.TopicPartition, cluster.Committed]) -> None:
        places = [TopicPartition(topic, index, each.offset, each.metadata) for (topic, index), each in offsets.items()]
        # Only a consumer can name a group to librdkafka; this one reads nothing.
        consumer = Consumer({**self._options.connection, "group.id": group, "logger": LIBRDKAFKA_LOG})
        try:
            named = consumer.consumer_group_metadata()
            self._call(
                "noting the batch in the transaction",
                lambda: self._producer.send_offsets_to_transaction(places, named, _ATTEMPT_SECONDS),
            )
        finally:
            consumer.close()

    def commit(self) -> None:
        self._call("committing the transaction", lambda: self._producer.commit_transaction(_ATTEMPT_SECONDS))

    def abort(self) -> None:
        try:
            self._producer.purge()
            self._producer.abort_transaction(_ABORT_SECONDS)
        except (KafkaException, RuntimeError):
            return  # fenced, or out of reach: the coordinator aborts by itself

    def close(self) -> None:
        """librdkafka ends with the last reference to it."""

    def _call(self, what: str, step: Callable[[], T]) -> T:
        """Repeat a step until it works, fails for good or takes too long; librdkafka continues where it was."""
        deadline = time.monotonic() + self._deadline_seconds
        while True:
            try:
                return step()
            except KafkaException as failure:
                if not failure.args[0].retriable() or time.monotonic() > deadline:
                    raise self._explained(what, failure) from failure
                time.sleep(_PAUSE_SECONDS)  # the client tells nobody when a step it calls retriable may succeed

    @contextlib.contextmanager
    def _explaining(self, what: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as failure:
            raise self._explained(what, failure) from failure

    def _explained(self, what: str, failure: KafkaException) -> RuntimeError:
        """What an error of librdkafka's means here, and what to do."""
        error: KafkaError = failure.args[0]
        if error.code() in _FENCED:
            return fenced(self._transactional_id, self._options)
        told = f"{what} {self._transactional_id!r} failed: {error.str()} ({error.name()})"
        return DeliveryFailed(told + advice_for(error.code()))
