"""Three nodes in this process, real sockets, stock clients: what works on one node works here, also while nodes go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from moldau.broker.channels import Channels
from moldau.controller.image import ClusterImage
from moldau.testing import Cluster
from moldau.wire import messages as m
from tests.cluster.workload import (
    QUIET,
    Consuming,
    Producing,
    admin,
    check_nothing_lost,
    create_topic,
    read_all,
    wait_until,
)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as running:
        yield running


def image(cluster: Cluster, number: int) -> ClusterImage:
    return cluster.inner.nodes[number].broker.image


def other_than(cluster: Cluster, number: int | None) -> int:
    return next(each for each in cluster.inner.nodes if each != number)


def test_records_groups_and_transactions(cluster: Cluster) -> None:
    servers = cluster.bootstrap_servers
    create_topic(servers, "t", 6)
    described = admin(servers).list_topics("t", timeout=10)
    assert sorted(described.brokers) == [1, 2, 3]
    leaders = [each.leader for each in described.topics["t"].partitions.values()]
    assert sorted(leaders) == [1, 1, 2, 2, 3, 3]
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "x", **QUIET})
    producer.init_transactions(20)
    for decision in ("abort", "commit", "abort", "commit"):
        producer.begin_transaction()
        for number in range(60):
            producer.produce("t", f"{decision} {number}", partition=number % 6)
        (producer.commit_transaction if decision == "commit" else producer.abort_transaction)(20)
    found = read_all(servers, "t", 120, **{"isolation.level": "read_committed"})
    expected = sorted(f"commit {number}".encode() for number in range(60) for _ in range(2))
    assert sorted(value for value, _, _ in found) == expected


def test_offsets_survive_the_coordinator(cluster: Cluster) -> None:
    servers = cluster.bootstrap_servers
    create_topic(servers, "t", 1)
    settings = {"bootstrap.servers": servers, "group.id": "g", "session.timeout.ms": 6000, **QUIET}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition("t", 0, 41)], asynchronous=False)
    consumer.close()
    offsets = image(cluster, 1).topics["__consumer_offsets"].partitions
    coordinator = cluster.inner.nodes[1].broker.groups.partition_for("g")
    cluster.crash(offsets[coordinator].leader)
    consumer = Consumer(settings)
    (committed,) = consumer.committed([TopicPartition("t", 0)], timeout=30)
    assert committed.offset == 41
    consumer.close()


@pytest.mark.parametrize("is_controller", [True, False], ids=["controller", "other"])
def test_a_node_crashes_under_load(cluster: Cluster, is_controller: bool) -> None:
    servers = cluster.bootstrap_servers
    create_topic(servers, "t", 6)
    with Producing(servers, "t") as producing:
        producing.wait_for_more(100)
        active = cluster.controller_id()
        victim = active if is_controller else other_than(cluster, active)
        cluster.crash(victim)
        producing.wait_for_more(300)
        cluster.start_node(victim)
        survivor = other_than(cluster, victim)
        wait_until(lambda: all(len(each.isr) == 3 for _, _, each in image(cluster, survivor).partitions()), "full ISRs")
        producing.wait_for_more(100)
    check_nothing_lost(producing, servers, "t")


def test_a_rolling_restart_shows_clients_no_error(cluster: Cluster) -> None:
    servers = cluster.bootstrap_servers
    create_topic(servers, "t", 6)
    with Producing(servers, "t") as producing, Consuming(servers, "t") as consuming:
        for number in (1, 2, 3):
            producing.wait_for_more(50)
            cluster.restart(number)
            wait_until(lambda: all(len(each.isr) == 3 for _, _, each in image(cluster, 1).partitions()), "full ISRs")
        producing.wait_for_more(50)
        producing.stop()
        consuming.wait_for(producing)
    assert consuming.errors == []
    check_nothing_lost(producing, servers, "t")


def test_commands_reach_the_controller_through_any_broker(cluster: Cluster) -> None:
    for number in (1, 2, 3):
        servers = cluster.address(number)
        name = f"through-{number}"
        create_topic(servers, name, 3)
        wait_until(lambda name=name: all(name in image(cluster, each).topics for each in (1, 2, 3)), name)  # type: ignore[misc]  # bound per round
        client = admin(servers)
        for future in client.delete_topics([name]).values():
            future.result(20)
        wait_until(lambda name=name: all(name not in image(cluster, each).topics for each in (1, 2, 3)), name)  # type: ignore[misc]  # bound per round


def test_a_broker_is_added_filled_emptied_and_taken_out(cluster: Cluster) -> None:
    servers = cluster.bootstrap_servers
    create_topic(servers, "t", 3)

    async def ask(request: object) -> object:
        network = cluster.inner.nodes[1].broker.network
        channels = Channels(network, "test")
        host, _, port = cluster.address(1).rpartition(":")
        try:
            return await channels.call(host, int(port), request)  # type: ignore[arg-type]  # a message
        finally:
            await channels.close()

    def reassign(replicas: list[int]) -> None:
        kind = m.AlterPartitionReassignmentsRequest
        partitions = [kind.ReassignablePartition(index, replicas) for index in range(3)]
        response = cluster.run(ask(kind(topics=[kind.ReassignableTopic("t", partitions)])))
        assert isinstance(response, m.AlterPartitionReassignmentsResponse)
        assert response.error_code == 0
        wait_until(
            lambda: all(
                list(each.replicas) == replicas and sorted(each.isr) == sorted(replicas)
                for each in image(cluster, 1).topics["t"].partitions.values()
            ),
            f"replicas {replicas}",
        )

    with Producing(servers, "t") as producing, Consuming(servers, "t") as consuming:
        producing.wait_for_more(50)
        cluster.add_broker(4)
        reassign([4, 2, 3])
        producing.wait_for_more(50)
        reassign([1, 2, 3])
        cluster.stop_node(4)
        unregistered = cluster.run(ask(m.UnregisterBrokerRequest(4)))
        assert isinstance(unregistered, m.UnregisterBrokerResponse)
        assert unregistered.error_code == 0
        wait_until(lambda: sorted(image(cluster, 1).brokers) == [1, 2, 3], "broker 4 is gone")
        producing.wait_for_more(50)
        producing.stop()
        consuming.wait_for(producing)
    assert consuming.errors == []
    check_nothing_lost(producing, servers, "t")
