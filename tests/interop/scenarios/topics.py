"""Topics and configs: created, described, altered, refused."""

from typing import Any

from moldau.wire import messages as m
from tests.interop.differential import Masks, Side
from tests.interop.scenarios.support import UNKNOWN_ID, metadata, new_topic

Topic = m.CreateTopicsRequest.CreatableTopic
Config = m.CreateTopicsRequest.CreatableTopicConfig
Assignment = m.CreateTopicsRequest.CreatableReplicaAssignment
TOPIC, BROKER = 2, 4  # resource types of configs
SET, DELETE, APPEND, SUBTRACT = range(4)
CONFIGS = Masks(unordered=("topics", "topics.configs", "results", "results.configs"))


def create(*topics: Topic, validate_only: bool = False) -> m.CreateTopicsRequest:
    return m.CreateTopicsRequest(topics=list(topics), timeout_ms=10_000, validate_only=validate_only)


def creating_topics(side: Side) -> None:
    good = Topic(
        name="c-good", num_partitions=3, replication_factor=1, configs=[Config(name="retention.ms", value="1000")]
    )
    side.call("validate only", create(good, validate_only=True), 7, CONFIGS)
    side.call("create", create(good), 7, CONFIGS)
    side.call("create again", create(good), 7, CONFIGS)
    for version in range(2, 8):
        one = Topic(name=f"c-v{version}", num_partitions=1, replication_factor=1)
        side.call("create", create(one), version, CONFIGS)
    refused = {
        "no partitions": Topic(name="c-none", num_partitions=0, replication_factor=1),
        "too many replicas": Topic(name="c-many", num_partitions=1, replication_factor=3),
        "no replicas": Topic(name="c-zero", num_partitions=1, replication_factor=0),
        "empty name": Topic(name="", num_partitions=1, replication_factor=1),
        "dots": Topic(name="..", num_partitions=1, replication_factor=1),
        "bad letter": Topic(name="c/slash", num_partitions=1, replication_factor=1),
        "long name": Topic(name="c" * 250, num_partitions=1, replication_factor=1),
        "unknown config": Topic(
            name="c-u", num_partitions=1, replication_factor=1, configs=[Config(name="no.such", value="1")]
        ),
        "bad config": Topic(
            name="c-b", num_partitions=1, replication_factor=1, configs=[Config(name="retention.ms", value="x")]
        ),
        "null config": Topic(
            name="c-n", num_partitions=1, replication_factor=1, configs=[Config(name="retention.ms", value=None)]
        ),
        "both assignments and count": Topic(
            name="c-a",
            num_partitions=1,
            replication_factor=1,
            assignments=[Assignment(partition_index=0, broker_ids=[1])],
        ),
        "unknown broker": Topic(
            name="c-x",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[Assignment(partition_index=0, broker_ids=[99])],
        ),
        "gap in assignments": Topic(
            name="c-g",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[Assignment(partition_index=1, broker_ids=[1])],
        ),
    }
    for label, topic in refused.items():
        side.call(label, create(topic), 7, CONFIGS)
    side.call(
        "collides with dots and underscores",
        create(Topic(name="c.v2", num_partitions=1, replication_factor=1)),
        7,
        CONFIGS,
    )
    side.call("c_v2 after c.v2", create(Topic(name="c_v2", num_partitions=1, replication_factor=1)), 7, CONFIGS)
    side.call("twice in one request", create(Topic(name="c-d"), Topic(name="c-d")), 7, CONFIGS)
    side.call("broker defaults", create(Topic(name="c-default", num_partitions=-1, replication_factor=-1)), 7, CONFIGS)
    placed = Topic(
        name="c-p",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[Assignment(partition_index=0, broker_ids=[1])],
    )
    side.call("placed by hand", create(placed), 7, CONFIGS)


def describing_topics(side: Side) -> None:
    topic_id = new_topic(side, "d-one", 2)
    side.call_every("by name", metadata("d-one"), versions=range(4, 14))
    side.call_every("unknown name", metadata("d-none"), versions=range(4, 14))
    side.call("bad name", metadata("d/none"), 12)
    by_id = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(topic_id=topic_id, name=None)])
    side.call_every("by id", by_id, versions=(12, 13))
    unknown = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(topic_id=UNKNOWN_ID, name=None)])
    side.call_every("unknown id", unknown, versions=(12, 13))
    side.call_every("no topics", m.MetadataRequest(topics=[]), versions=range(1, 14))
    operations = m.MetadataRequest(
        topics=[m.MetadataRequest.MetadataRequestTopic(name="d-one")], include_topic_authorized_operations=True
    )
    side.call("authorized operations", operations, 12)
    asked = m.DescribeTopicPartitionsRequest
    for label, names, limit, cursor in (
        ("all", ["d-one"], 2000, None),
        ("limited", ["d-one"], 1, None),
        ("from cursor", ["d-one"], 2000, asked.Cursor(topic_name="d-one", partition_index=1)),
        ("unknown", ["d-none"], 2000, None),
    ):
        request = asked(
            topics=[asked.TopicRequest(name=name) for name in names], response_partition_limit=limit, cursor=cursor
        )
        side.call(f"partitions, {label}", request, 0)


def more_partitions(side: Side) -> None:
    new_topic(side, "p-one")
    kind = m.CreatePartitionsRequest
    for label, name, count, assignments in (
        ("same count", "p-one", 1, None),
        ("fewer", "p-one", 0, None),
        ("unknown topic", "p-none", 3, None),
        ("wrong number of assignments", "p-one", 3, [kind.CreatePartitionsAssignment(broker_ids=[1])]),
        ("unknown broker", "p-one", 2, [kind.CreatePartitionsAssignment(broker_ids=[42])]),
        ("more", "p-one", 2, None),
        ("placed", "p-one", 3, [kind.CreatePartitionsAssignment(broker_ids=[1])]),
    ):
        topic = kind.CreatePartitionsTopic(name=name, count=count, assignments=assignments)
        side.call(label, kind(topics=[topic], timeout_ms=10_000), 3)
    one = kind.CreatePartitionsTopic(name="p-one", count=5)
    side.call("validate only", kind(topics=[one], timeout_ms=10_000, validate_only=True), 3)
    side.await_answer("p-one has three", metadata("p-one"), 12, lambda answer: len(answer.topics[0].partitions) == 3)
    side.call("described", metadata("p-one"), 12)


def deleting_topics(side: Side) -> None:
    kind = m.DeleteTopicsRequest
    for version in versions_with_names():
        new_topic(side, f"x-v{version}")
        side.call("delete", kind(topic_names=[f"x-v{version}"], timeout_ms=10_000), version)
        side.call("delete again", kind(topic_names=[f"x-v{version}"], timeout_ms=10_000), version)
    topic_id = new_topic(side, "x-id")
    by_id = kind(topics=[kind.DeleteTopicState(name=None, topic_id=topic_id)], timeout_ms=10_000)
    side.call("delete by id", by_id, 6)
    unknown = kind(topics=[kind.DeleteTopicState(name=None, topic_id=UNKNOWN_ID)], timeout_ms=10_000)
    side.call("delete by unknown id", unknown, 6)
    both = kind(topics=[kind.DeleteTopicState(name="x-id", topic_id=UNKNOWN_ID)], timeout_ms=10_000)
    side.call("by name and id at once", both, 6)


def versions_with_names() -> range:
    return range(1, 6)


def describing_configs(side: Side) -> None:
    new_topic(side, "cfg-d", 1, retention_ms="5000")
    kind = m.DescribeConfigsRequest

    def ask(
        label: str, resource_type: int, name: str, keys: list[str] | None = None, version: int = 4, **extra: Any
    ) -> None:
        resource = kind.DescribeConfigsResource(
            resource_type=resource_type, resource_name=name, configuration_keys=keys
        )
        side.call(label, kind(resources=[resource], **extra), version, CONFIGS)

    for version in range(1, 5):
        ask("all of a topic", TOPIC, "cfg-d", version=version)
    ask("with synonyms", TOPIC, "cfg-d", include_synonyms=True)
    ask("with documentation", TOPIC, "cfg-d", include_documentation=True)
    ask("some keys", TOPIC, "cfg-d", ["retention.ms", "no.such", "segment.bytes"])
    ask("no keys", TOPIC, "cfg-d", [])
    ask("unknown topic", TOPIC, "cfg-none")
    ask("bad topic name", TOPIC, "cfg/none")
    ask("broker, some keys", BROKER, "1", ["log.retention.hours", "num.io.threads", "message.max.bytes", "no.such"])
    ask("cluster default", BROKER, "")
    ask("unknown broker", BROKER, "99")
    ask("not a broker id", BROKER, "one")
    ask("unknown type", 77, "x")


def altering_configs(side: Side) -> None:
    new_topic(side, "cfg-a")
    kind = m.IncrementalAlterConfigsRequest

    def alter(
        label: str, *changes: tuple[str, int, str | None], name: str = "cfg-a", validate_only: bool = False
    ) -> None:
        configs = [kind.AlterableConfig(name=key, config_operation=what, value=value) for key, what, value in changes]
        resource = kind.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=configs)
        side.call(label, kind(resources=[resource], validate_only=validate_only), 1)

    alter("set", ("retention.ms", SET, "7000"), ("max.message.bytes", SET, "5000"))
    alter("append", ("cleanup.policy", APPEND, "compact"))
    alter("subtract", ("cleanup.policy", SUBTRACT, "delete"))
    alter("append to a number", ("retention.ms", APPEND, "1"))
    alter("unknown key", ("no.such", SET, "1"))
    alter("bad value", ("retention.ms", SET, "x"))
    alter("out of range", ("segment.bytes", SET, "1"))
    alter("null value", ("retention.ms", SET, None))
    alter("unknown operation", ("retention.ms", 9, "1"))
    alter("same key twice", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    alter("unknown topic", ("retention.ms", SET, "1"), name="cfg-none")
    alter("validate only", ("retention.ms", SET, "1234"), validate_only=True)
    alter("delete", ("max.message.bytes", DELETE, None))
    describe = m.DescribeConfigsRequest
    keys = ["retention.ms", "max.message.bytes", "cleanup.policy"]
    resource = describe.DescribeConfigsResource(resource_type=TOPIC, resource_name="cfg-a", configuration_keys=keys)
    changed = describe(resources=[resource])
    side.await_answer(
        "config is there", changed, 4, lambda answer: any(c.value == "7000" for c in answer.results[0].configs)
    )
    side.call("described", changed, 4, CONFIGS)
    old = m.AlterConfigsRequest
    entry = old.AlterableConfig(name="retention.ms", value="8000")
    replace = old(resources=[old.AlterConfigsResource(resource_type=TOPIC, resource_name="cfg-a", configs=[entry])])
    side.call_every("replace all", replace)
    side.await_answer("replaced", changed, 4, lambda answer: any(c.value == "8000" for c in answer.results[0].configs))
    side.call("described again", changed, 4, CONFIGS)


SCENARIOS = {
    "creating topics": creating_topics,
    "describing topics": describing_topics,
    "more partitions": more_partitions,
    "deleting topics": deleting_topics,
    "describing configs": describing_configs,
    "altering configs": altering_configs,
}
