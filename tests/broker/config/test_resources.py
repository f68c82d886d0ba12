"""Settings of topics, groups and client metrics subscriptions: validation, inheritance, what takes effect."""

import pytest

from moldau.broker.config import (
    InvalidConfig,
    client_metrics_values,
    group_values,
    load_broker_config,
    log_config_for,
    parse_match,
    topic_settings_for,
    topic_values,
    validate_client_metrics_configs,
    validate_group_configs,
    validate_topic_configs,
    with_dynamic_settings,
)
from moldau.log.config import CompressionType, LogConfig, TimestampType

INVALID_CONFIG = 40
INVALID_REQUEST = 42
BROKER = load_broker_config({})


def test_a_topic_without_settings_has_kafkas_defaults() -> None:
    assert log_config_for({}, BROKER) == LogConfig(transaction_partition_verification_enable=True)
    settings = topic_settings_for({}, BROKER)
    assert settings.min_insync_replicas == 1
    assert not settings.unclean_leader_election_enable
    assert settings.compression_level is None


def test_a_topics_own_settings_reach_its_log() -> None:
    settings = topic_settings_for(
        {
            "cleanup.policy": "compact, delete",
            "compression.type": "gzip",
            "compression.gzip.level": "9",
            "message.timestamp.type": "LogAppendTime",
            "min.insync.replicas": "2",
            "unclean.leader.election.enable": "true",
            "leader.replication.throttled.replicas": "0:1,1:2",
            "segment.bytes": "1048576",
            "set.by.a.newer.release": "x",
        },
        BROKER,
    )
    assert settings.log.cleanup_policy == {"compact", "delete"}
    assert settings.log.compression_type is CompressionType.GZIP
    assert settings.compression_level == 9
    assert settings.log.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    assert settings.log.segment_bytes == 1 << 20
    assert settings.min_insync_replicas == 2
    assert settings.unclean_leader_election_enable
    assert settings.leader_throttled_replicas == ("0:1", "1:2")
    assert log_config_for({"internal.segment.bytes": "100"}, BROKER).segment_bytes == 100


def test_what_a_topic_does_not_say_the_broker_says() -> None:
    broker = load_broker_config(
        {"message.max.bytes": "77", "log.cleanup.policy": "compact", "producer.id.expiration.ms": "9"}
    )
    config = log_config_for({}, broker)
    assert (config.max_message_bytes, config.producer_id_expiration_ms) == (77, 9)
    assert config.cleanup_policy == {"compact"}
    assert log_config_for({"max.message.bytes": "5"}, broker).max_message_bytes == 5


def test_the_order_of_resolution_is_topic_broker_cluster_file_default() -> None:
    key, synonym = "retention.ms", "log.retention.ms"
    static = load_broker_config({synonym: "1"})
    cluster = with_dynamic_settings(static, {synonym: "2"}, {})
    own = with_dynamic_settings(static, {synonym: "2"}, {synonym: "3"})
    assert topic_values({key: "4"}, own)[key] == 4
    assert topic_values({}, own)[key] == 3
    assert topic_values({}, cluster)[key] == 2
    assert topic_values({}, static)[key] == 1
    assert topic_values({}, BROKER)[key] == 604_800_000


def test_topics_set_up_alike_share_their_settings() -> None:
    assert topic_settings_for({"retention.ms": "5"}, BROKER) is topic_settings_for({"retention.ms": "5"}, BROKER)
    assert topic_settings_for({}, BROKER) is not topic_settings_for({}, with_dynamic_settings(BROKER, {}, {}))


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"retention": "1"}, "Unknown topic config name: retention"),
        ({"retention.mss": "1"}, "Unknown topic config name: retention.mss. Did you mean retention.ms"),
        ({"retention.ms": "-2"}, "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        (
            {"retention.ms": None, "segment.ms": None},
            "Null value not supported for topic configs: retention.ms,segment.ms",
        ),
        ({"cleanup.policy": "shred"}, "Invalid value shred for configuration cleanup.policy: String must be one of"),
        ({"compression.gzip.level": "0"}, "Value must be between 1 and 9 or equal to -1"),
        ({"min.cleanable.dirty.ratio": "1.5"}, "Invalid value 1.5 for configuration min.cleanable.dirty.ratio"),
        ({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}, "min.compaction.lag.ms (2) > max.compaction"),
        ({"remote.storage.enable": "true"}, "Tiered Storage functionality is disabled"),
        ({"follower.replication.throttled.replicas": "all"}, "must be the literal '*' or a list of replicas"),
    ],
)
def test_bad_topic_settings_are_refused(configs: dict[str, str | None], message: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        validate_topic_configs(configs, BROKER)
    assert message in str(refused.value)
    assert refused.value.error_code == INVALID_CONFIG


def test_good_topic_settings_are_stored_as_given() -> None:
    configs: dict[str, str | None] = {"retention.ms": " 5 ", "cleanup.policy": "", "remote.storage.enable": "false"}
    assert validate_topic_configs(configs, BROKER) == configs


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"consumer.session.timeout": "1"}, "Unknown group config name: consumer.session.timeout"),
        ({"consumer.session.timeout.ms": "44999"}, "must be greater than or equal to group.consumer.min.session"),
        (
            {"consumer.session.timeout.ms": "60001"},
            "must be less than or equal to group.consumer.max.session.timeout.ms",
        ),
        ({"streams.num.standby.replicas": "3"}, "must be less than or equal to group.streams.max.standby.replicas"),
        ({"share.auto.offset.reset": "never"}, "must be either 'earliest', 'latest'"),
        ({"share.isolation.level": None}, "Null value not supported for group configs: share.isolation.level"),
    ],
)
def test_bad_group_settings_are_refused(configs: dict[str, str | None], message: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        validate_group_configs(configs, BROKER)
    assert message in str(refused.value)
    assert refused.value.error_code == INVALID_CONFIG


def test_a_session_must_outlive_a_heartbeat() -> None:
    broker = load_broker_config(
        {"group.consumer.min.session.timeout.ms": "6000", "group.consumer.max.heartbeat.interval.ms": "15000"}
    )
    configs: dict[str, str | None] = {
        "consumer.session.timeout.ms": "7000",
        "consumer.heartbeat.interval.ms": "7000",
    }
    with pytest.raises(InvalidConfig, match=r"session\.timeout\.ms must be greater than consumer\.heartbeat"):
        validate_group_configs(configs, broker)
    assert validate_group_configs(configs | {"consumer.heartbeat.interval.ms": "6999"}, broker)


def test_group_settings_out_of_the_brokers_present_bounds_take_effect_within_them() -> None:
    own = {"consumer.session.timeout.ms": "50000", "streams.num.standby.replicas": "2"}
    assert validate_group_configs(own, BROKER) == own
    tighter = load_broker_config(
        {"group.consumer.max.session.timeout.ms": "48000", "group.streams.max.standby.replicas": "1"}
    )
    values = group_values(own, tighter)
    assert values["consumer.session.timeout.ms"] == 48_000
    assert values["streams.num.standby.replicas"] == 1
    assert values["share.session.timeout.ms"] == 45_000
    assert values["share.isolation.level"] == "read_uncommitted"


@pytest.mark.parametrize(
    ("configs", "message", "code"),
    [
        ({"interval": "1"}, "Unknown client metrics configuration: interval", INVALID_REQUEST),
        ({"interval.ms": "99"}, "interval must be between 100 and 3600000 (1 hour)", INVALID_REQUEST),
        ({"interval.ms": "x"}, "Not a number of type INT", INVALID_CONFIG),
        ({"match": "client_id"}, "Illegal client matching pattern: client_id", INVALID_CONFIG),
        ({"match": "shoe_size=4"}, "Illegal client matching pattern: shoe_size=4", INVALID_CONFIG),
        ({"match": "client_id=["}, "Illegal client matching pattern: client_id=[", INVALID_CONFIG),
    ],
)
def test_bad_subscriptions_are_refused(configs: dict[str, str | None], message: str, code: int) -> None:
    with pytest.raises(InvalidConfig) as refused:
        validate_client_metrics_configs("s", configs)
    assert message in str(refused.value)
    assert refused.value.error_code == code


def test_a_subscription_needs_a_name_and_has_defaults() -> None:
    with pytest.raises(InvalidConfig, match="Subscription name can't be empty"):
        validate_client_metrics_configs("", {})
    assert client_metrics_values({"metrics": "*"}) == {"interval.ms": 300_000, "match": (), "metrics": ("*",)}


def test_match_patterns_are_told_by_attribute() -> None:
    patterns = parse_match(("client_id=a.*", "client_software_name = b"))
    assert patterns == {"client_id": "a.*", "client_software_name": "b"}


def test_a_pattern_that_needs_backtracking_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="Illegal client matching pattern"):
        parse_match((r"client_id=(a)\1",))
