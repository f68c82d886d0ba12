"""Moldau's configuration against Kafka's own code: tables, parsing, validation, resolution, description.

Kafka's classes are asked the same questions (`ConfigOracle.java`), so a new Kafka release shows here what changed.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.config import (
    BrokerConfig,
    Change,
    ConfigEntry,
    InvalidConfig,
    ResourceType,
    apply_changes,
    describe_broker,
    describe_broker_default,
    describe_client_metrics,
    describe_group,
    describe_topic,
    load_broker_config,
    parse_properties,
    validate_client_metrics_configs,
    validate_dynamic_change,
    validate_group_configs,
    validate_topic_configs,
    with_dynamic_settings,
)
from moldau.broker.config.client_metrics import client_metrics_definitions
from moldau.broker.config.definition import Definition, Scope
from moldau.broker.config.group import broker_synonym, group_definitions
from moldau.broker.config.registry import (
    DYNAMIC_ONLY_KEYS,
    DYNAMIC_SECURITY_KEYS,
    broker_definitions,
    synonyms_of,
)
from moldau.broker.config.topic import SYNONYMS, topic_definitions
from moldau.broker.config.values import ConfigType, render_value
from tests.interop.apache_kafka import compile_java, java_command
from tests.interop.peers.workshop import run

Answer = dict[str, Any]

NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "controller.quorum.voters": "1@127.0.0.1:9093",
    "log.dirs": "data",
}


def ask(questions: list[dict[str, Any]]) -> list[Answer]:
    """Kafka's answers; one Java process for all questions of a test."""
    classes = compile_java(Path(__file__).with_name("ConfigOracle.java"))
    text = "".join(json.dumps(question) + "\n" for question in questions)
    printed = run(java_command("ConfigOracle", classes=classes), stdin=text, timeout_s=120).stdout
    answers = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert len(answers) == len(questions)
    return answers


@cache
def kafka_definitions() -> dict[str, Any]:
    (answer,) = ask([{"do": "definitions"}])
    found: dict[str, Any] = answer["ok"]
    found["broker"] |= found.pop("quota")
    return found


FAMILIES = {
    "broker": broker_definitions,
    "topic": topic_definitions,
    "group": group_definitions,
    "client_metrics": client_metrics_definitions,
}


# On purpose, see docs/compatibility.md: the setting, Kafka's default, ours.
OUR_DEFAULTS = {("socket.listen.backlog.size", "50"): "4096"}


def facts(definition: Definition) -> dict[str, Any]:
    valid = definition.validator.notation if definition.validator else None
    return {
        "type": definition.type.name,
        "required": definition.required,
        "default": definition.default_text,
        "valid": valid,
        "importance": definition.importance.name,
        "internal": definition.internal,
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_every_name_type_default_and_range_is_kafkas(family: str) -> None:
    kafka = kafka_definitions()[family]
    ours = FAMILIES[family]()
    assert set(ours) == set(kafka)
    for name, definition in ours.items():
        expected = {key: value for key, value in kafka[name].items() if key != "empty_allowed"}
        # Kafka prints the set of a case-insensitive choice in hash order, and has a validator that only refuses null.
        if expected["valid"] == "non-null string":
            expected["valid"] = None
        actual = facts(definition)
        if str(expected["valid"]).startswith("(case insensitive)"):
            expected["valid"], actual["valid"] = (sorted(str(one["valid"])) for one in (expected, actual))
        if (name, expected["default"]) in OUR_DEFAULTS:
            expected["default"] = OUR_DEFAULTS[name, expected["default"]]
        assert actual == expected, name
        assert render_value(definition.default) == definition.default_text


def test_change_modes_and_synonyms_are_kafkas() -> None:
    kafka = kafka_definitions()
    modes = {Scope.PER_BROKER: "per-broker", Scope.CLUSTER_WIDE: "cluster-wide"}
    ours = {name: modes[known.scope] for name, known in broker_definitions().items() if known.scope in modes}
    assert ours == kafka["modes"]
    assert kafka["topic_synonyms"] == SYNONYMS
    assert {name: broker_synonym(name) for name in group_definitions()} == kafka["group_synonyms"]
    known = set(broker_definitions()) - DYNAMIC_ONLY_KEYS
    assert {name: list(synonyms_of(name)) for name in known} == kafka["broker_synonyms"]
    assert set(kafka["security"]) == DYNAMIC_SECURITY_KEYS


NUMBERS = [
    "0", "1", "-1", "-2", "2", "5", "9", "10", "17", "18", "22", "23", "99", "100", "1023", "1024", "1048575",
    "1048576", "32767", "32768", "2147483647", "2147483648", "-2147483649", "9223372036854775807",
    "9223372036854775808", "+7", " 8 ", "1_000", "1.5", "0.5", "1.1", "1e3", "1e7", "1.0E-4", "12345678.9", "NaN",
    "Infinity", "-0.0", "3f", "0x10", "", "abc", "٣", "--1", "1e400", "123456.789",
]  # fmt: skip
STRINGS = [
    "", " ", "delete", "compact", "delete,compact", "compact, delete ,", "compact,,delete", "delete,delete", "DELETE",
    "CreateTime", "LogAppendTime", "createtime", "producer", "gzip", "GZIP", "uncompressed", "none", "lz4", "zstd",
    "true", "TRUE", " false ", "yes", "*", "0:1", "0:1,1:2", "0:1, 1:2", "0:1,*", "0", "a:b", ",", "1@localhost:9093",
    "1@localhost", "1@localhost:9093,2@[::1]:9094", "x@h:1", "localhost:9093", "http://h:80", "h:99999", "earliest",
    "latest", "by_duration:PT1H", "by_duration:-PT1H", "by_duration:P1D", "by_duration:P", "by_duration:PT",
    "by_duration:", "by_duration:P1DT2H3M4.5S", "by_duration:p1d", "by_duration", "required", "requested", "broker",
    "broker,controller", "consumer,classic", "share", "bidirectional", "UPGRADE", "read_committed", "PLAINTEXT",
    "SASL_SSL", "a,b,a", "es256",
]  # fmt: skip


def corpus() -> Iterator[tuple[str, str, str]]:
    numeric = (ConfigType.INT, ConfigType.SHORT, ConfigType.LONG, ConfigType.DOUBLE)
    seen = set()
    for family, definitions in FAMILIES.items():
        for name, known in definitions().items():
            # One setting stands for all of the same type and range.
            if known.type is ConfigType.CLASS or (known.type, known.validator) in seen or name in DYNAMIC_ONLY_KEYS:
                continue
            seen.add((known.type, known.validator))
            for value in NUMBERS if known.type in numeric else STRINGS:
                yield family, name, value


def outcome(parse: Any) -> Answer:
    try:
        return {"ok": parse()}
    except InvalidConfig as error:
        return {"error": str(error)}


# Ours say more there: what a voter or server looks like.
OWN_WORDS = {"controller.quorum.voters", "controller.quorum.bootstrap.servers"}


def test_values_are_accepted_printed_and_refused_as_by_kafka() -> None:
    cases = list(corpus())
    answers = ask([{"do": "parse", "family": family, "name": name, "value": value} for family, name, value in cases])
    assert len(cases) > 1000
    for (family, name, value), kafka in zip(cases, answers, strict=True):
        definition = FAMILIES[family]()[name]
        ours = outcome(lambda definition=definition, value=value: render_value(definition.parse(value)))
        if definition.sensitive:
            assert ("ok" in ours) == ("ok" in kafka)
        elif "ok" in kafka or "ok" in ours:
            assert ours == {"ok": kafka.get("ok", kafka)}, (name, value)
        elif name not in OWN_WORDS and "case insensitive" not in kafka["error"]:
            assert ours["error"] == kafka["error"], (name, value)


PROPERTIES = [
    "", "a=b", "a = b ", "a:b", "a b", "a\tb", " a=b", "a", "a=", "=b", ":b", "# c\na=b", "! c\na=b", "  # c\na=b",
    "a=b # no", "a=b\\\nc", "a=b\\\n   c", "a=b\\\\\nc=d", "a=\\\n\nb=c", "# x\\\na=b", "a=b\r\nc=d\re=f", "a\\ b=c",
    "a\\=b=c", "a\\:b:c", "a=\\u0041\\u00e9", "a=\\uD83D\\uDE00", "a=\\u12", "a=\\u12g4", "a=\\t\\n\\r\\f\\q\\\\",
    "a==b", "a= = b", "a : = b", "a=1\na=2", "\f a\f=\fb", "a=b\\", "a\\", "\\", "\\\n", "a=b\\\n#c", "a=b\\\n\\\nc",
    "a=é", "\n\n\n", "a\\\n=b", "a\\u003db=c", "ключ=x", "a=b\\\r\n  c", "a=b\\\r\rc=d",
    "listeners=PLAINTEXT://:9092,\\\n  SSL://:9093", "a=\\", "a.b-c_d=1", "a=b\x0bc",
]  # fmt: skip


def test_properties_files_read_as_java_reads_them() -> None:
    pieces = ["a", "=", ":", " ", "\\", "\n", "\r", "#", "\\u0041", "b"]
    texts = PROPERTIES + ["".join(parts) for parts in itertools.product(pieces, repeat=4)][::7]
    for text, kafka in zip(texts, ask([{"do": "properties", "text": text} for text in texts]), strict=True):
        ours = outcome(lambda text=text: parse_properties(text))
        assert ours == kafka if "ok" in kafka else "error" in ours, repr(text)


# Settings beside NODE's; None takes one out.
NODES: list[dict[str, str | None]] = [
    {},
    {"node.id": None},
    {"node.id": None, "broker.id": "1"},
    {"broker.id": "2"},
    {"process.roles": None},
    {"process.roles": "broker"},
    {"process.roles": "controller"},
    {"process.roles": "controller", "listeners": "CONTROLLER://127.0.0.1:9093"},
    {"process.roles": "broker", "controller.quorum.voters": "2@h:1", "listeners": "PLAINTEXT://127.0.0.1:9092"},
    {"process.roles": "broker", "controller.quorum.voters": "2@h:1"},
    {"process.roles": "broker,zookeeper"},
    {"controller.quorum.voters": None},
    {"controller.quorum.voters": "2@h:1"},
    {"controller.quorum.voters": None, "controller.quorum.bootstrap.servers": "h:1"},
    {"controller.listener.names": None},
    {"controller.listener.names": "OTHER"},
    {"controller.listener.names": "PLAINTEXT,CONTROLLER"},
    {"listeners": "PLAINTEXT://127.0.0.1:9092"},
    {"listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9092"},
    {"listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://[::1]:9092"},
    {"listeners": "PLAINTEXT://:0,CONTROLLER://:0"},
    {"listeners": "PLAINTEXT://0.0.0.0:9092,CONTROLLER://:9093"},
    {"listeners": "PLAINTEXT://0.0.0.0:9092,CONTROLLER://:9093", "advertised.listeners": "PLAINTEXT://host:9092"},
    {"listeners": "PLAINTEXT://:9092,PLAINTEXT://:9094,CONTROLLER://:9093"},
    {"listeners": "plaintext://:9092,CONTROLLER://:9093"},
    {"listeners": "nonsense"},
    {"listeners": ""},
    {"listeners": "INNER://:9092,CONTROLLER://:9093"},
    {
        "listeners": "INNER://:9092,CONTROLLER://:9093",
        "listener.security.protocol.map": "INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
    },
    {
        "listeners": "INNER://:9092,CONTROLLER://:9093",
        "listener.security.protocol.map": "INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INNER",
    },
    {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"},
    {"listener.security.protocol.map": "PLAINTEXT:nothing,CONTROLLER:PLAINTEXT"},
    {"listener.security.protocol.map": "PLAINTEXT:plaintext,CONTROLLER:PLAINTEXT"},
    {"advertised.listeners": "OTHER://h:1"},
    {"advertised.listeners": "CONTROLLER://h:1"},
    {"advertised.listeners": "PLAINTEXT://h:9092"},
    {"inter.broker.listener.name": "CONTROLLER"},
    {"inter.broker.listener.name": "PLAINTEXT"},
    {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
    {"inter.broker.listener.name": "NOBODY"},
    {"log.dirs": ""},
    {"log.dirs": "a,b", "cordoned.log.dirs": "a"},
    {"log.dirs": "a,b", "cordoned.log.dirs": "c"},
    {"log.dirs": "a,b", "cordoned.log.dirs": "*"},
    {"log.dirs": "a,b", "cordoned.log.dirs": "*,a"},
    {"log.retention.ms": "0"},
    {"log.retention.ms": "-1"},
    {"log.retention.ms": "-5"},
    {"log.retention.hours": "0"},
    {"log.retention.minutes": "-1"},
    {"log.roll.ms": "0"},
    {"log.roll.jitter.ms": "-1"},
    {"log.cleaner.dedupe.buffer.size": "1048576"},
    {"log.cleaner.dedupe.buffer.size": "1048577"},
    {"log.cleaner.threads": "200"},
    {"replica.fetch.wait.max.ms": "30001"},
    {"replica.fetch.wait.max.ms": "30001", "replica.socket.timeout.ms": "30001"},
    {"replica.fetch.wait.max.ms": "30001", "replica.socket.timeout.ms": "30001", "replica.lag.time.max.ms": "30001"},
    {"queued.max.request.bytes": "1"},
    {"queued.max.request.bytes": "104857600"},
    {"max.connections.per.ip": "0"},
    {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "127.0.0.1:5"},
    {"max.connections.per.ip.overrides": "::1:5,h:2"},
    {"max.connections.per.ip.overrides": "h h:5"},
    {"max.connections.per.ip.overrides": "h:x"},
    {"max.connections.per.ip.overrides": "h"},
    {"connections.max.idle.ms": "100"},
    {"connections.max.idle.ms": "-1"},
    {"group.coordinator.rebalance.protocols": "consumer"},
    {"group.coordinator.rebalance.protocols": "classic"},
    {"group.consumer.heartbeat.interval.ms": "1000"},
    {"group.consumer.session.timeout.ms": "60001"},
    {"group.consumer.min.session.timeout.ms": "1000", "group.consumer.session.timeout.ms": "5000"},
    {"group.share.max.share.sessions": "100"},
    {"group.share.delivery.count.limit": "2", "group.share.min.delivery.count.limit": "3"},
    {"group.share.assignors": "a,b"},
    {"group.streams.num.standby.replicas": "3"},
    {"group.consumer.max.assignment.interval.ms": "500"},
    {"early.start.listeners": "CONTROLLER"},
    {"early.start.listeners": "OTHER"},
    {"offsets.topic.compression.codec": "5"},
    {"offsets.topic.compression.codec": "2"},
    {"security.inter.broker.protocol": "SSL"},
    {"controller.quorum.auto.join.enable": "true"},
]


def node(changes: Mapping[str, str | None]) -> dict[str, str]:
    merged: dict[str, str | None] = {**NODE, **changes}
    return {key: value for key, value in merged.items() if value is not None}


def test_nodes_are_accepted_and_refused_as_by_kafka() -> None:
    answers = ask([{"do": "load", "settings": node(changes)} for changes in NODES])
    for changes, kafka in zip(NODES, answers, strict=True):
        ours = outcome(lambda changes=changes: load_broker_config(node(changes)))
        assert ("ok" in ours) == ("ok" in kafka), (changes, ours, kafka)
    assert 20 < sum("ok" in answer for answer in answers) < len(NODES) - 20


TOPICS: list[dict[str, str]] = [
    {},
    {"retention.ms": "5"},
    {"retention.ms": "-2"},
    {"retentionms": "1"},
    {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"},
    {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"},
    {"remote.storage.enable": "true"},
    {"remote.storage.enable": "false", "local.retention.ms": "5"},
    {"cleanup.policy": ""},
    {"segment.bytes": "1000"},
    {"internal.segment.bytes": "1000"},
]
GROUPS: list[dict[str, str]] = [
    {},
    {"consumer.session.timeout.ms": "44999"},
    {"consumer.session.timeout.ms": "50000"},
    {"consumer.session.timeout.ms": "60001"},
    {"consumer.heartbeat.interval.ms": "15001"},
    {"consumer.assignment.interval.ms": "15001"},
    {"share.delivery.count.limit": "11"},
    {"share.record.lock.duration.ms": "14000"},
    {"share.partition.max.record.locks": "4001"},
    {"share.auto.offset.reset": "none"},
    {"streams.num.standby.replicas": "3"},
    {"streams.num.standby.replicas": "2"},
    {"nothing": "1"},
]
METRICS: list[dict[str, str]] = [
    {},
    {"interval.ms": "99"},
    {"interval.ms": "100"},
    {"interval.ms": "3600001"},
    {"match": "client_id=a.*"},
    {"match": "client_id=a.*,client_software_name=b"},
    {"match": "client_id"},
    {"match": "client_id="},
    {"match": "client_id=a="},
    {"match": "client_id=a=b"},
    {"match": "other=a"},
    {"match": "client_id=("},
    {"metrics": "a,b"},
    {"metrics": "*"},
    {"metrics": "a,,b"},
    {"nothing": "1"},
]


def test_topics_groups_and_subscriptions_are_validated_as_by_kafka() -> None:
    broker = load_broker_config(NODE)
    cases = [
        *(("topic", configs, lambda configs: validate_topic_configs(configs, broker)) for configs in TOPICS),
        *(("group", configs, lambda configs: validate_group_configs(configs, broker)) for configs in GROUPS),
        *(("metrics", configs, lambda configs: validate_client_metrics_configs("s", configs)) for configs in METRICS),
    ]
    answers = ask([{"do": "validate", "family": family, "configs": one, "settings": NODE} for family, one, _ in cases])
    for (family, configs, validate), kafka in zip(cases, answers, strict=True):
        ours = outcome(lambda configs=configs, validate=validate: validate(configs))
        if "ok" in kafka:
            assert ours == {"ok": configs}, (family, configs)
        else:
            assert ours["error"].partition(". Did you mean")[0] == kafka["error"], (family, configs)


DYNAMIC: list[tuple[dict[str, str], bool]] = [
    ({"log.retention.ms": "5"}, False),
    ({"log.retention.ms": "x"}, False),
    ({"log.retention.hours": "5"}, False),
    ({"num.partitions": "5"}, True),
    ({"listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093,SSL://127.0.0.1:9094"}, True),
    ({"listeners": "PLAINTEXT://127.0.0.1:9092"}, False),
    ({"ssl.keystore.location": "f"}, True),
    ({"listener.name.ssl.ssl.keystore.location": "f"}, True),
    ({"listener.name.ssl.ssl.keystore.location": "f"}, False),
    ({"listener.name.plaintext.max.connections": "5"}, False),
    ({"max.connections": "5"}, False),
    ({"leader.replication.throttled.rate": "5"}, True),
    ({"leader.replication.throttled.rate": "-5"}, True),
    ({"follower.replication.throttled.rate": "5"}, False),
    ({"min.insync.replicas": "0"}, True),
    ({"compression.type": "gzip"}, True),
    ({"group.consumer.assignment.interval.ms": "20000"}, False),
]


# What clients' users may know by heart; the rest we tell in our own words.
KAFKAS_WORDS = ("Cannot update these", "These security configs", "Invalid value")


def test_dynamic_changes_are_accepted_and_refused_as_by_kafka() -> None:
    broker = load_broker_config(NODE)
    questions = [{"do": "dynamic", "settings": NODE, "change": one, "per_broker": own} for one, own in DYNAMIC]
    for (change, per_broker), kafka in zip(DYNAMIC, ask(questions), strict=True):
        ours = outcome(
            lambda change=change, own=per_broker: bool(validate_dynamic_change(broker, change, per_broker=own))
        )
        assert ours.keys() == kafka.keys() - {"kind"}, (change, kafka)
        if kafka.get("error", "").startswith(KAFKAS_WORDS):
            assert ours == {"error": kafka["error"]}, change


SCENARIOS: list[dict[str, dict[str, str]]] = [
    {"settings": NODE},
    {
        "settings": NODE
        | {
            "log.retention.hours": "5",
            "log.roll.ms": "60000",
            "message.max.bytes": " 1000 ",
            "log.cleanup.policy": "compact, delete",
            "ssl.keystore.password": "secret",
            "listener.name.plaintext.ssl.keystore.password": "secret",
            "listener.name.plaintext.connections.max.reauth.ms": "7",
            "super.users": "User:a;User:b",
            "log.initial.task.delay.ms": "1",
            "log.cleaner.io.max.bytes.per.second": "1e6",
            "group.consumer.session.timeout.ms": "50000",
        },
        "dynamic_default": {"log.retention.ms": "77", "compression.type": "gzip", "max.connections": "9"},
        "dynamic_broker": {
            "compression.type": "lz4",
            "log.flush.interval.ms": "99",
            "leader.replication.throttled.rate": "1000",
            "group.consumer.assignment.interval.ms": "2000",
            "listener.name.plaintext.ssl.keystore.location": "f",
        },
    },
    {
        "settings": NODE | {"log.retention.ms": "1", "log.flush.scheduler.interval.ms": "3", "log.roll.hours": "2"},
        "dynamic_default": {"log.roll.ms": "500", "num.io.threads": "9"},
    },
]
RESOURCES: list[tuple[ResourceType, str, dict[str, str]]] = [
    (ResourceType.BROKER, "1", {}),
    (ResourceType.BROKER, "", {}),
    (ResourceType.TOPIC, "t", {}),
    (
        ResourceType.TOPIC,
        "t",
        {
            "retention.ms": " 42 ",
            "cleanup.policy": "compact, delete",
            "internal.segment.bytes": "9999",
            "compression.type": "zstd",
            "leader.replication.throttled.replicas": "*",
        },
    ),
    (ResourceType.GROUP, "g", {}),
    (ResourceType.GROUP, "g", {"consumer.session.timeout.ms": "46000", "share.auto.offset.reset": "earliest"}),
    (ResourceType.CLIENT_METRICS, "m", {}),
    (ResourceType.CLIENT_METRICS, "m", {"interval.ms": "500", "metrics": "a, b"}),
]


def describe(resource: ResourceType, name: str, configs: dict[str, str], broker: BrokerConfig) -> list[ConfigEntry]:
    match resource:
        case ResourceType.TOPIC:
            return describe_topic(configs, broker)
        case ResourceType.GROUP:
            return describe_group(configs, broker)
        case ResourceType.CLIENT_METRICS:
            return describe_client_metrics(configs)
        case _:
            return describe_broker(broker) if name else describe_broker_default(broker)


def as_kafka_shows(entry: ConfigEntry) -> dict[str, Any]:
    shown = {key: value for key, value in entry._asdict().items() if key != "documentation"}
    shown["synonyms"] = [
        [synonym.name, "null" if synonym.value is None else synonym.value, synonym.source] for synonym in entry.synonyms
    ]
    return shown


def with_our_default(entry: dict[str, Any]) -> dict[str, Any]:
    """What Kafka shows, with our default where that is another one on purpose."""
    ours = OUR_DEFAULTS.get((entry["name"], entry["value"]))
    if ours is None:
        return entry
    synonyms = [[name, ours if name == entry["name"] else value, *rest] for name, value, *rest in entry["synonyms"]]
    return entry | {"value": ours, "synonyms": synonyms}


def test_descriptions_are_kafkas_field_by_field() -> None:
    cases = list(itertools.product(SCENARIOS, RESOURCES))
    questions = [
        {"do": "describe", **scenario, "resource": resource, "name": name, "configs": configs}
        for scenario, (resource, name, configs) in cases
    ]
    for (scenario, (resource, name, configs)), kafka in zip(cases, ask(questions), strict=True):
        broker = load_broker_config(scenario["settings"])
        broker = with_dynamic_settings(broker, scenario.get("dynamic_default", {}), scenario.get("dynamic_broker", {}))
        ours = {entry.name: as_kafka_shows(entry) for entry in describe(resource, name, configs, broker)}
        theirs = {entry["name"]: entry for entry in kafka["ok"]}
        assert ours.keys() == theirs.keys()
        for key, entry in ours.items():
            assert entry == with_our_default(theirs[key]), (resource, key)


OPERATIONS: list[tuple[str, dict[str, str], list[Change]]] = [
    ("topic", {}, [Change("cleanup.policy", 2, "compact")]),
    ("topic", {"cleanup.policy": "compact"}, [Change("cleanup.policy", 2, "compact,delete")]),
    ("topic", {"cleanup.policy": "compact,delete"}, [Change("cleanup.policy", 3, "delete")]),
    ("topic", {}, [Change("cleanup.policy", 3, "delete")]),
    ("topic", {"retention.ms": "1"}, [Change("retention.ms", 1, None), Change("segment.ms", 0, "5")]),
    ("topic", {}, [Change("leader.replication.throttled.replicas", 2, "0:1")]),
    ("broker", {}, [Change("log.cleanup.policy", 2, "compact")]),
    ("broker", {}, [Change("log.retention.ms", 2, "1")]),
    ("broker", {}, [Change("log.retention.ms", 3, "1")]),
    ("broker", {}, [Change("nothing", 2, "1")]),
    ("client_metrics", {"metrics": "a"}, [Change("metrics", 2, "b,c,")]),
]


def test_incremental_operations_give_what_kafka_gives() -> None:
    questions = [
        {"do": "operations", "family": family, "current": current, "changes": changes}
        for family, current, changes in OPERATIONS
    ]
    resources = {
        "topic": ResourceType.TOPIC,
        "broker": ResourceType.BROKER,
        "client_metrics": ResourceType.CLIENT_METRICS,
    }
    for (family, current, changes), kafka in zip(OPERATIONS, ask(questions), strict=True):
        ours = outcome(
            lambda family=family, current=current, changes=changes: apply_changes(resources[family], current, changes)
        )
        assert ours == {key: value for key, value in kafka.items() if key != "kind"}, changes
