"""What our own client asks a cluster: groups, members, topics. One broker in this process answers."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from moldau.client.cluster import Cluster
from moldau.client.connection import BrokerError
from moldau.client.settings import parse_client_settings
from moldau.testing import Broker
from tests.support.clients import wait_for


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topics=["orders"]) as running:
        yield running


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    settings = parse_client_settings({"bootstrap.servers": broker.bootstrap_servers})
    with Cluster(settings, pause_s=0.05, patience_s=20) as cluster:
        yield cluster


def member(broker: Broker, group: str, protocol: str) -> Consumer:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "group.protocol": protocol}
    return Consumer(settings | ({"session.timeout.ms": 20_000} if protocol == "classic" else {}))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_of_a_group(broker: Broker, cluster: Cluster, protocol: str) -> None:
    group = f"billing-{protocol}"
    consumer = member(broker, group, protocol)
    try:
        consumer.subscribe(["orders"])

        def joined() -> bool:
            consumer.poll(0.05)
            return bool(consumer.assignment())

        wait_for(joined, "the consumer joins")
        assert group in cluster.groups()
        assert cluster.members(group) == 1
    finally:
        consumer.close()
    wait_for(lambda: cluster.members(group) == 0, "it has left")


def test_a_group_that_is_nothing_but_offsets_has_no_membership(broker: Broker, cluster: Cluster) -> None:
    cluster.commit("a-query", {("orders", 0): 7})
    assert cluster.committed("a-query")["orders", 0].offset == 7
    assert "a-query" in cluster.groups()
    assert cluster.members("a-query") is None


def test_of_a_group_that_is_not_there(cluster: Cluster) -> None:
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        cluster.members("nobody")


def test_offsets_in_doubt_are_waited_for_only_if_they_are_to_be_stable(broker: Broker, cluster: Cluster) -> None:
    from confluent_kafka import Producer

    cluster.commit("exactly-once", {("orders", 0): 1})
    consumer = member(broker, "exactly-once", "classic")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "client-test"})
    try:
        producer.init_transactions(30)
        producer.begin_transaction()
        metadata = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([TopicPartition("orders", 0, 3)], metadata, 30)
        assert cluster.committed("exactly-once", stable=False)["orders", 0].offset == 1
        producer.commit_transaction(30)
        assert cluster.committed("exactly-once")["orders", 0].offset == 3
    finally:
        consumer.close()


def test_topics_are_made_once(cluster: Cluster) -> None:
    cluster.make_topics(["made", "made-too"], 2, {"cleanup.policy": "compact"})
    cluster.make_topics(["made"], 5)
    known = cluster.topics(["made", "made-too"])
    assert sorted(known.leaders) == [("made", 0), ("made", 1), ("made-too", 0), ("made-too", 1)]
    assert cluster.is_compacted("made")
    with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
        cluster.make_topics(["no/topic"], 1)
