"""The settings of a node: what is refused and why, what follows from what, and what the typed view says."""

from collections.abc import Mapping

import pytest

from moldau.broker.config import BrokerConfig, Endpoint, InvalidConfig, Voter, load_broker_config, standalone_settings

NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "controller.quorum.voters": "1@127.0.0.1:9093",
    "log.dirs": "data",
}
# The settings of the file that comes with Apache Kafka 4.3.
STOCK = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "log.dirs": "kraft-combined-logs",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "2",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.hours": "168",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
}


def with_settings(**changes: str) -> BrokerConfig:
    return load_broker_config(NODE, (f"{key.replace('_', '.')}={value}" for key, value in changes.items()))


def refusal(settings: Mapping[str, str]) -> str:
    with pytest.raises(InvalidConfig) as refused:
        load_broker_config(settings)
    return str(refused.value)


def test_without_any_settings_a_node_is_a_cluster_of_its_own() -> None:
    config = load_broker_config({})
    assert config.standalone
    assert config.is_broker
    assert config.is_controller
    assert config.node_id == config.get_int("broker.id") == 1
    assert config.listeners == (Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092),)
    assert config.advertised_listeners == config.broker_listeners == config.listeners
    assert config.log_dirs == ("moldau-data",)
    assert config.get_int("offsets.topic.replication.factor") == 1
    assert config.voters == ()


def test_a_standalone_node_takes_an_address_a_folder_and_overrides() -> None:
    config = load_broker_config(standalone_settings("::1", 0, "d"), ["num.partitions=3", "broker.id=7"])
    assert config.listeners == (Endpoint("PLAINTEXT", "PLAINTEXT", "::1", 0),)
    assert config.metadata_log_dir == "d"
    assert config.get_int("num.partitions") == 3
    assert config.node_id == 7


def test_the_file_that_comes_with_kafka_works_as_it_is() -> None:
    config = load_broker_config(STOCK)
    assert not config.standalone
    assert config.advertised_listeners == (Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092),)
    assert config.controller_listeners == (Endpoint("CONTROLLER", "PLAINTEXT", None, 9093),)
    assert config.inter_broker_listener_name == "PLAINTEXT"
    assert config.ignored == ("num.io.threads", "num.network.threads")


def test_a_key_that_no_listener_uses_is_named() -> None:
    key = ["ssl.keystore.type=PEM", "ssl.keystore.location=server.pem"]
    plain = load_broker_config(standalone_settings("::1", 0, "d"), key)
    assert plain.keys_without_use == ("ssl.keystore.location", "ssl.keystore.type")
    tls = ["listeners=SSL://127.0.0.1:0", "security.inter.broker.protocol=SSL"]
    assert load_broker_config(standalone_settings("::1", 0, "d"), [*key, *tls]).keys_without_use == ()


def test_the_typed_view_gives_each_type() -> None:
    config = with_settings(super_users="User:a; User:b", max_connections_per_ip_overrides="::1:5,host:6")
    assert config.voters == (Voter(1, "127.0.0.1", 9093),)
    assert config.get_bool("auto.create.topics.enable") is True
    assert config.get_float("log.cleaner.min.cleanable.ratio") == 0.5
    assert config.get_str("compression.type") == "producer"
    assert config.get_str_or_none("broker.rack") is None
    assert config.get_int_or_none("log.retention.ms") is None
    assert config.get_list("process.roles") == ("broker", "controller")
    assert config.get_list("early.start.listeners") == ()
    assert config.super_users == {"User:a", "User:b"}
    assert config.max_connections_per_ip_overrides == {"::1": 5, "host": 6}


@pytest.mark.parametrize("getter", ["get_int", "get_float", "get_bool", "get_list"])
def test_asking_for_the_wrong_type_is_a_mistake_of_ours(getter: str) -> None:
    with pytest.raises(AssertionError, match=r"compression\.type"):
        getattr(load_broker_config({}), getter)("compression.type")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"num.partitons": "3"}, "Unknown broker config name: num.partitons (value 3). Did you mean num.partitions?"),
        ({"zookeeper.connect": "h"}, "Unknown broker config name: zookeeper.connect"),
        ({"my.password": "hush"}, "(value [hidden])"),
        ({"num.partitions": "0"}, "Invalid value 0 for configuration num.partitions: Value must be at least 1"),
        ({"num.partitions": "many"}, "Invalid value many for configuration num.partitions: Not a number of type INT"),
        ({"compression.type": "zip"}, "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"),
        ({"remote.log.storage.system.enable": "true"}, "Moldau does not support it: set it to false, or leave it out"),
        ({"authorizer.class.name": "my.Own"}, "set it to org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        ({"create.topic.policy.class.name": "my.Own"}, "Moldau does not support it: leave it out"),
        ({"delegation.token.secret": "hush"}, "Unknown broker config name: delegation.token.secret (value [hidden])"),
        ({"leader.replication.throttled.rate": "1"}, "only be set while the broker runs"),
        ({"listener.name.plaintext.nothing": "1"}, "Unknown broker config name: listener.name.plaintext.nothing"),
        ({"broker.id": "2", "node.id": "3"}, "It must be the same as node.id (3)"),
    ],
)
def test_refusals_name_the_key_the_value_and_what_would_be_valid(settings: dict[str, str], reason: str) -> None:
    assert reason in refusal(settings)


def test_defaults_of_unsupported_settings_and_supported_classes_are_fine() -> None:
    config = load_broker_config(
        {
            "remote.log.storage.system.enable": "false",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            "allow.everyone.if.no.acl.found": "true",
        }
    )
    assert config.get_str("authorizer.class.name").endswith("StandardAuthorizer")
    assert config.get_bool("allow.everyone.if.no.acl.found")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"controller.quorum.voters": ""}, "Name the controllers here or in controller.quorum.bootstrap.servers"),
        ({"controller.quorum.voters": "2@h:1"}, "node.id 1 is not in it"),
        ({"controller.quorum.voters": "localhost:9093"}, "Each voter is written as id@host:port"),
        ({"process.roles": "broker"}, "node.id 1 is in it, but process.roles has no controller"),
        ({"process.roles": "broker", "controller.quorum.voters": "2@h:1"}, "take CONTROLLER out of listeners"),
        ({"process.roles": "controller"}, "all listeners must be in controller.listener.names; PLAINTEXT is not"),
        ({"process.roles": "boss"}, "String must be one of: broker, controller"),
        ({"listeners": "PLAINTEXT://:9092"}, "add CONTROLLER to listeners"),
        ({"listeners": "CONTROLLER://:9093"}, "A broker needs a listener that is not in controller.listener.names"),
        ({"listeners": "9092"}, "A listener is written as NAME://host:port"),
        ({"listeners": "PLAINTEXT://:70000,CONTROLLER://:1"}, "not between 0 and 65535"),
        ({"listeners": "INNER://:9092,CONTROLLER://:9093"}, "No security protocol defined for listener INNER"),
        ({"listeners": "PLAINTEXT://:1,CONTROLLER://:1"}, "different port"),
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2,CONTROLLER://:3"}, "different name"),
        ({"listeners": "PLAINTEXT://0.0.0.0:1,CONTROLLER://:3"}, "Clients cannot reach 0.0.0.0"),
        ({"advertised.listeners": "PLAINTEXT://h:1,CONTROLLER://0.0.0.0:2"}, "Clients cannot reach 0.0.0.0"),
        ({"advertised.listeners": "SSL://h:1"}, "Brokers reach each other through the advertised listener PLAINTEXT"),
        ({"advertised.listeners": "PLAINTEXT://h:1,SSL://h:2"}, "The broker does not listen on SSL"),
        ({"inter.broker.listener.name": "SSL"}, "set inter.broker.listener.name to one of them"),
        ({"listener.security.protocol.map": "PLAINTEXT"}, "'PLAINTEXT' has no colon"),
        ({"listener.security.protocol.map": "PLAINTEXT:NONE"}, "'NONE' is not a security protocol"),
        ({"log.retention.hours": "0"}, "It must be -1, for no limit, or at least 1"),
        ({"log.roll.ms": "0"}, "Value must be at least 1"),
        ({"log.cleaner.dedupe.buffer.size": "1000"}, "more than 1 MiB per cleaner thread"),
        ({"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "8"}, "(8)"),
        ({"cordoned.log.dirs": "other"}, "These are not among log.dirs (data): other"),
        ({"replica.fetch.wait.max.ms": "40000"}, "It must be at most replica.socket.timeout.ms (30000)"),
        ({"group.consumer.session.timeout.ms": "1"}, "It must be at most group.consumer.session.timeout.ms (1)"),
        ({"queued.max.request.bytes": "5"}, "It must be at least socket.request.max.bytes (104857600)"),
        ({"max.connections.per.ip": "0"}, "It can only be 0 if"),
        ({"max.connections.per.ip.overrides": "h:many"}, "with a whole number"),
        ({"connections.max.idle.ms": "50"}, "It must be less than connections.max.idle.ms (50)"),
        ({"group.coordinator.rebalance.protocols": "consumer"}, "classic protocol cannot be left out"),
        ({"early.start.listeners": "SSL"}, "SSL is not in listeners"),
        (
            {"group.share.min.session.timeout.ms": "5000", "group.share.session.timeout.ms": "5000"},
            "It must be less than group.share.session.timeout.ms (5000)",
        ),
        ({"group.share.assignors": "a,b"}, "There must be exactly one"),
        ({"log.cleaner.threads": "0"}, "Value must be at least 1"),
        ({"cordoned.log.dirs": "*,data"}, "`*` already means all log dirs"),
        ({"max.connections.per.ip.overrides": "h h:5"}, "These are not addresses: h h"),
        (
            {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
            "Set either this or security.inter.broker.protocol",
        ),
        ({"controller.quorum.bootstrap.servers": "h"}, "Each server is written as host:port"),
        ({"group.consumer.migration.policy": "both"}, "String must be one of (case insensitive)"),
        ({"offsets.topic.compression.codec": "9"}, "0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(changes: dict[str, str], reason: str) -> None:
    assert reason in refusal(NODE | changes)


SASL = {
    "listeners": "SASL_PLAINTEXT://:9092,CONTROLLER://:9093",
    "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "SASL_PLAINTEXT",
}


BROKER_ONLY = NODE | {
    "process.roles": "broker",
    "controller.quorum.voters": "2@h:9093",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
}


def test_a_broker_knows_its_controllers_without_listening_for_them() -> None:
    config = load_broker_config(BROKER_ONLY)
    assert config.is_broker
    assert not config.is_controller
    assert config.listener_protocols["CONTROLLER"] == "PLAINTEXT"
    unmapped = BROKER_ONLY | {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"}
    assert "CONTROLLER has no security protocol" in refusal(unmapped)
    joining = BROKER_ONLY | {"controller.quorum.auto.join.enable": "true"}
    assert "Only a controller can join the quorum" in refusal(joining)


def test_a_controller_alone_needs_no_broker_listener() -> None:
    config = load_broker_config(NODE | {"process.roles": "controller", "listeners": "CONTROLLER://:9093"})
    assert config.is_controller
    assert config.advertised_listeners == ()


def test_required_settings_are_asked_for_by_name() -> None:
    settings = {key: value for key, value in NODE.items() if key != "node.id"}
    assert refusal(settings) == 'Missing required configuration "node.id" which has no default value.'


def test_sasl_listeners_need_mechanisms_that_exist() -> None:
    assert "Moldau has PLAIN, SCRAM-SHA-256, SCRAM-SHA-512" in refusal(NODE | SASL)
    enabled = {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256"}
    assert "one of sasl.enabled.mechanisms (PLAIN, SCRAM-SHA-256)" in refusal(NODE | SASL | enabled)
    config = load_broker_config(NODE | SASL | enabled | {"sasl.mechanism.inter.broker.protocol": "PLAIN"})
    assert config.listeners[0].uses_sasl
    assert not config.listeners[0].uses_tls


def test_a_listener_may_have_settings_of_its_own() -> None:
    config = load_broker_config(
        NODE
        | SASL
        | {
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": "users",
            "listener.name.sasl_plaintext.connections.max.reauth.ms": "5",
        }
    )
    assert config.for_listener("SASL_PLAINTEXT", "sasl.enabled.mechanisms") == ("PLAIN",)
    assert config.for_listener("CONTROLLER", "sasl.enabled.mechanisms") == ("GSSAPI",)
    assert config.for_listener("SASL_PLAINTEXT", "sasl.jaas.config", "PLAIN") == "users"
    assert config.for_listener("SASL_PLAINTEXT", "connections.max.reauth.ms", "PLAIN") == 5


@pytest.mark.parametrize(
    ("settings", "retention_ms"),
    [
        ({}, 7 * 24 * 3_600_000),
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.minutes": "-1"}, -1),
    ],
)
def test_the_finest_unit_of_a_time_counts(settings: dict[str, str], retention_ms: int) -> None:
    assert load_broker_config(settings).topic_defaults["retention.ms"] == retention_ms


def test_flush_and_roll_times_inherit_in_kafkas_order() -> None:
    defaults = with_settings(log_flush_scheduler_interval_ms="7", log_roll_hours="1").topic_defaults
    assert defaults["flush.ms"] == 7
    assert defaults["segment.ms"] == 3_600_000
    defaults = with_settings(
        log_flush_scheduler_interval_ms="7", log_flush_interval_ms="8", log_roll_ms="9"
    ).topic_defaults
    assert (defaults["flush.ms"], defaults["segment.ms"]) == (8, 9)


def test_log_dir_is_used_when_log_dirs_is_not_set() -> None:
    assert load_broker_config({"log.dir": "one"}).log_dirs == ("one",)
    config = load_broker_config({"log.dir": "one", "log.dirs": "two,three", "cordoned.log.dirs": "*"})
    assert config.log_dirs == config.cordoned_log_dirs == ("two", "three")


def test_listeners_without_the_one_between_brokers_are_told_of_by_their_own_name() -> None:
    said = refusal({"listeners": "SSL://127.0.0.1:9092", "log.dirs": "data"})
    assert "for configuration listeners: " in said
    assert "there is none: add inter.broker.listener.name=SSL" in said
