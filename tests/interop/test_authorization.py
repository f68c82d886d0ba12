"""Permissions beside Apache Kafka: every API with nothing, each and all of what it needs, answered field by field."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moldau.controller.acls import Pattern
from moldau.testing import Broker
from moldau.testing.ports import free_ports
from moldau.wire import apis
from moldau.wire import messages as m
from tests.interop.apache_kafka import HOST, SINGLE_NODE_PROPERTIES, ApacheKafka
from tests.interop.differential import ConnectionClosed, Masks, Side, differences
from tests.interop.scenarios.support import new_topic
from tests.interop.test_broker_tools import Tour
from tests.support.authorization_cases import (
    ADMIN_HOST,
    CASES,
    CLIENT_HOST,
    DOOMED,
    EVERYTHING,
    SETTINGS,
    Case,
    Grant,
    T,
    batch,
    controller_listener,
    offset_commit,
    on_controllers,
)

MASKS = Masks(
    unordered=("topics", "groups", "resources", "results", "entries"),
    presence=("producer_epoch", "member_epoch", "log_start_offset", "base_offset", "high_watermark"),
)


# Moldau's answer has the topic that it created, Kafka's says that it is unknown yet.
CREATING = ("metadata that creates with everything", "metadata that creates anything with everything")


def _are_committed(answer: m.OffsetCommitResponse) -> bool:
    return not any(each.error_code for topic in answer.topics for each in topic.partitions)


# Kafka 4.3.1's controllers answer DescribeUserScramCredentials with an unknown error, whoever asks. And a client that
# may read a topic at a broker may not at a controller.
ON_CONTROLLERS = [case for case in on_controllers() if case.name != "scram users"] + [
    case for case in CASES if case.name == "fetch"
]


class Cluster:
    """One of the two, with its administrator and the client that is tried out."""

    def __init__(self, name: str, bootstrap: str, controller_port: int) -> None:
        self.admin = Side(name, bootstrap, from_host=ADMIN_HOST)
        self.client = Side(name, bootstrap, from_host=CLIENT_HOST)
        self.client_of_controller = Side(name, f"{HOST}:{controller_port}", from_host=CLIENT_HOST)
        self.grant(*EVERYTHING, host=ADMIN_HOST)
        self.ids = {topic: new_topic(self.admin, topic) for topic in (T, DOOMED)}
        kind = m.ProduceRequest
        data = kind.TopicProduceData(T, partition_data=[kind.PartitionProduceData(0, batch())])
        self.admin.ask(kind(None, -1, 5_000, [data]), 12)
        for key_type in (0, 1):  # makes the coordinators' topics
            request = m.FindCoordinatorRequest("x", key_type, ["x"])
            self.admin.await_answer("coordinators", request, 6, lambda answer: not answer.coordinators[0].error_code)

        # There is a group, as soon as its coordinator has loaded what it knows.
        self.admin.await_answer("group", offset_commit(self.ids), 10, _are_committed)
        some_id = m.InitProducerIdRequest(None, 1_000)
        self.admin.await_answer("producer ids", some_id, 5, lambda answer: not answer.error_code)

    def grant(self, *grants: Grant, host: str = CLIENT_HOST) -> None:
        self.admin.ask(m.CreateAclsRequest([each.creation(host) for each in grants]), 3)
        for grant in grants:
            self._await_rules(grant, host, 1)

    def revoke(self, *grants: Grant) -> None:
        self.admin.ask(m.DeleteAclsRequest([each.deletion() for each in grants]), 3)
        for grant in grants:
            self._await_rules(grant, CLIENT_HOST, 0)

    def _await_rules(self, grant: Grant, host: str, count: int) -> None:
        """A broker may hear of a rule after the controller has acknowledged it."""
        asked = m.DescribeAclsRequest(grant.kind, grant.name, Pattern.LITERAL, None, host, grant.operation, 1)
        self.admin.await_answer("rules", asked, 3, lambda answer: len(answer.resources) == count)

    def play(self, case: Case, client: Side) -> Side:
        client.trace.clear()
        versions = case.versions or (apis()[type(case.request(self.ids)).number].versions.last,)
        for name, grants in case.steps():
            self.grant(*grants)
            try:
                for version in versions:
                    client.call(f"{case.name} with {name}", case.request(self.ids), version, MASKS)
            except ConnectionClosed:
                client.reconnect()
            finally:
                self.revoke(*grants)
        return client


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Cluster]]:
    data: Path = tmp_path_factory.mktemp("authorization") / "data"
    settings = SINGLE_NODE_PROPERTIES | SETTINGS
    (controller,) = free_ports(1)
    ours = settings | controller_listener(controller)
    with ApacheKafka(settings) as kafka, Broker(ours, data_dir=str(data)) as moldau:
        clusters = (
            Cluster("moldau", moldau.bootstrap_servers, controller),
            Cluster("kafka", kafka.bootstrap_servers, kafka.controller_port),
        )
        yield clusters
        for each in clusters:
            for side in (each.admin, each.client, each.client_of_controller):
                side.reconnect()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_moldau_asks_for_what_apache_kafka_asks_for(case: Case, pair: tuple[Cluster, Cluster]) -> None:
    moldau, kafka = pair
    found = differences(moldau.play(case, moldau.client), kafka.play(case, kafka.client))
    unexpected = [line for line in found if not line.startswith(CREATING)]
    assert not unexpected, "\n".join(unexpected)


@pytest.mark.parametrize("case", ON_CONTROLLERS, ids=lambda case: case.name)
def test_controllers_ask_for_what_apache_kafkas_ask_for(case: Case, pair: tuple[Cluster, Cluster]) -> None:
    moldau, kafka = (each.play(case, each.client_of_controller) for each in pair)
    found = differences(moldau, kafka)
    assert not found, "\n".join(found)


def _rules(tour: Tour) -> None:
    """kafka-acls: what it adds, lists and removes."""
    run = tour.run
    ann = ("--allow-principal", "User:ann")
    run("add", "kafka-acls", "--add", *ann, "--operation", "Read", "--operation", "Write", "--topic", "orders")
    run("prefix", "kafka-acls", "--add", *ann, "--consumer", "--topic", "team-", "--group", "team-", *PREFIXED)
    run("deny", "kafka-acls", "--add", "--deny-principal", "User:*", "--deny-host", "10.0.0.9", "--topic", "*")
    run("writer", "kafka-acls", "--add", *ann, "--producer", "--topic", "out", "--transactional-id", "tx")
    run("cluster", "kafka-acls", "--add", *ann, "--operation", "ClusterAction", "--cluster")
    run("matching", "kafka-acls", "--list", "--topic", "team-a", "--resource-pattern-type", "match")
    run("of ann", "kafka-acls", "--list", "--principal", "User:ann")
    run("remove", "kafka-acls", "--remove", "--force", *ann, "--operation", "Read", "--topic", "orders")
    run("remove all", "kafka-acls", "--remove", "--force", "--topic", "team-", *PREFIXED)
    run("list", "kafka-acls", "--list")


def _limits(tour: Tour) -> None:
    """kafka-configs for users, clients and addresses."""

    def run(step: str, verb: str, *arguments: str) -> None:
        tour.run(step, "kafka-configs", f"--{verb}", *arguments)

    ann, everybody = ("--entity-type", "users", "--entity-name", "ann"), ("--entity-type", "users", "--entity-default")
    app = ("--entity-type", "clients", "--entity-name", "app")
    address = ("--entity-type", "ips", "--entity-name", "10.0.0.1")
    run("user", "alter", *ann, "--add-config", "producer_byte_rate=1000000,request_percentage=12.5")
    run("both", "alter", *ann, *app, "--add-config", "consumer_byte_rate=2000000,controller_mutation_rate=2.5")
    run("default", "alter", *everybody, "--add-config", "consumer_byte_rate=3000000")
    run("address", "alter", *address, "--add-config", "connection_creation_rate=10")
    run("nonsense", "alter", *ann, "--add-config", "speed=9")
    run("too slow", "alter", *ann, "--add-config", "producer_byte_rate=0")
    for entity in ("users", "clients", "ips"):
        run(f"all {entity}", "describe", "--entity-type", entity)
    run("of both", "describe", *ann, *app)
    run("user less", "alter", *ann, "--delete-config", "producer_byte_rate")
    run("user then", "describe", *ann)


PREFIXED = ("--resource-pattern-type", "prefixed")


@pytest.mark.long
@pytest.mark.parametrize("make_tour", [_rules, _limits], ids=["kafka-acls", "kafka-configs"])
def test_kafkas_tools_print_the_same(
    make_tour: Callable[[Tour], None], pair: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    tours = [Tour(each.admin.bootstrap, "unused-name", tmp_path) for each in pair]
    for tour in tours:
        make_tour(tour)
    ours, theirs = ({step: _lines(text) for step, text in tour.printed.items()} for tour in tours)
    assert ours == theirs


def _lines(printed: str) -> list[str]:
    """The tool prints sets, in another order at each run, and puts a blank before what happens to be first."""
    return sorted(line.strip() for line in printed.splitlines())
