"""The admin clients people have, confluent-kafka (librdkafka) and kafka-python, administer a Moldau broker."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from confluent_kafka.admin import OffsetSpec as _OffsetSpec
from kafka.admin import KafkaAdminClient

from moldau.testing import Broker
from tests.broker.requests.handlers.wire_client import FIRST_TIMESTAMP_MS, WireClient

OffsetSpec: Any = _OffsetSpec  # half of it is untyped


@pytest.fixture
def admin(broker: Broker) -> Any:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def results(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(20) for future in futures.values()]


def test_librdkafka_creates_grows_describes_and_deletes(admin: Any) -> None:
    results(admin.create_topics([NewTopic("lib-a", 2, 1, config={"retention.ms": "1000"})]))
    with pytest.raises(KafkaException) as caught:
        results(admin.create_topics([NewTopic("lib-a", 1, 1)]))
    assert caught.value.args[0].name() == "TOPIC_ALREADY_EXISTS"
    results(admin.create_partitions([NewPartitions("lib-a", 5)]))
    (described,) = results(admin.describe_topics(TopicCollection(["lib-a"])))
    assert [each.id for each in described.partitions] == [0, 1, 2, 3, 4]
    assert described.partitions[0].leader.id == 1
    results(admin.delete_topics(["lib-a"]))
    assert "lib-a" not in admin.list_topics(timeout=20).topics


def test_librdkafka_reads_and_changes_settings(admin: Any, client: WireClient) -> None:
    name = client.new_topic()
    change = ConfigEntry("retention.ms", "4321", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[change])
    results(admin.incremental_alter_configs([resource]))
    (configs,) = results(admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]))
    assert configs["retention.ms"].value == "4321"
    (of_broker,) = results(admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]))
    assert of_broker["num.partitions"].is_read_only
    assert len(of_broker) > 200


def test_librdkafka_finds_and_deletes_records(admin: Any, client: WireClient) -> None:
    name = client.new_topic()
    client.produce(name, [b"a", b"b", b"c"])

    def offset(spec: Any) -> int:
        (found,) = results(admin.list_offsets({TopicPartition(name, 0): spec}))
        return int(found.offset)

    assert offset(OffsetSpec.latest()) == 3
    assert offset(OffsetSpec.max_timestamp()) == 2
    assert offset(OffsetSpec.for_timestamp(FIRST_TIMESTAMP_MS + 1)) == 1
    results(admin.delete_records([TopicPartition(name, 0, 2)]))
    assert offset(OffsetSpec.earliest()) == 2


def test_librdkafka_describes_the_cluster(admin: Any, broker: Broker) -> None:
    cluster = admin.describe_cluster().result(20)
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [broker.bootstrap_servers]
    assert cluster.controller.id == 1


@pytest.fixture
def python_admin(broker: Broker) -> Iterator[Any]:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield admin
    admin.close()


def test_kafka_python_creates_describes_and_deletes(python_admin: Any) -> None:
    from kafka.admin import NewTopic as PythonTopic

    python_admin.create_topics([PythonTopic(name="py-a", num_partitions=3, replication_factor=1)])
    (described,) = python_admin.describe_topics(["py-a"])
    assert len(described["partitions"]) == 3
    python_admin.delete_topics(["py-a"])
    assert "py-a" not in python_admin.list_topics()


def test_kafka_python_reads_log_dirs_and_the_cluster(python_admin: Any, client: WireClient) -> None:
    client.new_topic()
    assert python_admin.describe_cluster()["controller_id"] == 1
    assert python_admin.describe_log_dirs()
