"""Clients of topics in which nodes keep house: one is compacted, under transactions; one is deleted and made again.

Each key has one writer, whose numbers grow: in the end, a read_committed reader finds for each key the last number that
is known to be committed, or a later one that may be, and none that was aborted. Of the topic that is made again, all
that was acknowledged is there while it lives, from offset 0 on.
"""

from __future__ import annotations

import contextlib
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.torture.clients import Client, read_topic
from tests.cluster.workload import admin, seen

KEYS, AGAIN = "torture-keys", "torture-again"
KEYS_CONFIG = {
    "cleanup_policy": "compact",
    "segment_ms": "3000",
    "min_cleanable_dirty_ratio": "0.01",
    "file_delete_delay_ms": "1000",
}
SETTINGS = {
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.threads": "2",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.flush.offset.checkpoint.interval.ms": "2000",
    "log.flush.start.offset.checkpoint.interval.ms": "2000",
}
_KEYS = 12
_TRY_SECONDS = 20


class KeyWriter(Client):
    """Transactions over keys of its own, one in four aborted, some of them open for seconds."""

    number = 0

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]  # those of every client
        self.committed: dict[str, int] = {}
        self.aborted: set[int] = set()

    def life(self) -> None:
        producer = Producer(
            self.settings(transactional_id=self.name, transaction_timeout_ms=10_000, request_timeout_ms=5_000)
        )
        try:
            producer.init_transactions(60)
            while not self._stopping.is_set():
                self._one(producer)
        except KafkaException:
            time.sleep(0.2)

    def _one(self, producer: Producer) -> None:
        producer.begin_transaction()
        written: dict[str, int] = {}
        for _ in range(self._random.randrange(1, 6)):
            key = f"{self.name}-{self._random.randrange(_KEYS)}"
            self.number += 1
            written[key] = self.number
            producer.produce(KEYS, f"{key}/{self.number}", key, partition=self.number_of(key))
        if self._random.random() < 0.1:
            self._stopping.wait(4)  # meanwhile, segments are rolled and cleaned
        if self._random.random() < 0.25:
            producer.abort_transaction(20)
            self.aborted |= set(written.values())
        else:
            producer.commit_transaction(20)
            self.committed |= written

    def number_of(self, key: str) -> int:
        """The partition of a key."""
        return int(key.rpartition("-")[2]) % self._partitions

    def judge(self, newest: dict[str, int]) -> list[str]:
        wrong = [
            f"compacted away: {key} was committed with {number}, found {newest.get(key)}"
            for key, number in self.committed.items()
            if newest.get(key, -1) < number
        ]
        return wrong + [
            f"G1a: the aborted {number} of {key} is visible" for key, number in newest.items() if number in self.aborted
        ]


class Remaker(Client):
    """Deletes a topic, makes it again under its name, fills it and reads it."""

    rounds = 0
    acked = 0

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]  # those of every client
        self.wrong: list[str] = []

    def life(self) -> None:
        client = admin(self._servers)
        config = {"segment.ms": "2000", "file.delete.delay.ms": "500"}
        with contextlib.suppress(KafkaException, TimeoutError):
            client.create_topics([NewTopic(AGAIN, 1, 3, config=config)])[AGAIN].result(_TRY_SECONDS)
            topic_id = self._id(client)
            acked = self._fill()
            found = self._read(len(acked))
            if topic_id is not None and self._id(client) == topic_id and found is not None:
                self.rounds += 1
                self.acked += len(acked)
                self.wrong += [
                    f"lost: {value!r} at {offset} of round {self.rounds}, found {found.get(offset)!r}"
                    for value, offset in acked.items()
                    if found.get(offset) != value
                ]
        with contextlib.suppress(KafkaException, TimeoutError):
            client.delete_topics([AGAIN])[AGAIN].result(_TRY_SECONDS)
        self._stopping.wait(0.5)

    def _id(self, client: AdminClient) -> str | None:
        with contextlib.suppress(KafkaException, TimeoutError):
            futures = client.describe_topics(TopicCollection([AGAIN]), request_timeout=_TRY_SECONDS)
            return str(futures[AGAIN].result(_TRY_SECONDS).topic_id)
        return None

    def _fill(self) -> dict[bytes, int]:
        acked: dict[bytes, int] = {}

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is None and message.offset() is not None:
                value, _, offset = seen(message)
                acked[value] = offset

        # Not idempotent: after the topic was made again, its producer would have to begin anew as well.
        producer = Producer(self.settings(acks="all", request_timeout_ms=5_000, delivery_timeout_ms=15_000))
        for number in range(self._random.randrange(20, 200)):
            producer.produce(AGAIN, f"{self.rounds}/{number}", on_delivery=on_delivery)
            producer.poll(0.01)
        producer.flush(20)
        return acked

    def _read(self, count: int) -> dict[int, bytes] | None:
        """By offset; None if it could not be read now."""
        consumer = Consumer(
            self.settings(
                group_id=self.name, enable_auto_commit=False, auto_offset_reset="error", enable_partition_eof=True
            )
        )
        found: dict[int, bytes] = {}
        deadline = time.monotonic() + _TRY_SECONDS
        try:
            place = TopicPartition(AGAIN, 0, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=5)
            if end < count:
                return None  # of a former or a next one, or not caught up
            consumer.assign([place])
            while time.monotonic() < deadline:
                for message in consumer.consume(500, 0.2):
                    error = message.error()
                    if error is None:
                        value, _, offset = seen(message)
                        found[offset] = value
                    elif error.code() == KafkaError._PARTITION_EOF and (message.offset() or 0) >= end:
                        return found
        except KafkaException:
            return None
        finally:
            consumer.close()
        return None


def read_keys(servers: str, partitions: int, seconds: float = 60) -> dict[str, int]:
    """The newest number of each key, for a read_committed reader."""
    newest: dict[str, int] = {}
    for _, _, value in read_topic(servers, KEYS, partitions, "read_committed", seconds):
        key, _, number = value.decode().rpartition("/")
        newest[key] = int(number)
    return newest
