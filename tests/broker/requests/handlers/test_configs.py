"""Describing, altering and listing settings; and that a change takes effect before its answer comes."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from moldau.testing import Broker
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.broker.requests.handlers.wire_client import WireClient

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
Describe = m.DescribeConfigsRequest
Legacy = m.AlterConfigsRequest


def describe_one(client: WireClient, resource_type: int, name: str, version: int = 4) -> Any:
    return client.ask(Describe([Describe.DescribeConfigsResource(resource_type, name, None)]), version).results[0]


def legacy(
    client: WireClient, resource_type: int, name: str, *settings: tuple[str, str | None], validate_only: bool = False
) -> Any:
    configs = [Legacy.AlterableConfig(key, value) for key, value in settings]
    resource = Legacy.AlterConfigsResource(resource_type, name, configs)
    return client.ask(Legacy([resource], validate_only)).responses[0]


@pytest.mark.parametrize("version", range(1, 5))
def test_a_topic_is_described_with_all_its_settings(client: WireClient, version: int) -> None:
    name = client.new_topic(retention_ms="5000")
    configs = {each.name: each for each in describe_one(client, TOPIC, name, version).configs}
    assert len(configs) > 30
    own = configs["retention.ms"]
    assert (own.value, own.config_source, own.read_only, own.is_sensitive) == ("5000", 1, False, False)
    assert (configs["segment.bytes"].value, configs["segment.bytes"].config_source) == ("1073741824", 5)
    assert own.config_type == (5 if version >= 3 else 0)


def test_synonyms_and_documentation_come_on_demand(client: WireClient) -> None:
    name = client.new_topic(max_message_bytes="7000")
    resource = Describe.DescribeConfigsResource(TOPIC, name, ["max.message.bytes", "no.such"])
    plain = client.ask(Describe([resource])).results[0].configs
    assert [(each.name, each.synonyms, each.documentation) for each in plain] == [("max.message.bytes", [], None)]
    full = client.ask(Describe([resource], include_synonyms=True, include_documentation=True)).results[0].configs[0]
    assert full.documentation
    assert [(each.name, each.value, each.source) for each in full.synonyms] == [
        ("max.message.bytes", "7000", 1),
        ("message.max.bytes", "1048588", 5),
    ]


@pytest.mark.parametrize(
    ("resource_type", "name", "code", "message"),
    [
        (TOPIC, "no-such", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""),
        (TOPIC, "a/b", ErrorCode.INVALID_TOPIC_EXCEPTION, "invalid"),
        (BROKER, "99", ErrorCode.INVALID_REQUEST, "expected 1 or empty string, but received 99"),
        (BROKER, "one", ErrorCode.INVALID_REQUEST, "must be an integer"),
        (LOGGER, "", ErrorCode.INVALID_REQUEST, "must not be empty"),
        (LOGGER, "7", ErrorCode.INVALID_REQUEST, "expected 1 but received 7"),
        (METRICS, "", ErrorCode.INVALID_REQUEST, "must not be empty"),
        (GROUP, "", ErrorCode.INVALID_REQUEST, "must not be empty"),
        (77, "x", ErrorCode.INVALID_REQUEST, ""),
    ],
)
def test_what_cannot_be_described(
    client: WireClient, resource_type: int, name: str, code: ErrorCode, message: str
) -> None:
    result = describe_one(client, resource_type, name)
    assert (result.error_code, result.configs) == (code, [])
    assert message in result.error_message


def test_an_unknown_kind_of_resource_fails_the_whole_request(client: WireClient) -> None:
    name = client.new_topic()
    resources = [Describe.DescribeConfigsResource(TOPIC, name, None), Describe.DescribeConfigsResource(99, "x", None)]
    assert {each.error_code for each in client.ask(Describe(resources)).results} == {ErrorCode.INVALID_REQUEST}


def test_passwords_are_never_told(client: WireClient) -> None:
    secret = client.describe(BROKER, "1", "ssl.key.password")["ssl.key.password"]
    assert (secret.value, secret.is_sensitive) == (None, True)


def test_changes_of_a_topic_take_effect(client: WireClient) -> None:
    name = client.new_topic()
    big = [b"x" * 4000]
    assert client.produce(name, big).error_code == 0
    assert client.alter(TOPIC, name, ("max.message.bytes", SET, "2000")).error_code == 0
    assert client.produce(name, big).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert client.alter(TOPIC, name, ("max.message.bytes", DELETE, None)).error_code == 0
    assert client.produce(name, big).error_code == 0


def test_lists_grow_and_shrink(client: WireClient) -> None:
    name = client.new_topic()
    assert client.alter(TOPIC, name, ("cleanup.policy", APPEND, "compact")).error_code == 0
    assert client.describe(TOPIC, name)["cleanup.policy"].value == "delete,compact"
    assert client.alter(TOPIC, name, ("cleanup.policy", SUBTRACT, "delete")).error_code == 0
    assert client.describe(TOPIC, name)["cleanup.policy"].value == "compact"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("retention.ms", SET, "x")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, "1"), ("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_bad_change_changes_nothing(
    client: WireClient, changes: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    name = client.new_topic(retention_ms="7777")
    answer = client.alter(TOPIC, name, *changes)
    assert answer.error_code == code
    assert answer.error_message
    assert client.describe(TOPIC, name)["retention.ms"].value == "7777"


def test_validate_only_changes_nothing(client: WireClient) -> None:
    name = client.new_topic()
    assert client.alter(TOPIC, name, ("retention.ms", SET, "1"), validate_only=True).error_code == 0
    assert legacy(client, TOPIC, name, ("retention.ms", "1"), validate_only=True).error_code == 0
    assert client.describe(TOPIC, name)["retention.ms"].config_source == 5


def test_each_resource_is_answered_in_order_and_on_its_own(client: WireClient) -> None:
    name, other = client.new_topic(), client.new_topic()
    kind = m.IncrementalAlterConfigsRequest
    change = [kind.AlterableConfig("retention.ms", SET, "1234")]
    names = [other, "no-such", name, other]
    answer = client.ask(kind([kind.AlterConfigsResource(TOPIC, each, change) for each in names]))
    twice = (ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    assert [(each.resource_name, (each.error_code, each.error_message)) for each in answer.responses] == [
        (other, twice),
        ("no-such", (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'no-such' does not exist.")),
        (name, (0, None)),
        (other, twice),
    ]


def test_the_old_way_removes_what_is_not_named(client: WireClient) -> None:
    name = client.new_topic(retention_ms="1", max_message_bytes="5000")
    assert legacy(client, TOPIC, name, ("retention.ms", "2")).error_code == 0
    configs = client.describe(TOPIC, name)
    assert (configs["retention.ms"].value, configs["max.message.bytes"].config_source) == ("2", 5)
    assert legacy(client, TOPIC, name, ("retention.ms", None)).error_code == ErrorCode.INVALID_REQUEST
    assert legacy(client, LOGGER, "1", ("root", "INFO")).error_message == "Unknown resource type 8"


class TestBrokerSettings:
    @pytest.fixture(autouse=True)
    def put_back(self, client: WireClient) -> Iterator[None]:
        yield
        assert legacy(client, BROKER, "1").error_code == 0
        # This one came with the cluster: with eligible leader replicas it is a number for all, and stays set.
        assert legacy(client, BROKER, "", ("min.insync.replicas", "1")).error_code == 0

    def test_a_change_for_this_broker_takes_effect_on_its_topics(self, client: WireClient) -> None:
        name = client.new_topic()
        assert client.alter(BROKER, "1", ("message.max.bytes", SET, "2000")).error_code == 0
        assert client.produce(name, [b"x" * 4000]).error_code == ErrorCode.MESSAGE_TOO_LARGE
        own = client.describe(TOPIC, name)["max.message.bytes"]
        assert (own.value, own.config_source) == ("2000", 2)
        assert client.alter(BROKER, "1", ("message.max.bytes", DELETE, None)).error_code == 0
        assert client.produce(name, [b"x" * 4000]).error_code == 0

    def test_a_broker_s_own_setting_counts_before_that_for_all(self, client: WireClient) -> None:
        assert client.alter(BROKER, "", ("log.retention.ms", SET, "111")).error_code == 0
        assert client.describe(BROKER, "1")["log.retention.ms"].value == "111"
        assert client.alter(BROKER, "1", ("log.retention.ms", SET, "222")).error_code == 0
        found = client.describe(BROKER, "1", "log.retention.ms")["log.retention.ms"]
        assert (found.value, found.config_source) == ("222", 2)
        assert [(each.value, each.source) for each in found.synonyms][:2] == [("222", 2), ("111", 3)]
        assert client.describe(BROKER, "", "log.retention.ms")["log.retention.ms"].value == "111"

    @pytest.mark.parametrize(
        ("name", "change", "message"),
        [
            ("1", ("num.partitions", SET, "5"), "Cannot update these configs dynamically: [num.partitions]"),
            ("1", ("log.retention.ms", SET, "x"), "Not a number of type LONG"),
            ("1", ("log.retention.ms", 9, "1"), "Unknown operations type 9"),
            ("99", ("log.retention.ms", SET, "1"), "expected 1, but received 99"),
            ("one", ("log.retention.ms", SET, "1"), "must be an integer"),
        ],
    )
    def test_what_a_broker_cannot_do_is_refused(
        self, client: WireClient, name: str, change: tuple[str, int, str], message: str
    ) -> None:
        answer = client.alter(BROKER, name, change)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert message in answer.error_message

    def test_min_insync_replicas_is_one_number_for_the_cluster(self, client: WireClient) -> None:
        assert client.describe(BROKER, "").keys() == {"min.insync.replicas"}
        own = client.alter(BROKER, "1", ("min.insync.replicas", SET, "2"))
        assert own.error_code == ErrorCode.INVALID_CONFIG
        assert client.alter(BROKER, "", ("min.insync.replicas", DELETE, None)).error_code == ErrorCode.INVALID_CONFIG
        assert client.alter(BROKER, "", ("min.insync.replicas", SET, "2")).error_code == 0
        assert client.describe(TOPIC, client.new_topic())["min.insync.replicas"].value == "2"

    def test_connection_limits_change_while_running(self, broker: Broker, client: WireClient) -> None:
        assert client.alter(BROKER, "1", ("max.connections.per.ip", SET, "1")).error_code == 0
        with WireClient(broker.bootstrap_servers) as second, pytest.raises(ConnectionError):
            second.ask(m.DescribeClusterRequest())
        assert client.alter(BROKER, "1", ("max.connections.per.ip", DELETE, None)).error_code == 0
        with WireClient(broker.bootstrap_servers) as second:
            assert second.ask(m.DescribeClusterRequest()).error_code == 0


def test_broker_settings_survive_a_restart(own_broker: Broker, own_client: WireClient) -> None:
    name = own_client.new_topic()
    assert own_client.alter(BROKER, "1", ("message.max.bytes", SET, "2000")).error_code == 0
    own_broker.stop()
    dirs = {"log.dirs": ",".join(own_broker.node.config.log_dirs)}
    with Broker(dirs) as again, WireClient(again.bootstrap_servers) as client:
        assert client.describe(BROKER, "1")["message.max.bytes"].value == "2000"
        assert client.produce(name, [b"x" * 4000]).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_groups_and_subscriptions_have_settings(client: WireClient) -> None:
    assert client.alter(GROUP, "g1", ("consumer.session.timeout.ms", SET, "50000")).error_code == 0
    assert client.describe(GROUP, "g1")["consumer.session.timeout.ms"].value == "50000"
    assert client.alter(GROUP, "g1", ("consumer.session.timeout.ms", SET, "1")).error_code == ErrorCode.INVALID_CONFIG
    assert client.alter(METRICS, "m1", ("interval.ms", SET, "500"), ("metrics", SET, "a.,b.")).error_code == 0
    assert {key: each.value for key, each in client.describe(METRICS, "m1").items()} == {
        "interval.ms": "500",
        "match": "",
        "metrics": "a.,b.",
    }
    assert client.alter(METRICS, "m1", ("match", SET, "nobody=1")).error_code == ErrorCode.INVALID_CONFIG
    listed = client.ask(m.ListConfigResourcesRequest(resource_types=[GROUP, METRICS])).config_resources
    assert {(each.resource_type, each.resource_name) for each in listed} == {(GROUP, "g1"), (METRICS, "m1")}
    only_metrics = client.ask(m.ListConfigResourcesRequest(), 0).config_resources
    assert [each.resource_name for each in only_metrics] == ["m1"]
    assert client.alter(METRICS, "m1", ("interval.ms", DELETE, None), ("metrics", DELETE, None)).error_code == 0
    assert client.ask(m.ListConfigResourcesRequest(), 0).config_resources == []


def test_resources_are_listed_by_kind(client: WireClient) -> None:
    name = client.new_topic()

    def listed(*kinds: int) -> set[tuple[int, str]]:
        answer = client.ask(m.ListConfigResourcesRequest(resource_types=list(kinds)))
        assert answer.error_code == 0
        return {(each.resource_type, each.resource_name) for each in answer.config_resources}

    assert (TOPIC, name) in listed(TOPIC)
    assert listed(BROKER, LOGGER) == {(BROKER, "1"), (LOGGER, "1")}
    assert listed(TOPIC) | listed(BROKER, LOGGER) | listed(GROUP) | listed(METRICS) == listed()
    answer = client.ask(m.ListConfigResourcesRequest(resource_types=[TOPIC, 99]))
    assert (answer.error_code, answer.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])


class TestLoggers:
    NAME = "moldau.broker.requests.dispatch"

    @pytest.fixture(autouse=True)
    def put_back(self) -> Iterator[None]:
        root = logging.getLogger().level
        yield
        logging.getLogger().setLevel(root)
        logging.getLogger(self.NAME).setLevel(logging.NOTSET)

    def test_levels_are_described_set_and_taken_back(self, client: WireClient) -> None:
        before = client.describe(LOGGER, "1")
        assert {"root", self.NAME} <= before.keys()
        assert client.alter(LOGGER, "1", (self.NAME, SET, "DEBUG")).error_code == 0
        assert logging.getLogger(self.NAME).isEnabledFor(logging.DEBUG)
        changed = client.describe(LOGGER, "1", self.NAME)[self.NAME]
        assert (changed.value, changed.config_source, changed.read_only) == ("DEBUG", 6, False)
        assert client.alter(LOGGER, "1", (self.NAME, DELETE, None)).error_code == 0
        assert client.describe(LOGGER, "1")[self.NAME].value == before[self.NAME].value

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            ((NAME, SET, "LOUD"), ErrorCode.INVALID_CONFIG),
            (("no.such.logger", SET, "INFO"), ErrorCode.INVALID_CONFIG),
            (("urllib3", SET, "INFO"), ErrorCode.INVALID_CONFIG),
            ((NAME, APPEND, "INFO"), ErrorCode.INVALID_REQUEST),
            (("root", DELETE, None), ErrorCode.INVALID_REQUEST),
        ],
    )
    def test_a_bad_change_changes_no_logger(
        self, client: WireClient, change: tuple[str, int, str | None], code: ErrorCode
    ) -> None:
        before = client.describe(LOGGER, "1")
        answer = client.alter(LOGGER, "1", ("root", SET, "TRACE"), change)
        if change[0] == "root":
            assert answer.error_message == "Error due to duplicate config keys"
            answer = client.alter(LOGGER, "1", change)
        assert answer.error_code == code
        assert client.describe(LOGGER, "1") == before

    def test_validate_only_and_other_nodes(self, client: WireClient) -> None:
        before = client.describe(LOGGER, "1")
        assert client.alter(LOGGER, "1", ("root", SET, "TRACE"), validate_only=True).error_code == 0
        assert client.describe(LOGGER, "1") == before
        assert client.alter(LOGGER, "9", ("root", SET, "TRACE")).error_code == ErrorCode.INVALID_REQUEST
        assert client.alter(LOGGER, "", ("root", SET, "TRACE")).error_code == ErrorCode.INVALID_REQUEST
