"""Clients that go on whatever happens, and write down what they were told."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.cluster.torture.history import FinalRead, History
from tests.cluster.workload import QUIET, seen

TOPIC = "torture"
_FLUSH_SECONDS = 100


class Client(threading.Thread):
    """Runs until `stop`; what went wrong inside is in `failure`."""

    def __init__(self, name: str, servers: str, history: History, partitions: int) -> None:
        super().__init__(name=name, daemon=True)
        self._servers = servers
        self._history = history
        self._partitions = partitions
        self._random = random.Random(name)
        self._stopping = threading.Event()
        self.failure: BaseException | None = None

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.life()
        except BaseException as error:
            self.failure = error

    def life(self) -> None:
        """Until told to stop, or until a new client must be made."""
        raise NotImplementedError

    def settings(self, **more: Any) -> dict[str, Any]:
        changed = {key.replace("_", "."): value for key, value in more.items()}
        # Shorter than usual: whoever is frozen or cut off should not be waited for longer than the fault lasts.
        patience = {"socket.timeout.ms": 8_000, "reconnect.backoff.max.ms": 500, "metadata.max.age.ms": 10_000}
        return {"bootstrap.servers": self._servers, **patience, **QUIET, **changed}


class Sender(Client):
    """Idempotent, acks=all."""

    generation = 0

    def life(self) -> None:
        self.generation += 1
        producer = Producer(
            self.settings(
                acks="all",
                enable_idempotence=True,
                linger_ms=1,
                request_timeout_ms=5_000,
                delivery_timeout_ms=_FLUSH_SECONDS * 1000,
            )
        )
        fatal = threading.Event()

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            value = message.value()
            assert value is not None
            if error is None and message.offset() is None:
                # An old duplicate: the broker says that it has the record, but not where.
                self._history.acked_somewhere.add(value)
            elif error is None:
                self._history.acked[value] = seen(message)[1:]
            else:
                self._history.unknown.add(value)
                if error.fatal():
                    fatal.set()

        number = 0
        while not self._stopping.is_set() and not fatal.is_set():
            value = f"{self.name}.{self.generation}/{number}"
            try:
                producer.produce(
                    TOPIC, value, partition=self._random.randrange(self._partitions), on_delivery=on_delivery
                )
                number += 1
            except (BufferError, KafkaException):
                producer.poll(0.1)
            producer.poll(0.004)
        assert producer.flush(_FLUSH_SECONDS) == 0 or fatal.is_set(), "deliveries without an end"


class Transactor(Client):
    """Transactions over several partitions, one in four aborted."""

    generation = 0
    number = 0
    count = 0

    def life(self) -> None:
        self.generation += 1
        producer = Producer(
            self.settings(transactional_id=self.name, transaction_timeout_ms=10_000, request_timeout_ms=5_000)
        )
        try:
            producer.init_transactions(60)
            while not self._stopping.is_set():
                self._one(producer)
        except KafkaException:
            time.sleep(0.2)  # fenced, or lost for good: the next life begins with init_transactions

    def _one(self, producer: Producer) -> None:
        self.count += 1
        name = f"{self.name}#{self.count}"
        values: list[bytes] = []
        wants_abort = self._random.random() < 0.25
        with self._history.lock:
            self._history.undecided[name] = values
        producer.begin_transaction()
        try:
            for _ in range(self._random.randrange(1, 6)):
                values.append(f"{self.name}.{self.generation}/{self.number}".encode())
                self.number += 1
                producer.produce(TOPIC, values[-1], partition=self._random.randrange(self._partitions))
            if wants_abort:
                self._end(producer.abort_transaction)
            else:
                self._end(producer.commit_transaction)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._end(producer.abort_transaction)
            wants_abort = True
        with self._history.lock:
            del self._history.undecided[name]
            (self._history.aborted if wants_abort else self._history.committed)[name] = values

    def _end(self, end: Any) -> None:
        """Commit or abort, asking again while the answer is that it may be asked again."""
        while True:
            try:
                end(20)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return


class Poller(Client):
    """Reads all partitions from the beginning. Being told that an offset is not there is an anomaly."""

    def __init__(self, name: str, servers: str, history: History, partitions: int, isolation: str) -> None:
        super().__init__(name, servers, history, partitions)
        self._isolation = isolation
        self.resets: list[str] = []

    def life(self) -> None:
        polled = self._history.new_poller()
        consumer = Consumer(
            self.settings(
                group_id=self.name,
                enable_auto_commit=False,
                auto_offset_reset="error",
                isolation_level=self._isolation,
                fetch_wait_max_ms=200,
            )
        )
        consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(self._partitions)])
        try:
            while not self._stopping.is_set():
                for message in consumer.consume(500, 0.2):
                    error = message.error()
                    if error is None:
                        value, partition, offset = seen(message)
                        polled.append((partition, offset, value))
                    elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                        self.resets.append(f"{self.name}: {error.str()}")
                        return
        finally:
            consumer.close()


def read_everything(servers: str, partitions: int, seconds: float = 60) -> FinalRead:
    return FinalRead(
        read_topic(servers, TOPIC, partitions, "read_uncommitted", seconds),
        read_topic(servers, TOPIC, partitions, "read_committed", seconds),
    )


def read_topic(
    servers: str, topic: str, partitions: int, isolation: str, seconds: float
) -> list[tuple[int, int, bytes]]:
    """Up to the high watermark, which a read_committed reader reaches only when no transaction hangs."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"final-{topic}-{isolation}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            **QUIET,
        }
    )
    deadline = time.monotonic() + seconds
    found: list[tuple[int, int, bytes]] = []
    try:
        places = [TopicPartition(topic, index, 0) for index in range(partitions)]
        ends = {place.partition: consumer.get_watermark_offsets(place, timeout=20)[1] for place in places}
        consumer.assign(places)
        unfinished = {partition for partition, end in ends.items() if end > 0}
        while unfinished:
            assert time.monotonic() < deadline, f"{topic}, {isolation}: {unfinished} have no end: a transaction hangs"
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is None:
                    value, partition, offset = seen(message)
                    found.append((partition, offset, value))
                elif (
                    error.code() == KafkaError._PARTITION_EOF
                    and (message.offset() or 0) >= ends[message.partition() or 0]
                ):
                    unfinished.discard(message.partition() or 0)
    finally:
        consumer.close()
    return found
