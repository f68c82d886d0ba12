"""Sending: one function, three ways. Forget what `send` returns, `await` it, or give it a callback.

    producer.send("orders", order, key="o-1")                  # forget: failures are logged and counted
    receipt = await producer.send("orders", order)             # wait until the cluster has it
    producer.send("orders", order).add_done_callback(print)    # be called

Keys and values are encoded at the call, so a wrong type is an error there. The client's defaults are the safe ones:
`acks=all`, idempotence, Java's partitioner. A thread serves the client's callbacks.

Invariant: every send ends, with a receipt or an error, exactly once; at `close` at the latest.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Client

from moldau.records.client_headers import check_names
from moldau.toolkit import letters
from moldau.toolkit.codec import Codec
from moldau.toolkit.codecs import codec_for, codec_of_value
from moldau.toolkit.errors import SendFailed, SetupError
from moldau.toolkit.partitioners import PARTITION_BY_CLIENT, Partitioner, client_setting, make_partitioner

if TYPE_CHECKING:
    from moldau.toolkit.registry import Registry

log = logging.getLogger("moldau.toolkit")

Header = letters.Header
_RETRIABLE = {
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._QUEUE_FULL,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
}
_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}


@dataclass(slots=True, frozen=True)
class Record:
    """What is about to be sent, encoded."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


@dataclass(slots=True, frozen=True)
class Receipt:
    """Where a record is. One that was spooled has no partition and offset yet."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    is_spooled: bool = False


class KeepsForLater(Protocol):
    """Where records wait that the cluster does not take now: `moldau.toolkit.Spool`."""

    def open(self, producer: Producer) -> None:
        """Called by the producer. What an earlier run left is sent first."""

    def takes(self, delivery: Delivery) -> bool:
        """Whether the record waits here; otherwise it is sent directly, and may come back through `rescues`."""

    def rescues(self, delivery: Delivery) -> bool:
        """A direct send failed: keep it, in its place. False if there is no room, which the sender is told."""

    def ended(self, delivery: Delivery) -> None:
        """A direct send ended otherwise."""

    def close(self) -> None: ...


class ProducerInterceptor(Protocol):
    """Both are optional: a class may have either. What they raise is logged and stops nothing."""

    def on_send(self, record: Record) -> Record: ...

    def on_acknowledgement(self, record: Record, receipt: Receipt | None, error: SendFailed | None) -> None: ...


class Delivery:
    """A send on its way."""

    __slots__ = ("_callbacks", "_error", "_receipt", "lock", "record")

    def __init__(self, record: Record, lock: threading.Lock) -> None:
        self.record = record
        self.lock = lock
        self._receipt: Receipt | None = None
        self._error: SendFailed | None = None
        self._callbacks: list[Callable[[Delivery], None]] | None = None

    @property
    def id(self) -> str | None:
        """The message's id: what `cancel` takes, if it was sent for later."""
        found = letters.find(self.record.headers, letters.ID)
        return found.decode(errors="replace") if found is not None else None

    @property
    def is_done(self) -> bool:
        """Whether its fate is known."""
        return self._receipt is not None or self._error is not None

    @property
    def error(self) -> SendFailed | None:
        """Why it was not sent; None: it was, or is not yet."""
        return self._error

    @property
    def receipt(self) -> Receipt | None:
        """Where it is; None: nowhere yet, or for good."""
        return self._receipt

    def add_done_callback(self, callback: Callable[[Delivery], None]) -> None:
        """Called on the producer's thread, or here and now if it is done already."""
        with self.lock:
            if not self.is_done:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        callback(self)

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait, in code without an event loop."""
        done = threading.Event()
        self.add_done_callback(lambda _: done.set())
        if not done.wait(timeout):
            raise TimeoutError(f"the record for {self.record.topic} was not acknowledged within {timeout} s")
        return self._outcome()

    def __await__(self) -> Generator[Any, None, Receipt]:
        if not self.is_done:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not waiter.done():
                    waiter.set_result(None)

            self.add_done_callback(lambda _: _wake_loop(loop, wake))
            yield from waiter.__await__()
        return self._outcome()

    def _outcome(self) -> Receipt:
        if self._error is not None:
            raise self._error
        assert self._receipt is not None
        return self._receipt

    def complete(self, receipt: Receipt | None, error: SendFailed | None) -> bool:
        """Its fate, for whoever sends in the place of a producer: in tests, say. False if it was known before."""
        with self.lock:
            if self.is_done:
                return False
            self._receipt, self._error = receipt, error
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            try:
                callback(self)
            except Exception:  # the caller's own code
                log.exception("a callback of a send failed")
        return True


@dataclass(slots=True, frozen=True)
class Topic:
    """What a declared topic holds."""

    name: str
    value: Any = None
    key: Any = None


@dataclass(slots=True)
class Counters:
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    spooled: int = 0


@dataclass(slots=True)
class _Codecs:
    declared: dict[tuple[str, str], Codec] = field(default_factory=dict)
    by_type: dict[tuple[str, str, type], Codec] = field(default_factory=dict)


class Producer:
    """A typed producer for any Kafka cluster; settings have Kafka's own names."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        config: Mapping[str, Any] | None = None,
        topics: Sequence[Topic] = (),
        partitioner: str | Partitioner = "murmur2",
        interceptors: Sequence[Any] = (),
        registry: Registry | None = None,
        spool: KeepsForLater | None = None,
        ids: bool = True,
        max_block_ms: int = 60_000,
    ) -> None:
        self._config = {
            "bootstrap.servers": bootstrap_servers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "client.id": "moldau-toolkit",
            **client_setting(partitioner),
            **({"message.timeout.ms": 10_000} if spool is not None else {}),
            **(config or {}),
        }
        self._partitioner = make_partitioner(partitioner)
        self._interceptors = list(interceptors)
        self._registry = registry
        self._spool = spool
        self._ids = ids
        self._id_prefix = secrets.token_hex(6)
        self._id_numbers = itertools.count()
        self._max_block_s = max_block_ms / 1_000
        self._lock = threading.Lock()
        self._codecs = _Codecs()
        self._closing = threading.Event()
        self._pending = 0
        self._patient_client: Client | None = None  # for what the spool holds
        self.counters = Counters()
        self._counts: dict[str, tuple[float, int]] = {}
        try:
            self._client = Client(self._config, logger=log)
        except KafkaException as error:
            raise SetupError(f"the producer cannot be made: {error.args[0].str()}") from error
        self._thread = threading.Thread(target=self._serve, name="moldau-producer", daemon=True)
        self._thread.start()
        for topic in topics:
            self.declare(topic)
        if spool is not None:
            spool.open(self)

    def declare(self, topic: Topic) -> None:
        """From now on keys and values of this topic must be of these types."""
        for part, annotation in (("key", topic.key), ("value", topic.value)):
            if annotation is not None:
                codec = codec_for(annotation, topic.name, "key" if part == "key" else "value", self._registry)
                self._codecs.declared[topic.name, part] = codec

    @property
    def client_config(self) -> dict[str, Any]:
        """The settings of its client."""
        return dict(self._config)

    @property
    def is_by_key(self) -> bool:
        """Whether the key alone decides about the partition, as Java's clients have it."""
        return self._partitioner is None and self._config["partitioner"] == "murmur2_random"

    # Sending.

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Mapping[str, bytes | str] | Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Send; see the module for the three ways. Raises `WrongType` at once if key or value do not fit the topic."""
        return self.send_record(self.encode(topic, value, key, headers, partition, timestamp_ms))

    def encode(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: Mapping[str, bytes | str] | Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Record:
        """The record that `send` would send, in bytes."""
        more: list[Header] = []
        if isinstance(headers, Mapping):
            more += [(name, data.encode() if isinstance(data, str) else data) for name, data in headers.items()]
        else:
            more += headers
        value_bytes, beside = self._codec(topic, "value", value).write(value)
        more += beside
        key_bytes = None if key is None else self._codec(topic, "key", key).write(key)[0]
        if self._ids and not any(name == letters.ID for name, _ in more):
            more.append((letters.ID, f"{self._id_prefix}-{next(self._id_numbers):x}".encode()))
        return Record(topic, value_bytes, key_bytes, more, partition, timestamp_ms)

    def send_record(self, record: Record) -> Delivery:
        """Send bytes as they are."""
        if self._closing.is_set():
            raise SendFailed("the producer is closed", is_retriable=False)
        record = self._intercepted(record)
        delivery = Delivery(record, self._lock)
        with self._lock:
            self._pending += 1
            self.counters.sent += 1
        try:
            if self._spool is not None and self._spool.takes(delivery):
                return delivery
            self._produce(delivery)
        except BaseException:
            if self._spool is not None:
                self._spool.ended(delivery)
            with self._lock:
                self._pending -= 1
            raise
        return delivery

    def prepare(self, record: Record) -> Record:
        """What `send_record` would send, for somebody else to send it: intercepted, and with its partition."""
        record = self._intercepted(record)
        if record.partition is None and self._partitioner is not None:
            partition = self._partitioner(record.topic, record.key, self.partition_count(record.topic))
            record = replace(record, partition=partition)
        return record

    def _intercepted(self, record: Record) -> Record:
        for interceptor in self._interceptors:
            if (on_send := getattr(interceptor, "on_send", None)) is not None:
                try:
                    record = on_send(record)
                except Exception:  # as in Kafka, an interceptor's failure is its own
                    log.exception("an interceptor failed in on_send")
        check_names(record.headers)
        return record

    def _codec(self, topic: str, part: str, value: Any) -> Codec:
        declared = self._codecs.declared.get((topic, part))
        if declared is not None:
            return declared
        kind = type(value)
        found = self._codecs.by_type.get((topic, part, kind))
        if found is None:
            found = codec_of_value(value, topic, "key" if part == "key" else "value", self._registry)
            if len(self._codecs.by_type) > 10_000:
                self._codecs.by_type.clear()
            self._codecs.by_type[topic, part, kind] = found
        return found

    def _produce(self, delivery: Delivery, client: Client | None = None) -> None:
        client = client or self._client
        record = delivery.record
        partition = record.partition
        if partition is None and self._partitioner is not None:
            partition = self._partitioner(record.topic, record.key, self.partition_count(record.topic))
        more: dict[str, Any] = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
        deadline = time.monotonic() + self._max_block_s
        while True:
            try:
                client.produce(
                    record.topic,
                    record.value,
                    record.key,
                    partition=PARTITION_BY_CLIENT if partition is None else partition,
                    headers=list(record.headers),
                    on_delivery=lambda error, message: self._delivered(delivery, error, message),
                    **more,
                )
            except BufferError as error:
                # As Java's client: a full buffer makes the sender wait, and `max.block.ms` says how long.
                if time.monotonic() >= deadline:
                    raise SendFailed(
                        f"{record.topic}: the send buffer stayed full for {self._max_block_s:g} s: await what you send",
                        is_retriable=True,
                    ) from error
                if client is self._client:
                    time.sleep(0.001)  # another thread empties the buffer
                else:
                    client.poll(0.001)
            except KafkaException as error:
                raise _failure(record.topic, error.args[0]) from error
            else:
                return

    def _delivered(self, delivery: Delivery, error: KafkaError | None, message: Any) -> None:
        topic = delivery.record.topic
        if error is not None:
            failed = _failure(topic, error)
            if self._spool is not None and failed.is_retriable and self._spool.rescues(delivery):
                return
            self._end(delivery, None, failed)
            return
        receipt = Receipt(topic, message.partition(), message.offset(), message.timestamp()[1])
        self._end(delivery, receipt, None)

    def _end(self, delivery: Delivery, receipt: Receipt | None, error: SendFailed | None) -> None:
        if delivery.lock is not self._lock:
            delivery.complete(receipt, error)  # of the spool, which was answered long ago
            return
        if self._spool is not None:
            self._spool.ended(delivery)
        self.finish(delivery, receipt, error)

    def finish(self, delivery: Delivery, receipt: Receipt | None, error: SendFailed | None) -> None:
        """A send has ended."""
        if delivery.is_done:
            return
        with self._lock:
            self._pending -= 1
            if error is not None:
                self.counters.failed += 1
            elif receipt is not None and receipt.is_spooled:
                self.counters.spooled += 1
            else:
                self.counters.acknowledged += 1
        if error is not None:
            log.error("a record was not sent: %s", error)
        for interceptor in self._interceptors:
            if (on_acknowledgement := getattr(interceptor, "on_acknowledgement", None)) is not None:
                try:
                    on_acknowledgement(delivery.record, receipt, error)
                except Exception:  # as in Kafka, an interceptor's failure is its own
                    log.exception("an interceptor failed in on_acknowledgement")
        delivery.complete(receipt, error)

    def send_past_spool(self, records: Sequence[Record], closing: threading.Event) -> list[SendFailed | None]:
        """Send records of the spool in their order, and wait; for the spool's own thread.

        Returns how each ended; fewer, if the producer is being closed or one could not be handed to the client.
        """
        if self._patient_client is None:
            # It has no deadline: a record given up while the next is on its way would lose its place.
            never = {"message.timeout.ms": 0}
            config = {name: value for name, value in self._config.items() if name != "delivery.timeout.ms"} | never
            self._patient_client = Client(config, logger=log)
        client = self._patient_client
        deliveries: list[Delivery] = []
        failed: SendFailed | None = None
        for record in records:
            delivery = Delivery(record, threading.Lock())
            try:
                self._produce(delivery, client)
            except SendFailed as error:
                failed = error
                break
            deliveries.append(delivery)
        while not all(delivery.is_done for delivery in deliveries) and not closing.is_set():
            client.poll(0.1)
        ended = list(itertools.takewhile(lambda delivery: delivery.is_done, deliveries))
        outcomes = [delivery.error for delivery in ended]
        if failed is not None and len(ended) == len(deliveries):
            outcomes.append(failed)
        if len(outcomes) < len(records) or any(error is not None and error.is_retriable for error in outcomes):
            client.purge(in_queue=True, in_flight=True)
            self._patient_client = None  # what comes next begins anew
        return outcomes

    def partition_count(self, topic: str) -> int:
        """How many partitions there are; asked again every half minute. Blocks the first time."""
        now = time.monotonic()
        found = self._counts.get(topic)
        if found is None or now - found[0] > 30:
            try:
                metadata = self._client.list_topics(topic, timeout=10).topics[topic]
                if metadata.error is not None or not metadata.partitions:
                    raise SendFailed(f"{topic}: there is no such topic", is_retriable=True)
                found = self._counts[topic] = (now, len(metadata.partitions))
            except KafkaException as error:
                if found is None:
                    raise _failure(topic, error.args[0]) from error
        return found[1]

    # The end.

    @property
    def pending(self) -> int:
        """Sends that have not ended."""
        return self._pending

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until everything sent so far has ended; False if it did not in time."""
        self._client.flush(timeout)
        deadline = time.monotonic() + timeout
        while self._pending and time.monotonic() < deadline:
            time.sleep(0.002)  # the client is done; our callbacks run on another thread
        return not self._pending

    def close(self, timeout: float = 30.0) -> None:
        """Flush, and end what could not be sent with an error (or leave it in the spool)."""
        if self._closing.is_set():
            return
        self.flush(timeout)
        self._closing.set()
        self._client.purge(in_queue=True, in_flight=True)
        self._client.flush(1.0)
        self._thread.join()
        if self._spool is not None:
            self._spool.close()

    def _serve(self) -> None:
        while not self._closing.is_set():
            self._client.poll(0.1)


def _wake_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed, and with it whoever waited
        loop.call_soon_threadsafe(call)


def _failure(topic: str, error: KafkaError) -> SendFailed:
    code = error.code()
    if code in _TOO_LARGE:
        advice = "it is larger than the topic (max.message.bytes) or the producer (message.max.bytes) allows"
        return SendFailed(f"{topic}: {advice}", is_retriable=False, is_too_large=True)
    return SendFailed(f"{topic}: {error.str()}", is_retriable=code in _RETRIABLE or error.retriable())
