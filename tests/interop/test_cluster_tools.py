"""Apache Kafka's administration tools drive a Moldau cluster: move partitions, elect leaders, describe the quorum,
change features, take a broker out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from moldau.controller.image import PartitionImage
from moldau.testing import Cluster
from tests.cluster.workload import Producing, check_nothing_lost, create_topic, wait_until
from tests.interop.apache_kafka import TOOLS, java_command
from tests.interop.peers.workshop import run_unchecked


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as running:
        running.add_broker(4)
        yield running


def tool(cluster: Cluster, name: str, *arguments: str, fails: bool = False) -> str:
    server = ("--bootstrap-server", cluster.bootstrap_servers)
    ordered = (*arguments, *server) if name == "kafka-cluster" else (*server, *arguments)
    finished = run_unchecked(java_command(TOOLS[name], *ordered), timeout_s=90)
    said = f"{finished.stdout}\n{finished.stderr}"
    assert (finished.returncode != 0) == fails, said
    return said


def replicas(cluster: Cluster, topic: str) -> dict[int, tuple[int, ...]]:
    partitions = cluster.inner.nodes[1].broker.image.topics[topic].partitions
    return {index: each.replicas for index, each in partitions.items()}


def test_reassign_partitions(cluster: Cluster, tmp_path: Path) -> None:
    create_topic(cluster.bootstrap_servers, "moving", 2)
    wait_until(lambda: "moving" in cluster.inner.nodes[1].broker.image.topics, "known to the node that is looked at")
    plan = {
        "version": 1,
        "partitions": [{"topic": "moving", "partition": index, "replicas": [4, 1, 2]} for index in range(2)],
    }
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    json_file = ("--reassignment-json-file", str(file))
    with Producing(cluster.bootstrap_servers, "moving") as producing:
        producing.wait_for_more(50)
        said = tool(cluster, "kafka-reassign-partitions", *json_file, "--execute", "--throttle", "50000000")
        assert "Successfully started partition reassignments for moving-0,moving-1" in said
        wait_until(lambda: set(replicas(cluster, "moving").values()) == {(4, 1, 2)}, "moved")
        said = tool(cluster, "kafka-reassign-partitions", *json_file, "--verify")
        assert "Reassignment of partition moving-0 is completed." in said
        assert "Clearing broker-level throttles on brokers 1,2,3,4" in said
        assert "No partition reassignments found." in tool(cluster, "kafka-reassign-partitions", "--list")
        producing.wait_for_more(50)
    check_nothing_lost(producing, cluster.bootstrap_servers, "moving")


def test_leader_election(cluster: Cluster, tmp_path: Path) -> None:
    create_topic(cluster.bootstrap_servers, "leading", 3)
    wait_until(lambda: "leading" in cluster.inner.nodes[1].broker.image.topics, "known to the node that is looked at")

    def image() -> Mapping[int, PartitionImage]:
        return cluster.inner.nodes[1].broker.image.topics["leading"].partitions

    victim = image()[0].replicas[0]
    if victim == 1:
        victim = image()[1].replicas[0]
    (index, *_) = [index for index, each in image().items() if each.replicas[0] == victim]
    cluster.restart(victim)
    wait_until(lambda: image()[index].leader != victim and victim in image()[index].isr, "led by another")
    file = tmp_path / "partitions.json"
    file.write_text(json.dumps({"partitions": [{"topic": "leading", "partition": index}]}))
    arguments = ("--election-type", "preferred", "--path-to-json-file", str(file))
    said = tool(cluster, "kafka-leader-election", *arguments)
    assert f"Successfully completed leader election (PREFERRED) for partitions leading-{index}" in said
    wait_until(lambda: image()[index].leader == victim, "led by the preferred replica")
    assert "Valid replica already elected" in tool(cluster, "kafka-leader-election", *arguments)


def test_unclean_leader_election(tmp_path: Path) -> None:
    """The replica in sync is lost, and one that was left behind is there: only who asks for it gets a partition with
    less in it."""
    with Cluster(nodes=1) as cluster:
        cluster.add_broker(2)
        cluster.add_broker(3)
        create = ("--create", "--topic", "torn", "--replica-assignment", "2:3", "--config", "min.insync.replicas=1")
        tool(cluster, "kafka-topics", *create)

        def state() -> PartitionImage:
            return cluster.inner.nodes[1].broker.image.topics["torn"].partitions[0]

        def end_offset(number: int) -> int | None:
            partition = cluster.inner.nodes[number].broker.replicas.get("torn", 0)
            return None if partition is None else partition.log.log_end_offset

        wait_until(lambda: sorted(state().isr) == [2, 3], "both in sync")
        cluster.stop_node(3)
        with Producing(cluster.bootstrap_servers, "torn") as producing:
            producing.wait_for_more(20)
        cluster.crash(2)
        wait_until(lambda: state().leader == -1, "nobody leads")
        cluster.start_node(3)
        assert state().leader == -1
        file = tmp_path / "partitions.json"
        file.write_text(json.dumps({"partitions": [{"topic": "torn", "partition": 0}]}))
        arguments = ("--election-type", "unclean", "--path-to-json-file", str(file))
        said = tool(cluster, "kafka-leader-election", *arguments)
        assert "Successfully completed leader election (UNCLEAN) for partitions torn-0" in said
        wait_until(lambda: state().leader == 3, "led by who has less")
        cluster.start_node(2)
        wait_until(lambda: sorted(state().isr) == [2, 3], "both in sync again")
        assert end_offset(2) == end_offset(3) == 0


def test_metadata_quorum(cluster: Cluster) -> None:
    said = tool(cluster, "kafka-metadata-quorum", "describe", "--status")
    assert f"LeaderId:               {cluster.controller_id()}" in said
    voters = next(line for line in said.splitlines() if line.startswith("CurrentVoters:"))
    assert [each["id"] for each in json.loads(voters.partition(":")[2])] == [1, 2, 3]
    observers = next(line for line in said.splitlines() if line.startswith("CurrentObservers:"))
    # A broker that another test took away is an observer until it was silent for a while.
    assert 4 in [each["id"] for each in json.loads(observers.partition(":")[2])]
    said = tool(cluster, "kafka-metadata-quorum", "describe", "--replication")
    roles = sorted(line.split()[-1] for line in said.splitlines() if line[:1].isdigit())
    assert roles[:4] == ["Follower", "Follower", "Leader", "Observer"]


def test_features(cluster: Cluster) -> None:
    said = tool(cluster, "kafka-features", "describe")
    assert "Feature: metadata.version" in said
    said = tool(cluster, "kafka-features", "downgrade", "--feature", "group.version=0")
    assert "group.version was downgraded to 0." in said
    said = tool(cluster, "kafka-features", "upgrade", "--feature", "group.version=1")
    assert "group.version was upgraded to 1." in said
    tool(cluster, "kafka-features", "upgrade", "--feature", "group.version=99", fails=True)


def test_a_broker_is_unregistered(cluster: Cluster) -> None:
    cluster.add_broker(5)
    assert "127.0.0.1" in tool(cluster, "kafka-cluster", "list-endpoints")
    cluster.stop_node(5)
    said = tool(cluster, "kafka-cluster", "unregister", "--id", "5")
    assert "Broker 5 is no longer registered." in said
    wait_until(lambda: 5 not in cluster.inner.nodes[1].broker.image.brokers, "gone")
    del cluster.inner.settings[5]
