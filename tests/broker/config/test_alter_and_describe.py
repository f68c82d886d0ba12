"""What handlers do: apply changes, validate them, and describe what came of it."""

import pytest

from moldau.broker.config import (
    BrokerConfig,
    Change,
    ConfigEntry,
    ConfigSource,
    ConfigType,
    InvalidConfig,
    Operation,
    ResourceType,
    apply_changes,
    check_min_insync_replicas_change,
    describe_broker,
    describe_broker_default,
    describe_client_metrics,
    describe_group,
    describe_topic,
    load_broker_config,
    replace_all,
    usable_dynamic_settings,
    validate_dynamic_change,
    validate_resource,
    with_dynamic_settings,
)
from moldau.broker.config.rules import TableRules
from moldau.controller.image import ClusterImage

INVALID_CONFIG = 40
INVALID_REQUEST = 42
BROKER = load_broker_config({"listeners": "PLAINTEXT://127.0.0.1:9092,SSL://127.0.0.1:9093"})
TOPIC = ResourceType.TOPIC


def test_set_and_delete() -> None:
    changes = [Change("retention.ms", Operation.SET, "5"), Change("segment.ms", Operation.DELETE, None)]
    assert apply_changes(TOPIC, {"segment.ms": "1", "flush.ms": "2"}, changes) == {"flush.ms": "2", "retention.ms": "5"}
    assert apply_changes(TOPIC, {}, [Change("never.heard.of", Operation.DELETE, None)]) == {}


@pytest.mark.parametrize(
    ("current", "operation", "value", "result"),
    [
        (None, Operation.APPEND, "compact", "delete,compact"),
        ("compact", Operation.APPEND, "compact", "compact"),
        ("", Operation.APPEND, "compact", "compact"),
        ("compact,delete", Operation.SUBTRACT, "compact", "delete"),
        (None, Operation.SUBTRACT, "delete", ""),
        ("compact", Operation.SUBTRACT, "delete", "compact"),
        ("compact", Operation.APPEND, "delete,", "compact,delete"),
    ],
)
def test_lists_grow_and_shrink_from_what_is_set_or_else_the_default(
    current: str | None, operation: Operation, value: str, result: str
) -> None:
    before = {} if current is None else {"cleanup.policy": current}
    assert apply_changes(TOPIC, before, [Change("cleanup.policy", operation, value)]) == {"cleanup.policy": result}


@pytest.mark.parametrize(
    ("resource", "changes", "message", "code"),
    [
        (TOPIC, [Change("retention.ms", 2, "1")], "Can't APPEND to key retention.ms because", INVALID_CONFIG),
        (TOPIC, [Change("retention.ms", 3, "1")], "Can't SUBTRACT to key retention.ms because", INVALID_CONFIG),
        (ResourceType.BROKER, [Change("log.retention.ms", 2, "1")], "append is not allowed", INVALID_CONFIG),
        (ResourceType.BROKER, [Change("nothing", 3, "1")], "Unknown config name: nothing", INVALID_CONFIG),
        (TOPIC, [Change("a", 0, "1"), Change("a", 1, None)], "duplicate config keys", INVALID_REQUEST),
        (TOPIC, [Change("a", 0, None), Change("b", 2, None)], "Null value not supported for : a, b", INVALID_REQUEST),
        (TOPIC, [Change("a", 7, "1")], "Unknown operations type 7", INVALID_REQUEST),
        (TOPIC, [Change("a", 0, "x" * 32768)], "exceeds the maximum value size of 32767", INVALID_CONFIG),
        (ResourceType.BROKER_LOGGER, [], "Unknown resource type 8", INVALID_REQUEST),
    ],
)
def test_changes_that_make_no_sense_are_refused(
    resource: ResourceType, changes: list[Change], message: str, code: int
) -> None:
    with pytest.raises(InvalidConfig) as refused:
        apply_changes(resource, {}, changes)
    assert message in str(refused.value)
    assert refused.value.error_code == code


def test_the_older_alter_configs_replaces_everything() -> None:
    assert replace_all([("a", "1"), ("b", "2")]) == {"a": "1", "b": "2"}
    with pytest.raises(InvalidConfig, match="duplicate"):
        replace_all([("a", "1"), ("a", "2")])
    with pytest.raises(InvalidConfig, match="Null value not supported for : a"):
        replace_all([("a", None)])


@pytest.mark.parametrize(
    ("resource", "name", "message"),
    [
        (TOPIC, "", "Default topic resources are not allowed."),
        (ResourceType.GROUP, "", "Default group resources are not allowed."),
        (ResourceType.BROKER, "one", "Unable to parse broker name as a base 10 number."),
        (ResourceType.BROKER, "-1", "Invalid negative broker ID."),
        (ResourceType.CLIENT_METRICS, "", "Subscription name can't be empty"),
        (ResourceType.UNKNOWN, "x", "Unknown resource type 0"),
    ],
)
def test_resources_need_proper_names(resource: ResourceType, name: str, message: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        validate_resource(resource, name, {}, BROKER)
    assert str(refused.value) == message
    assert refused.value.error_code == INVALID_REQUEST


def test_every_kind_of_resource_is_validated_by_its_own_rules() -> None:
    for resource, name, configs in (
        (TOPIC, "t", {"retention.ms": "5"}),
        (ResourceType.GROUP, "g", {"consumer.session.timeout.ms": "50000"}),
        (ResourceType.CLIENT_METRICS, "m", {"interval.ms": "500"}),
        (ResourceType.BROKER, "1", {"log.retention.ms": "5"}),
        (ResourceType.BROKER, "", {"log.retention.ms": "5"}),
    ):
        assert validate_resource(resource, name, configs, BROKER) == configs
        with pytest.raises(InvalidConfig):
            validate_resource(resource, name, {"nothing": "1"}, BROKER)


@pytest.mark.parametrize(
    ("settings", "per_broker", "message"),
    [
        (
            {"num.partitions": "5", "node.id": "2"},
            True,
            "Cannot update these configs dynamically: [node.id, num.partitions]",
        ),
        ({"ssl.key.password": "x"}, True, "only per-listener using the listener prefix: [ssl.key.password]"),
        ({"listeners": "PLAINTEXT://:1"}, False, "at default cluster level, broker id must be specified: [listeners]"),
        ({"listener.name.ssl.ssl.key.password": "x"}, False, "at default cluster level"),
        ({"log.retention.ms": "x"}, True, "Invalid value x for configuration log.retention.ms: Not a number"),
        ({"log.retention.ms": "0"}, False, "It must be -1, for no limit, or at least 1"),
        ({"num.io.threads": "17"}, False, "Between half and double the current value 8"),
        ({"num.io.threads": "3"}, False, "Between half and double the current value 8"),
        ({"log.cleaner.threads": "3"}, False, "Between half and double the current value 1"),
        ({"listeners": "SSL://127.0.0.1:9093"}, True, "Brokers reach each other through"),
        ({"listeners": "PLAINTEXT://127.0.0.1:9092"}, True, "Advertised listeners must stay: SSL"),
        ({"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:PLAINTEXT"}, True, "Security protocol cannot"),
        ({"listener.name.ssl.ssl.client.auth": "required"}, True, "restart broker or create a new listener"),
        ({"config.providers": "x"}, True, "Moldau does not support it"),
        ({"log.retention.mss": "1"}, True, "Did you mean log.retention.ms"),
    ],
)
def test_dynamic_changes_that_cannot_be_made_are_refused(
    settings: dict[str, str], per_broker: bool, message: str
) -> None:
    with pytest.raises(InvalidConfig) as refused:
        validate_dynamic_change(BROKER, settings, per_broker=per_broker)
    assert message in str(refused.value)
    assert refused.value.error_code == INVALID_REQUEST


def test_a_dynamic_change_gives_the_config_that_follows() -> None:
    settings = {"log.retention.ms": "5", "num.io.threads": "16", "listener.name.ssl.ssl.key.password": "x"}
    changed = validate_dynamic_change(BROKER, settings, per_broker=True)
    assert changed.topic_defaults["retention.ms"] == 5
    assert changed.get_int("num.io.threads") == 16
    assert changed.for_listener("SSL", "ssl.key.password") == "x"
    assert BROKER.topic_defaults["retention.ms"] == 604_800_000


def test_a_dynamic_change_counts_over_a_stronger_synonym_in_the_file() -> None:
    config = load_broker_config({"log.roll.ms": "5", "log.flush.scheduler.interval.ms": "6"})
    changed = with_dynamic_settings(config, {"log.roll.ms": "7", "log.flush.interval.ms": "8"}, {})
    assert (changed.topic_defaults["segment.ms"], changed.topic_defaults["flush.ms"]) == (7, 8)
    assert with_dynamic_settings(changed, {}, {}).topic_defaults["segment.ms"] == 5


def test_an_assignment_interval_is_refused_when_asked_for_but_clamped_when_found() -> None:
    settings = {"group.consumer.assignment.interval.ms": "20000"}
    with pytest.raises(InvalidConfig, match=r"at most group\.consumer\.max\.assignment\.interval\.ms \(15000\)"):
        validate_dynamic_change(BROKER, settings, per_broker=False)
    assert with_dynamic_settings(BROKER, settings, {}).get_int("group.consumer.assignment.interval.ms") == 15_000


def test_stored_settings_that_no_longer_work_are_left_out_and_reported() -> None:
    stored = {"log.retention.ms": "5", "num.partitions": "2", "compression.type": "zip", "from.the.future": "1"}
    reports: list[str] = []
    assert usable_dynamic_settings(stored, per_broker=True, report=reports.append) == {"log.retention.ms": "5"}
    assert [report.split()[4] for report in reports] == ["num.partitions", "compression.type", "from.the.future"]
    assert usable_dynamic_settings({"listeners": "PLAINTEXT://:1"}, per_broker=False) == {}


def test_eligible_leader_replicas_need_one_min_insync_replicas() -> None:
    key, broker = "min.insync.replicas", ResourceType.BROKER
    with pytest.raises(InvalidConfig, match="Broker-level"):
        check_min_insync_replicas_change(broker, "1", {}, {key: "2"})
    with pytest.raises(InvalidConfig, match="Cluster-level"):
        check_min_insync_replicas_change(broker, "", {key: "2"}, {})
    check_min_insync_replicas_change(broker, "", {key: "2"}, {key: "3"})
    check_min_insync_replicas_change(broker, "1", {key: "2"}, {key: "2"})
    check_min_insync_replicas_change(TOPIC, "t", {key: "2"}, {})


def entry_of(entries: list[ConfigEntry], name: str) -> ConfigEntry:
    return next(entry for entry in entries if entry.name == name)


def layered() -> BrokerConfig:
    config = load_broker_config({"compression.type": "gzip", "ssl.key.password": "hush", "super.users": "User:a"})
    return with_dynamic_settings(config, {"compression.type": "lz4"}, {"compression.type": "zstd"})


def test_a_description_lists_every_layer_strongest_first() -> None:
    entry = entry_of(describe_topic({"compression.type": "snappy"}, layered()), "compression.type")
    assert entry.value == "snappy"
    assert entry.source is ConfigSource.TOPIC_CONFIG
    assert not entry.read_only
    assert entry.type is ConfigType.STRING
    assert entry.documentation
    assert [(synonym.value, synonym.source.value) for synonym in entry.synonyms] == [
        ("snappy", 1),
        ("zstd", 2),
        ("lz4", 3),
        ("gzip", 4),
        ("producer", 5),
    ]


def test_a_broker_description_hides_secrets_and_tells_what_can_change() -> None:
    entries = describe_broker(layered())
    assert entry_of(entries, "compression.type").source is ConfigSource.DYNAMIC_BROKER_CONFIG
    secret = entry_of(entries, "ssl.key.password")
    assert (secret.value, secret.is_sensitive, secret.type) == (None, True, ConfigType.PASSWORD)
    assert [synonym.value for synonym in secret.synonyms] == [None]
    plugin = entry_of(entries, "super.users")
    assert (plugin.value, plugin.is_sensitive, plugin.type) == (None, True, ConfigType.UNKNOWN)
    assert entry_of(entries, "num.partitions").read_only
    assert not entry_of(entries, "log.retention.ms").read_only
    assert "hush" not in repr(entries)
    names = [entry.name for entry in entries]
    assert names == sorted(set(names))
    assert "log.initial.task.delay.ms" not in names
    assert "leader.replication.throttled.rate" not in names


def test_the_cluster_default_lists_only_what_was_set_for_all() -> None:
    (entry,) = describe_broker_default(layered())
    assert (entry.name, entry.value) == ("compression.type", "lz4")
    assert [synonym.source for synonym in entry.synonyms] == [ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG]


def test_only_the_keys_asked_for_are_described() -> None:
    assert [entry.name for entry in describe_topic({}, BROKER, ["retention.ms", "nothing"])] == ["retention.ms"]
    assert len(describe_topic({}, BROKER, [])) == len(describe_topic({}, BROKER)) == 33
    assert [entry.name for entry in describe_broker(BROKER, ["node.id"])] == ["node.id"]


def test_groups_and_subscriptions_have_sources_of_their_own() -> None:
    group = describe_group({"consumer.session.timeout.ms": "50000"}, BROKER)
    session = entry_of(group, "consumer.session.timeout.ms")
    assert (session.source, session.synonyms[1].name) == (
        ConfigSource.GROUP_CONFIG,
        "group.consumer.session.timeout.ms",
    )
    assert entry_of(group, "share.isolation.level").synonyms[0].source is ConfigSource.DEFAULT_CONFIG
    metrics = describe_client_metrics({"metrics": "a, b"})
    assert entry_of(metrics, "metrics").value == "a,b"
    assert entry_of(metrics, "metrics").source is ConfigSource.CLIENT_METRICS_CONFIG
    assert entry_of(metrics, "interval.ms").synonyms == ()


@pytest.mark.parametrize("overrides", [{}, {"retention.ms": "5", "cleanup.policy": "compact"}, {"zzz.unknown": "1"}])
def test_a_new_topic_is_told_the_same_settings(overrides: dict[str, str]) -> None:
    """The rules describe what all topics have in common once; the answer must not show it."""
    config = layered()
    rules = TableRules(lambda: config)
    rules.describe_topic({"retention.ms": "7"}, ClusterImage())
    told = [(each.name, each.value, each.config_source) for each in rules.describe_topic(overrides, ClusterImage())]
    assert told == [(each.name, each.value, each.source) for each in describe_topic(overrides, config)]
    config = BROKER  # it was changed meanwhile
    assert [each.value for each in rules.describe_topic({}, ClusterImage())] == [
        each.value for each in describe_topic({}, BROKER)
    ]
