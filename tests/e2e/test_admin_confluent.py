"""librdkafka's admin client: topics, partitions, settings, records, offsets, groups, and what is refused."""

import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ElectionType,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.support.clients import CONFLUENT, Sent, add_partitions, create_topic, fresh, quiet, read_all, take, wait_for

T = TypeVar("T")
NODE_ID = 1


@pytest.fixture
def client(bootstrap: str) -> AdminClient:
    return AdminClient(quiet(bootstrap))


def only(futures: Mapping[Any, Future[T]]) -> T:
    """The one answer of a call about one thing."""
    (future,) = futures.values()
    return future.result(20)


def refused(futures: Mapping[Any, Future[Any]]) -> int:
    """The error code of the one answer."""
    with pytest.raises(KafkaException) as caught:
        only(futures)
    error: KafkaError = caught.value.args[0]
    return error.code()


def topic_settings(client: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    found: dict[str, ConfigEntry] = only(client.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    return found


def test_a_topic_is_created_described_and_deleted(client: AdminClient) -> None:
    topic = fresh("life")
    only(client.create_topics([NewTopic(topic, 3, 1, config={"retention.ms": "123456"})]))
    described = only(client.describe_topics(TopicCollection([topic])))
    assert described.name == topic
    assert not described.is_internal
    assert [(part.id, part.leader.id, [n.id for n in part.replicas]) for part in described.partitions] == [
        (index, NODE_ID, [NODE_ID]) for index in range(3)
    ]
    assert len(client.list_topics(timeout=10).topics[topic].partitions) == 3
    only(client.delete_topics([topic]))
    assert topic not in client.list_topics(timeout=10).topics
    assert refused(client.delete_topics([topic])) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_topic_created_again_is_another_topic(client: AdminClient, bootstrap: str) -> None:
    topic = create_topic(bootstrap, "again")
    first = only(client.describe_topics(TopicCollection([topic]))).topic_id
    CONFLUENT.send(bootstrap, topic, [Sent(b"of the first")], "none")
    only(client.delete_topics([topic]))
    only(client.create_topics([NewTopic(topic, 1, 1)]))
    assert str(only(client.describe_topics(TopicCollection([topic]))).topic_id) != str(first)
    assert CONFLUENT.send(bootstrap, topic, [Sent(b"of the second")], "none") == [0]
    assert [message.value() for message in read_all(bootstrap, topic)] == [b"of the second"]


@pytest.mark.parametrize(
    ("name", "partitions", "replicas", "config", "code"),
    [
        ("a/b", 1, 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("..", 1, 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("x" * 250, 1, 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("too-many-replicas", 1, 2, {}, KafkaError.INVALID_REPLICATION_FACTOR),
        ("bad-value", 1, 1, {"retention.ms": "soon"}, KafkaError.INVALID_CONFIG),
        ("bad-key", 1, 1, {"no.such.setting": "1"}, KafkaError.INVALID_CONFIG),
    ],
)
def test_impossible_topics_are_refused(
    client: AdminClient, name: str, partitions: int, replicas: int, config: dict[str, str], code: int
) -> None:
    assert refused(client.create_topics([NewTopic(name, partitions, replicas, config=config)])) == code
    assert name not in client.list_topics(timeout=10).topics


def test_a_topic_is_created_once(client: AdminClient, bootstrap: str) -> None:
    topic = create_topic(bootstrap, "once")
    assert refused(client.create_topics([NewTopic(topic, 1, 1)])) == KafkaError.TOPIC_ALREADY_EXISTS


def test_validate_only_changes_nothing(client: AdminClient, bootstrap: str) -> None:
    name = fresh("imagined")
    only(client.create_topics([NewTopic(name, 1, 1)], validate_only=True))
    assert name not in client.list_topics(timeout=10).topics
    topic = create_topic(bootstrap, "real")
    only(client.create_partitions([NewPartitions(topic, 4)], validate_only=True))
    assert len(client.list_topics(timeout=10).topics[topic].partitions) == 1


def test_partitions_are_added_never_removed(client: AdminClient, bootstrap: str) -> None:
    topic = create_topic(bootstrap, "growing", 2)
    add_partitions(bootstrap, topic, 5)
    assert sorted(client.list_topics(timeout=10).topics[topic].partitions) == [0, 1, 2, 3, 4]
    assert refused(client.create_partitions([NewPartitions(topic, 3)])) == KafkaError.INVALID_PARTITIONS
    assert refused(client.create_partitions([NewPartitions(topic, 5)])) == KafkaError.INVALID_PARTITIONS


def test_topic_settings_are_described_and_altered(client: AdminClient, bootstrap: str) -> None:
    topic = create_topic(bootstrap, "settings", retention_ms="1000000")
    before = topic_settings(client, topic)
    assert before["retention.ms"].value == "1000000"
    assert ConfigSource(before["retention.ms"].source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert before["cleanup.policy"].value == "delete"
    assert before["cleanup.policy"].is_default
    changes = [
        ConfigEntry("retention.ms", "2000000", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
        ConfigEntry("segment.bytes", "2097152", incremental_operation=AlterConfigOpType.SET),
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    only(client.incremental_alter_configs([resource]))
    after = topic_settings(client, topic)
    assert after["retention.ms"].value == "2000000"
    assert after["cleanup.policy"].value == "delete,compact"
    assert after["segment.bytes"].value == "2097152"
    reset = [ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE)]
    only(client.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=reset)]))
    assert topic_settings(client, topic)["retention.ms"].value == "604800000"
    bad = [ConfigEntry("segment.bytes", "one", incremental_operation=AlterConfigOpType.SET)]
    refused_resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=bad)
    assert refused(client.incremental_alter_configs([refused_resource])) == KafkaError.INVALID_CONFIG


def test_a_changed_setting_works_at_once(client: AdminClient, bootstrap: str) -> None:
    topic = create_topic(bootstrap, "strict")
    CONFLUENT.send(bootstrap, topic, [Sent(b"x" * 5_000)], "none")
    limit = [ConfigEntry("max.message.bytes", "1000", incremental_operation=AlterConfigOpType.SET)]
    only(client.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=limit)]))
    with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
        CONFLUENT.send(bootstrap, topic, [Sent(b"x" * 5_000)], "none")


def test_broker_settings_are_described_and_altered(client: AdminClient) -> None:
    resource = ConfigResource(ResourceType.BROKER, str(NODE_ID))
    entries = only(client.describe_configs([resource]))
    assert entries["node.id"].value == str(NODE_ID)
    assert entries["node.id"].is_read_only
    change = [ConfigEntry("log.cleaner.threads", "2", incremental_operation=AlterConfigOpType.SET)]
    only(
        client.incremental_alter_configs(
            [ConfigResource(ResourceType.BROKER, str(NODE_ID), incremental_configs=change)]
        )
    )
    assert only(client.describe_configs([resource]))["log.cleaner.threads"].value == "2"
    static = [ConfigEntry("node.id", "7", incremental_operation=AlterConfigOpType.SET)]
    fixed = ConfigResource(ResourceType.BROKER, str(NODE_ID), incremental_configs=static)
    assert refused(client.incremental_alter_configs([fixed])) in (KafkaError.INVALID_REQUEST, KafkaError.INVALID_CONFIG)


def test_records_are_deleted_up_to_an_offset(client: AdminClient, bootstrap: str) -> None:
    topic = create_topic(bootstrap, "shortened")
    CONFLUENT.send(bootstrap, topic, [Sent(b"%d" % n) for n in range(10)], "none")
    deleted = only(client.delete_records([TopicPartition(topic, 0, 4)]))
    assert deleted.low_watermark == 4
    assert [message.offset() for message in read_all(bootstrap, topic)] == [4, 5, 6, 7, 8, 9]
    assert only(client.delete_records([TopicPartition(topic, 0, -1)])).low_watermark == 10
    assert read_all(bootstrap, topic) == []
    assert refused(client.delete_records([TopicPartition(topic, 0, 11)])) == KafkaError.OFFSET_OUT_OF_RANGE


def test_offsets_by_time(client: AdminClient, bootstrap: str) -> None:
    topic = create_topic(bootstrap, "times")
    start_ms = int(time.time() * 1000) - 100_000
    records = [Sent(b"%d" % n, timestamp_ms=start_ms + 1_000 * n) for n in (0, 1, 9, 3, 4)]
    CONFLUENT.send(bootstrap, topic, records, "none")

    def at(spec: OffsetSpec) -> tuple[int, int]:
        found = only(client.list_offsets({TopicPartition(topic, 0): spec}))
        return found.offset, found.timestamp

    spec: Any = OffsetSpec  # its constructors have no types
    assert at(spec.earliest())[0] == 0
    assert at(spec.latest())[0] == 5
    assert at(spec.max_timestamp()) == (2, start_ms + 9_000)
    assert at(spec.for_timestamp(start_ms + 1_000)) == (1, start_ms + 1_000)
    assert at(spec.for_timestamp(start_ms + 1_001)) == (2, start_ms + 9_000)
    assert at(spec.for_timestamp(start_ms + 9_001))[0] == -1
    consumer = Consumer(quiet(bootstrap, group_id=fresh("times")))
    try:
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, start_ms + 1_500)], timeout=10)
        assert found.offset == 2
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (0, 5)
    finally:
        consumer.close()


def test_the_cluster_describes_itself(client: AdminClient, bootstrap: str) -> None:
    cluster = client.describe_cluster().result(20)
    assert [node.id for node in cluster.nodes] == [NODE_ID]
    assert f"{cluster.nodes[0].host}:{cluster.nodes[0].port}" == bootstrap
    assert cluster.controller.id == NODE_ID
    assert cluster.cluster_id == client.list_topics(timeout=10).cluster_id


def test_leaders_are_elected_on_request(client: AdminClient, bootstrap: str) -> None:
    topic = create_topic(bootstrap, "elected")
    results = client.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(20)
    error = results[TopicPartition(topic, 0)]
    assert error is not None
    assert error.code() == KafkaError.ELECTION_NOT_NEEDED


def test_groups_are_listed_described_reset_and_deleted(client: AdminClient, bootstrap: str) -> None:
    topic, group = create_topic(bootstrap, "grouped"), fresh("group")
    CONFLUENT.send(bootstrap, topic, [Sent(b"%d" % n) for n in range(5)], "none")
    where = TopicPartition(topic, 0)
    consumer = Consumer(quiet(bootstrap, group_id=group, auto_offset_reset="earliest", client_id="someone"))
    try:
        consumer.subscribe([topic])
        take(consumer, 5)
        consumer.commit(asynchronous=False)
        described = only(client.describe_consumer_groups([group]))
        assert described.state == ConsumerGroupState.STABLE
        (member,) = described.members
        assert member.client_id == "someone"
        assert member.host == "/127.0.0.1"
        assert member.assignment.topic_partitions == [where]
        listed = client.list_consumer_groups().result(20)
        assert group in {each.group_id for each in listed.valid}
        assert refused(client.delete_consumer_groups([group])) == KafkaError.NON_EMPTY_GROUP
    finally:
        consumer.close()
    wait_for(
        lambda: only(client.describe_consumer_groups([group])).state == ConsumerGroupState.EMPTY, "the group is empty"
    )
    assert committed(client, group, where) == 5
    only(client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 2)])]))
    assert committed(client, group, where) == 2
    only(client.delete_consumer_groups([group]))
    assert refused(client.delete_consumer_groups([group])) == KafkaError.GROUP_ID_NOT_FOUND


def committed(client: AdminClient, group: str, where: TopicPartition) -> int:
    answer = only(client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [where])]))
    (found,) = answer.topic_partitions
    offset: int = found.offset
    return offset
