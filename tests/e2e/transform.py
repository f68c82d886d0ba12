"""Consume, transform, produce, with exactly-once transactions; dies where it is told to.

Arguments: bootstrap servers, group, input topic, output topic, transactional id, crash point, batches before it.
It moves records from input to output in batches of five, `value` becoming `value!`, and ends by itself when it has
nothing more to read. At the crash point the process is gone as after `kill -9`: no flush, no close, no goodbye.
"""

import os
import signal
import sys

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

CRASH_POINTS = (
    "after-init",
    "after-read",
    "after-begin",
    "after-produce",
    "after-flush",
    "after-offsets",
    "after-commit",
)
BATCH = 5


def main(bootstrap: str, group: str, source: str, target: str, identity: str, crash_at: str, after: str) -> None:
    left = int(after)

    def reached(point: str) -> None:
        if point == crash_at and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    common = {"bootstrap.servers": bootstrap, "log_level": 0}
    consumer = Consumer(
        {
            **common,
            "group.id": group,
            "group.instance.id": identity,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    producer = Producer({**common, "transactional.id": identity, "transaction.timeout.ms": 30_000, "linger.ms": 0})
    producer.init_transactions(30)
    reached("after-init")
    consumer.subscribe([source])
    ended: set[int] = set()
    while batch := read(consumer, ended):
        reached("after-read")
        producer.begin_transaction()
        reached("after-begin")
        for message in batch:
            value = message.value()
            assert value is not None
            producer.produce(target, value + b"!", message.key(), partition=message.partition() or 0)
        reached("after-produce")
        producer.flush(30)
        reached("after-flush")
        producer.send_offsets_to_transaction(ends(batch), consumer.consumer_group_metadata(), 30)
        reached("after-offsets")
        producer.commit_transaction(30)
        reached("after-commit")
        left -= 1
    consumer.close()


def read(consumer: Consumer, ended: set[int]) -> list[Message]:
    """The next records, or nothing at the end of all partitions; `ended` are those known to be there."""
    found: list[Message] = []
    while len(found) < BATCH and not (ended and len(ended) == len(consumer.assignment())):
        message = consumer.poll(30)
        assert message is not None, "nothing came for 30 seconds"
        error = message.error()
        if error is None:
            found.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition() or 0)
        else:
            raise AssertionError(error)
    return found


def ends(batch: list[Message]) -> list[TopicPartition]:
    last = {(each.topic(), each.partition()): each.offset() for each in batch}
    return [
        TopicPartition(topic or "", partition or 0, (offset or 0) + 1) for (topic, partition), offset in last.items()
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
