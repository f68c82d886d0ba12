"""kafka-python's admin client: topics, partitions, settings, records, offsets, groups, log dirs, cluster."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import InvalidPartitionsError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from kafka.structs import OffsetAndMetadata, TopicPartition

from moldau.testing import Broker
from tests.support.clients import KAFKA_PYTHON, Sent, create_topic, fresh, read_all

NODE_ID = 1


@pytest.fixture
def client(bootstrap: str) -> Iterator[Any]:
    connected = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield connected
    connected.close()


def test_a_topic_is_created_described_and_deleted(client: Any) -> None:
    topic = fresh("life")
    client.create_topics({topic: {"num_partitions": 3, "replication_factor": 1}}, wait_for_metadata=True)
    (described,) = client.describe_topics([topic])
    assert [(each["partition_index"], each["leader_id"]) for each in described["partitions"]] == [
        (0, NODE_ID),
        (1, NODE_ID),
        (2, NODE_ID),
    ]
    assert topic in client.list_topics()
    page = client.describe_topic_partitions([topic], response_partition_limit=2)
    assert [each["partition_index"] for each in page["topics"][0]["partitions"]] == [0, 1]
    assert page["next_cursor"]["partition_index"] == 2
    with pytest.raises(TopicAlreadyExistsError):
        client.create_topics([topic])
    client.delete_topics([topic])
    assert topic not in client.list_topics()
    with pytest.raises(UnknownTopicOrPartitionError):
        client.delete_topics([topic])


def test_partitions_are_added_never_removed(client: Any, bootstrap: str) -> None:
    topic = create_topic(bootstrap, "growing", 2)
    client.create_partitions({topic: 4})
    (described,) = client.describe_topics([topic])
    assert len(described["partitions"]) == 4
    with pytest.raises(InvalidPartitionsError):
        client.create_partitions({topic: 3})


def test_topic_settings_are_described_altered_and_reset(client: Any, bootstrap: str) -> None:
    topic = create_topic(bootstrap, "settings", retention_ms="1000000")

    def settings() -> dict[str, Any]:
        found = client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
        values: dict[str, Any] = {key: entry["value"] for key, entry in found["topic"][topic].items()}
        return values

    assert settings()["retention.ms"] == "1000000"
    change = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "5000000", "segment.ms": "7000000"})
    assert client.alter_configs([change]) == {"topic": {topic: "OK"}}
    assert (settings()["retention.ms"], settings()["segment.ms"]) == ("5000000", "7000000")
    # The old request replaces everything, so the client adds what it does not want to lose.
    old = ConfigResource(ConfigResourceType.TOPIC, topic, {"segment.ms": "8000000"})
    client.alter_configs([old], incremental=False)
    assert (settings()["retention.ms"], settings()["segment.ms"]) == ("5000000", "8000000")
    client.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, ["segment.ms"])])
    assert settings()["segment.ms"] == "604800000"
    assert topic in client.list_config_resources(["TOPIC"])["topic"]


def test_records_are_deleted_and_offsets_are_listed(client: Any, bootstrap: str) -> None:
    topic = create_topic(bootstrap, "offsets")
    start_ms = int(time.time() * 1000) - 100_000
    KAFKA_PYTHON.send(bootstrap, topic, [Sent(b"%d" % n, timestamp_ms=start_ms + n * 1_000) for n in range(6)], "gzip")
    where = TopicPartition(topic, 0)
    client.delete_records({where: 2})
    assert [message.offset() for message in read_all(bootstrap, topic)] == [2, 3, 4, 5]

    def at(spec: Any) -> int:
        offset: int = client.list_partition_offsets({where: spec})[where].offset
        return offset

    assert at(OffsetSpec.EARLIEST) == 2
    assert at(OffsetSpec.LATEST) == 6
    assert at(OffsetSpec.MAX_TIMESTAMP) == 5
    assert at(start_ms + 3_500) == 4
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    try:
        assert consumer.beginning_offsets([where]) == {where: 2}
        assert consumer.end_offsets([where]) == {where: 6}
        assert consumer.offsets_for_times({where: start_ms + 4_000})[where].offset == 4
        assert consumer.offsets_for_times({where: start_ms + 60_000})[where] is None
        assert consumer.partitions_for_topic(topic) == {0}
    finally:
        consumer.close()


def test_the_cluster_describes_itself(client: Any, bootstrap: str) -> None:
    cluster = client.describe_cluster()
    (node,) = cluster["brokers"]
    assert (node["broker_id"], f"{node['host']}:{node['port']}") == (NODE_ID, bootstrap)
    assert cluster["controller_id"] == NODE_ID
    assert cluster["cluster_id"]
    quorum = client.describe_metadata_quorum()
    assert str(NODE_ID) in str(quorum)
    assert "metadata.version" in str(client.describe_features())


def test_log_dirs_say_how_large_a_partition_is(client: Any, broker: Broker, bootstrap: str) -> None:
    topic = create_topic(bootstrap, "sized", 2)
    KAFKA_PYTHON.send(bootstrap, topic, [Sent(b"x" * 10_000)], "none")
    (answer,) = client.describe_log_dirs([topic])
    assert answer["broker"] == NODE_ID
    (log_dir,) = answer["log_dirs"]
    assert log_dir["log_dir"] == broker.data_dir
    (found,) = log_dir["topics"]
    sizes = {each["partition_index"]: each["partition_size"] for each in found["partitions"]}
    assert sizes[1] == 0
    assert 10_000 < sizes[0] < 10_200
    assert log_dir["usable_bytes"] <= log_dir["total_bytes"]


def test_groups_are_listed_described_altered_and_deleted(client: Any, bootstrap: str) -> None:
    topic, group = create_topic(bootstrap, "grouped"), fresh("group")
    where = TopicPartition(topic, 0)
    KAFKA_PYTHON.send(bootstrap, topic, [Sent(b"%d" % n) for n in range(5)], "none")
    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    try:
        assert [next(consumer).offset for _ in range(5)] == [0, 1, 2, 3, 4]
        consumer.commit({where: OffsetAndMetadata(5, "here", -1)})
        described = client.describe_groups([group])[group]
        assert described["group_state"] == "Stable"
        assert len(described["members"]) == 1
        assert group in {each["group_id"] for each in client.list_groups()}
    finally:
        consumer.close()
    committed = client.list_group_offsets(group)[group][where]
    assert (committed.offset, committed.metadata) == (5, "here")
    client.alter_group_offsets(group, {where: OffsetAndMetadata(1, "back", -1)})
    assert client.list_group_offsets(group)[group][where].offset == 1
    client.delete_group_offsets(group, [where])
    left = client.list_group_offsets({group: [where]})[group]
    assert where not in left or left[where].offset == -1
    client.alter_group_offsets(group, {where: OffsetAndMetadata(1, "", -1)})
    assert client.delete_groups([group]) == {group: "OK"}
    assert group not in {each["group_id"] for each in client.list_groups()}
