"""MirrorMaker 2, and with it Kafka Connect, copies topics and places of groups from Apache Kafka to Moldau and back."""

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition

from tests.interop.apache_kafka import ApacheKafka
from tests.interop.mirror_maker import mirrored
from tests.support.broker_process import BrokerProcess
from tests.support.clients import admin, create_topic, fresh, quiet, read_all, wait_for

PARTITIONS = 3
RECORDS = 600
READ = 60
GROUP = "mirrored-readers"
PATIENCE_SECONDS = 120.0


def send(bootstrap: str, topic: str, numbers: range) -> None:
    producer = Producer(quiet(bootstrap, enable_idempotence=True, linger_ms=5))
    for number in numbers:
        headers: Any = [("h", b"%d" % number)]
        producer.produce(topic, b"%d" % number, b"key %d" % (number % 50), headers=headers)
    assert producer.flush(30) == 0


def contents(bootstrap: str, topic: str) -> list[list[tuple[Any, ...]]]:
    """Of each partition what was committed, in order."""
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(PARTITIONS)]
    for each in read_all(bootstrap, topic, PARTITIONS):
        found[each.partition() or 0].append((each.key(), each.value(), each.headers(), each.timestamp()[1]))
    return found


def read_some(bootstrap: str, topic: str) -> None:
    """A group that has read a part of the first partition."""
    consumer = Consumer(quiet(bootstrap, group_id=GROUP, enable_auto_commit=False))
    consumer.commit(offsets=[TopicPartition(topic, 0, READ)], asynchronous=False)
    consumer.close()


def is_moved(bootstrap: str, topic: str) -> bool:
    """Whether the group has a place in the copy: the same, or a little before."""
    asked = ConsumerGroupTopicPartitions(GROUP, [TopicPartition(topic, 0)])
    client = admin(bootstrap)  # a future waits for ever if its client is gone
    (future,) = client.list_consumer_group_offsets([asked]).values()
    (found,) = future.result(20).topic_partitions
    return 0 < int(found.offset) <= READ


def is_copied(clusters: Mapping[str, str], source: str, target: str, topic: str) -> bool:
    with contextlib.suppress(KafkaException):  # not there yet
        return contents(clusters[target], f"{source}.{topic}") == contents(clusters[source], topic)
    return False


def test_both_ways_at_once(apache_kafka: ApacheKafka, moldau: BrokerProcess) -> None:
    clusters = {"kafka": apache_kafka.bootstrap_servers, "moldau": moldau.bootstrap_servers}
    ways = (("kafka", "moldau"), ("moldau", "kafka"))
    prefix = fresh("mirror")
    topics = {name: create_topic(at, f"{prefix}-{name}", PARTITIONS) for name, at in clusters.items()}
    for name, topic in topics.items():
        send(clusters[name], topic, range(RECORDS // 2))
        read_some(clusters[name], topic)
    with mirrored(clusters, f"{prefix}.*", GROUP) as process:
        for source, target in ways:
            assert process.poll() is None, "MirrorMaker ended"
            copied = partial(is_copied, clusters, source, target, topics[source])
            wait_for(copied, f"{topics[source]} at {target}", PATIENCE_SECONDS)
            send(clusters[source], topics[source], range(RECORDS // 2, RECORDS))
        for source, target in ways:
            copied = partial(is_copied, clusters, source, target, topics[source])
            wait_for(copied, f"the rest of {topics[source]} at {target}", PATIENCE_SECONDS)
            moved = partial(is_moved, clusters[target], f"{source}.{topics[source]}")
            wait_for(moved, f"the place of the group of {source} at {target}", PATIENCE_SECONDS)
    for source, target in ways:
        mirror = contents(clusters[target], f"{source}.{topics[source]}")
        numbers = [int(value) for part in mirror for _, value, *_ in part]
        assert sorted(numbers) == list(range(RECORDS)), "each record once"
