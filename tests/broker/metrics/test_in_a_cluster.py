"""What only several nodes show: lag of partitions that live elsewhere, replicas out of sync, who leads the quorum."""

import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from moldau.testing import Cluster, Topic
from moldau.testing.settings import Settings
from tests.support.clients import wait_for
from tests.support.exposition import read_prometheus

Samples = list[tuple[str, dict[str, str], float]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    settings: Settings = {
        "moldau.http.listener": "0",
        "replica.lag.time.max.ms": 3000,
        "broker.session.timeout.ms": 3000,
    }
    topics = [Topic("single", 4, replicas=1), Topic("double", 2, replicas=2)]
    with Cluster(3, settings, topics=topics) as cluster:
        yield cluster


def scrape(cluster: Cluster) -> dict[int, Samples]:
    pages = {}
    for number, node in list(cluster.inner.nodes.items()):
        address = node.http_address
        assert address is not None
        with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        pages[number] = [
            (each.name, each.labels, each.value) for family in read_prometheus(text) for each in family.samples
        ]
    return pages


def values(pages: dict[int, Samples], name: str, **labels: str) -> list[float]:
    return [
        value
        for samples in pages.values()
        for found, given, value in samples
        if found == name and labels.items() <= given.items()
    ]


def test_lag_of_partitions_that_live_elsewhere(cluster: Cluster) -> None:
    for index in range(4):
        cluster.produce("single", [b"x"] * (index + 1), partition=index)
    consumer = Consumer({**cluster.client_settings(), "group.id": "g"})
    consumer.commit(offsets=[TopicPartition("single", index, 0) for index in range(4)], asynchronous=False)
    consumer.close()
    pages = scrape(cluster)
    for index in range(4):  # told by one node, whoever has the replica
        lags = values(pages, "kafka_consumergroup_lag", consumergroup="g", topic="single", partition=str(index))
        assert lags == [index + 1]
    assert values(pages, "kafka_consumergroup_lag_sum", consumergroup="g", topic="single") == [10]
    offsets = values(pages, "kafka_topic_partition_current_offset", topic="single")
    assert sorted(offsets) == [1, 2, 3, 4], "each partition is told by its leader alone"


def test_one_controller_and_a_quorum_that_keeps_up(cluster: Cluster) -> None:
    pages = scrape(cluster)
    assert sum(values(pages, "kafka_controller_kafkacontroller_activecontrollercount")) == 1
    (leader,) = set(values(pages, "kafka_server_raftmetrics_current_leader"))
    assert leader == cluster.controller_id()
    assert len(values(pages, "moldau_quorum_lag_records")) == 3
    assert all(count >= 1 for count in values(pages, "moldau_quorum_elections_total"))


def test_a_lost_broker_is_seen_by_the_others(cluster: Cluster) -> None:
    assert sum(values(scrape(cluster), "kafka_server_replicamanager_underreplicatedpartitions")) == 0
    victims = {
        image.replicas[1]
        for node in cluster.inner.nodes.values()
        for index in range(2)
        if (image := node.broker.image.partition("double", index)) is not None
    }
    lost = victims.pop()
    cluster.crash(lost)
    try:
        wait_for(
            lambda: sum(values(scrape(cluster), "kafka_server_replicamanager_underreplicatedpartitions")) >= 1,
            "partitions without the lost broker",
        )
        wait_for(lambda: max(values(scrape(cluster), "kafka_brokers")) == 2, "two brokers")
    finally:
        cluster.start_node(lost)
    wait_for(
        lambda: sum(values(scrape(cluster), "kafka_server_replicamanager_underreplicatedpartitions")) == 0,
        "everybody back in sync",
    )
    assert sum(values(scrape(cluster), "kafka_server_replicamanager_isrexpands_total")) >= 1
