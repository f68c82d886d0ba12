"""Users that log in, rules about them, and stock clients that meet both."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from moldau.testing import Broker, Security
from tests.support.clients import wait_for

USERS = {name: f"{name}-secret" for name in ("admin", "alice", "bob", "carol")}
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    security = Security("SASL_PLAINTEXT", "SCRAM-SHA-256", USERS)
    with Broker(AUTHORIZER, security=security) as running:
        admin = AdminClient(running.client_settings("admin"))
        for future in admin.create_topics([NewTopic(name, 1, 1) for name in ("team-orders", "secret")]).values():
            future.result(20)
        yield running


def rule(user: str, kind: ResourceType, name: str, operation: AclOperation, **more: Any) -> AclBinding:
    pattern = more.get("pattern", ResourcePatternType.LITERAL)
    permission = more.get("permission", AclPermissionType.ALLOW)
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, permission)


def add(broker: Broker, *rules: AclBinding) -> None:
    admin = AdminClient(broker.client_settings("admin"))
    for future in admin.create_acls(list(rules)).values():
        future.result(20)


def send(broker: Broker, user: str, topic: str) -> KafkaError | None:
    told: list[KafkaError | None] = []
    producer = Producer({**broker.client_settings(user), "message.timeout.ms": 10_000})
    producer.produce(topic, b"v", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(20) == 0
    return told[0]


def test_a_user_may_what_its_rules_say(broker: Broker) -> None:
    refused = send(broker, "alice", "team-orders")
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    team = {"pattern": ResourcePatternType.PREFIXED}
    add(broker, rule("alice", ResourceType.TOPIC, "team-", AclOperation.WRITE, **team))
    assert send(broker, "alice", "team-orders") is None
    still = send(broker, "bob", "team-orders")
    assert still is not None
    assert still.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert send(broker, "admin", "secret") is None, "super users may do everything"


def test_topics_that_a_user_may_not_see_are_hidden(broker: Broker) -> None:
    add(broker, rule("carol", ResourceType.TOPIC, "secret", AclOperation.DESCRIBE))
    carol = AdminClient(broker.client_settings("carol"))
    assert set(carol.list_topics(timeout=20).topics) == {"secret"}


def test_reading_needs_the_topic_and_the_group(broker: Broker) -> None:
    assert send(broker, "admin", "team-orders") is None

    codes: list[int] = []

    def reads() -> bool:
        own = {"group.id": "bobs", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({**broker.client_settings("bob"), **own})
        try:
            consumer.subscribe(["team-orders"])
            message = consumer.poll(30)
            assert message is not None
            problem = message.error()
            if problem is not None:
                codes.append(problem.code())
            return problem is None
        finally:
            consumer.close()

    assert not reads()
    add(broker, rule("bob", ResourceType.TOPIC, "team-orders", AclOperation.READ))
    assert not reads(), "it may not join the group"
    add(broker, rule("bob", ResourceType.GROUP, "bobs", AclOperation.READ))
    assert reads()
    add(broker, rule("*", ResourceType.TOPIC, "team-orders", AclOperation.READ, permission=AclPermissionType.DENY))
    assert not reads(), "a denial of everybody counts before what bob is allowed"
    every: Any = None  # which the stubs do not know
    anything = AclBindingFilter(
        ResourceType.ANY, every, ResourcePatternType.ANY, every, every, AclOperation.ANY, AclPermissionType.DENY
    )
    admin = AdminClient(broker.client_settings("admin"))
    for future in admin.delete_acls([anything]).values():
        assert len(future.result(20)) == 1
    assert reads()
    assert set(codes) <= {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED}


def test_only_administrators_change_rules_and_the_log_says_who_tried(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "moldau.audit")
    mine = rule("alice", ResourceType.TOPIC, "secret", AclOperation.ALL)
    alice = AdminClient(broker.client_settings("alice"))
    (future,) = alice.create_acls([mine]).values()
    with pytest.raises(KafkaException, match="CreateAcls is not authorized"):
        future.result(20)
    add(broker, rule("alice", ResourceType.GROUP, "some", AclOperation.READ))

    def lines() -> list[dict[str, str]]:
        return [json.loads(record.getMessage()) for record in caplog.records if record.name == "moldau.audit"]

    wait_for(lambda: any(each["event"] == "change" for each in lines()), "the change is written down")
    denied = [each for each in lines() if each["event"] == "authorization"]
    assert (denied[-1]["principal"], denied[-1]["operation"], denied[-1]["api"]) == (
        "User:alice",
        "ALTER",
        "CreateAcls",
    )
    (changed,) = [each for each in lines() if each["event"] == "change"]
    assert changed["principal"] == "User:admin"
    assert changed["target"] == "ALLOW User:alice READ GROUP:LITERAL:some from *"


def test_changes_of_the_cluster_are_written_down_and_values_of_settings_are_not(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Topics, settings, records and groups: who changed them, not what failed or was only tried."""
    admin = AdminClient(broker.client_settings("admin"))
    caplog.set_level(logging.INFO, "moldau.audit")

    def done(futures: Any) -> None:
        for future in futures.values():
            future.result(20)

    done(admin.create_topics([NewTopic("noted", 1)]))
    done(admin.create_topics([NewTopic("tried", 1)], validate_only=True))
    with pytest.raises(KafkaException):
        done(admin.create_topics([NewTopic("noted", 1)]))
    done(admin.create_partitions([NewPartitions("noted", 3)]))
    entry = ConfigEntry("retention.ms", "77777", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "noted", incremental_configs=[entry])
    done(admin.incremental_alter_configs([resource]))
    done(admin.delete_records([TopicPartition("noted", 0, 0)]))
    reader = Consumer(broker.client_settings("admin") | {"group.id": "noted-group"})
    reader.commit(offsets=[TopicPartition("noted", 0, 0)], asynchronous=False)
    reader.close()
    done(admin.delete_consumer_groups(["noted-group"]))
    done(admin.delete_topics(["noted"]))
    lines = [json.loads(line) for line in caplog.messages if '"change"' in line]
    assert {each["principal"] for each in lines} == {"User:admin"}
    assert [(each["api"], each["target"]) for each in lines] == [
        ("CreateTopics", "noted"),
        ("CreatePartitions", "noted"),
        ("IncrementalAlterConfigs", "topic noted: retention.ms"),
        ("DeleteRecords", "noted-0"),
        ("DeleteGroups", "noted-group"),
        ("DeleteTopics", "noted"),
    ]
    assert "77777" not in caplog.text
