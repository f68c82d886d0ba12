"""What only several nodes show: lag of partitions that live elsewhere, replicas out of sync, who leads the quorum."""

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.broker.metrics.cluster import PartitionElections
from moldau.controller.delta import PartitionDelta, diff
from moldau.controller.image import NO_LEADER, RECOVERED, RECOVERING, ClusterImage, PartitionImage, TopicImage
from moldau.controller.persistent import PersistentMap
from moldau.testing import AsyncBroker, Cluster, Topic
from moldau.testing.ports import free_ports
from moldau.testing.settings import Settings
from moldau.wire import messages as m
from tests.broker.requests.handlers.wire_client import WireClient
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
    topics = [Topic("single", 4, replicas=1), Topic("double", 2, replicas=2), Topic("aged", 4, replicas=1)]
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


def test_lag_in_seconds_of_partitions_that_live_elsewhere(cluster: Cluster) -> None:
    """Two groups at different records of each partition, one of them before what retention left."""
    servers = cluster.client_settings()
    now_ms = int(time.time() * 1000)
    producer = Producer({**servers, "linger.ms": 0})
    for index in range(4):
        for age_seconds in (3000, 2000, 1000):
            producer.produce("aged", b"x" * 100_000, partition=index, timestamp=now_ms - age_seconds * 1000)
            assert producer.flush(20) == 0  # a batch each
    for group, offset in (("first", 0), ("second", 1), ("done", 3)):
        consumer = Consumer({**servers, "group.id": group})
        consumer.commit(offsets=[TopicPartition("aged", index, offset) for index in range(4)], asynchronous=False)
        consumer.close()

    def ages(group: str) -> list[float]:
        found = values(scrape(cluster), "kafka_consumergroup_lag_seconds", consumergroup=group, topic="aged")
        return [round(each, -3) for each in found]

    wait_for(lambda: ages("first") == [3000] * 4, "the age of the first record on every partition")
    wait_for(lambda: ages("second") == [2000] * 4, "the age of the second")
    assert ages("done") == [0] * 4
    admin = AdminClient(servers)
    (taken,) = {
        result.result(20).low_watermark
        for result in admin.delete_records([TopicPartition("aged", index, 2) for index in range(4)]).values()
    }
    assert taken == 2
    late = Consumer({**servers, "group.id": "late"})
    late.commit(offsets=[TopicPartition("aged", index, 0) for index in range(4)], asynchronous=False)
    late.close()
    wait_for(lambda: ages("late") == [1000] * 4, "the age of the first record that is left")


def test_one_controller_and_a_quorum_that_keeps_up(cluster: Cluster) -> None:
    pages = scrape(cluster)
    assert sum(values(pages, "kafka_controller_kafkacontroller_activecontrollercount")) == 1
    (leader,) = set(values(pages, "kafka_server_raftmetrics_current_leader"))
    assert leader == cluster.controller_id()
    assert len(values(pages, "moldau_quorum_lag_records")) == 3
    assert all(count >= 1 for count in values(pages, "moldau_quorum_elections_total"))


def test_brokers_are_named_once(cluster: Cluster) -> None:
    pages = scrape(cluster)
    told = [labels for samples in pages.values() for name, labels, _ in samples if name == "kafka_broker_info"]
    addresses = set(cluster.bootstrap_servers.split(","))
    assert sorted(each["id"] for each in told) == ["1", "2", "3"]
    assert {each["address"] for each in told} == addresses


def test_elections_of_partitions_are_counted_by_the_active_controller(cluster: Cluster) -> None:
    prefix = "kafka_controller_controllerstats"

    def count(name: str) -> float:
        return sum(values(scrape(cluster), f"{prefix}_{name}_total"))

    def replicas() -> PartitionImage:
        return next(
            image
            for number, node in cluster.inner.nodes.items()
            if number == cluster.controller_id() and (image := node.broker.image.partition("led", 0)) is not None
        )

    controller = cluster.controller_id()
    others = [number for number in (1, 2, 3) if number != controller]
    led = NewTopic(
        "led",
        num_partitions=1,
        replica_assignment=[others],
    )
    admin = AdminClient(cluster.client_settings())
    admin.create_topics([led])["led"].result(20)
    first, second = others
    clean, unclean = count("leaderelections"), count("uncleanleaderelections")
    wait_for(lambda: set(replicas().isr) == {first, second}, "both in sync")
    cluster.crash(first)
    try:
        wait_for(lambda: replicas().leader == second, "the second to lead")
        wait_for(lambda: count("leaderelections") > clean, "an election")
        assert count("uncleanleaderelections") == unclean, "the second was in sync"
        pages = scrape(cluster)
        pages = {number: page for number, page in pages.items() if number != controller}
        assert values(pages, f"{prefix}_leaderelections_total") == [0], "else nodes would not add up"
    finally:
        cluster.start_node(first)
    wait_for(lambda: set(replicas().isr) == {first, second}, "everybody back")


def test_an_unclean_election_is_counted() -> None:
    """A leader that was not in sync may lack records: an operator wants to know how often that was."""
    elections = PartitionElections()
    before = PartitionImage(
        replicas=(1, 2),
        directories=(b"", b""),
        isr=(1,),
        removing_replicas=(),
        adding_replicas=(),
        leader=NO_LEADER,
        leader_recovery_state=RECOVERED,
        leader_epoch=1,
        partition_epoch=1,
        elr=(),
        last_known_elr=(),
    )
    topic = TopicImage("t", bytes(16), PersistentMap())
    image = ClusterImage()
    nothing = diff(image, image)

    def publish(after: PartitionImage) -> tuple[int, int]:
        elections.on_published(replace(nothing, partitions=(PartitionDelta(topic, 0, before, after),)))
        return elections.count, elections.unclean

    assert publish(before._replace(isr=(1, 2))) == (0, 0)
    assert publish(before._replace(leader=1)) == (1, 0)
    assert publish(before._replace(leader=2, isr=(2,), leader_recovery_state=RECOVERING)) == (2, 1)


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
        pages = scrape(cluster)
        for name in ("underreplicated", "underminisr"):  # a cluster of this size wants two in sync
            assert sum(values(pages, f"kafka_cluster_partition_{name}", topic="double")) >= 1
        wait_for(lambda: max(values(scrape(cluster), "kafka_brokers")) == 2, "two brokers")
        prefix = "kafka_controller_kafkacontroller"
        wait_for(lambda: values(scrape(cluster), f"{prefix}_offlinepartitionscount") > [0], "partitions nobody leads")
        pages = scrape(cluster)
        assert values(pages, f"{prefix}_fencedbrokercount") == [1]
        assert values(pages, f"{prefix}_activebrokercount") == [2]
        assert sum(values(pages, "kafka_server_replicamanager_underminisrpartitioncount")) >= 1
    finally:
        cluster.start_node(lost)
    wait_for(
        lambda: sum(values(scrape(cluster), "kafka_server_replicamanager_underreplicatedpartitions")) == 0,
        "everybody back in sync",
    )
    assert sum(values(scrape(cluster), "kafka_server_replicamanager_isrexpands_total")) >= 1


def test_a_topic_counts_on_when_some_of_it_moves_away(cluster: Cluster) -> None:
    """A counter that falls is a restart for Prometheus: all the topic ever had would seem to have come just now."""
    cluster.create_topics([Topic("leaving", 2, replicas=3)])
    for index in range(2):
        cluster.produce("leaving", [b"x" * 100] * 10, partition=index)
    name = "kafka_server_brokertopicmetrics_bytesin_total"

    def told() -> dict[int, float]:
        return {number: sum(values({number: page}, name, topic="leaving")) for number, page in scrape(cluster).items()}

    def image() -> PartitionImage:
        found = next(iter(cluster.inner.nodes.values())).broker.image.partition("leaving", 0)
        assert found is not None
        return found

    before, total = told(), sum(values(scrape(cluster), name, topic="leaving"))
    first = image().leader
    stays = next(number for number in (1, 2, 3) if number != first)
    kind = m.AlterPartitionReassignmentsRequest
    moved = kind.ReassignableTopic("leaving", [kind.ReassignablePartition(0, [stays])])
    with WireClient(cluster.bootstrap_servers.split(",")[0]) as client:
        assert client.ask(kind(topics=[moved])).error_code == 0
    wait_for(lambda: image().replicas == (stays,), "the move")
    wait_for(lambda: cluster.inner.nodes[first].broker.replicas.get("leaving", 0) is None, "nothing of it at the first")
    after = told()
    assert after == before
    assert sum(after.values()) == total > 2000


def test_a_node_that_does_not_vote_says_so_and_all_tell_of_their_metadata() -> None:
    with Cluster(1, {"moldau.http.listener": "0"}) as small:
        small.run(small.inner.add_broker(2))
        pages = scrape(small)
        states = {
            number: [labels["state"] for name, labels, _ in page if name == "kafka_server_raftmetrics_current_state"]
            for number, page in pages.items()
        }
        assert states == {1: ["leader"], 2: ["observer"]}
        # Each has seen one begin, the leader itself as well.
        assert values(pages, "moldau_quorum_elections_total") == [1, 1]
        for name in ("kafka_log_log_size", "kafka_log_log_numlogsegments", "kafka_log_log_logendoffset"):
            told = values(pages, name, topic="__cluster_metadata", partition="0")
            assert len(told) == 2
            assert min(told) >= 1


def test_a_node_that_waits_for_others_says_for_whom() -> None:
    """docs/start/production.md: whoever starts one of three and sees nothing asks `/ready`."""
    own, silent, http = free_ports(3)
    settings = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{own}",
        "controller.quorum.voters": f"1@127.0.0.1:{own},2@127.0.0.1:{silent}",
        "moldau.http.listener": str(http),
    }

    def ready() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{http}/ready", timeout=5) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()
        except OSError:
            return ""

    def whom_it_misses() -> str:
        waiting = f"cannot connect to 127.0.0.1:{silent}"
        return wait_for(lambda: said if waiting in (said := ready()) else "", "whom it misses")

    async def wait() -> None:
        async with AsyncBroker(settings):
            raise AssertionError("it is not alone")

    async def run() -> str:
        start = asyncio.ensure_future(wait())
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(None, whom_it_misses)
        finally:
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)

    assert asyncio.run(run()).startswith("catching up with the quorum: epoch 0, no leader")
