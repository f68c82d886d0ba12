"""The life of a cluster of real processes, led by Apache Kafka's own tools while a producer and a group go on: founded
by one node, joined by three, one decommissioned (the founder), the others restarted one after the other. Clients see
nothing of it."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.log.checkpoints import read_meta_properties
from moldau.seams import RealDisk
from moldau.testing.ports import free_ports
from tests.cluster.workload import Consuming, Producing, admin, check_nothing_lost, wait_until
from tests.interop.apache_kafka import HOST, TOOLS, java_command
from tests.interop.peers.workshop import run
from tests.support.broker_process import QUICK, read_ready, spawn_serve


class Nodes:
    """Numbered from 1, each broker and controller, the first of them the founder."""

    def __init__(self, count: int, root: Path) -> None:
        ports = free_ports(2 * count)
        self.brokers = dict(enumerate(ports[:count], start=1))
        self.controllers = dict(enumerate(ports[count:], start=1))
        self.root = root
        self._processes: dict[int, subprocess.Popen[str]] = {}
        for number in self.brokers:
            self.file(number).write_text("".join(f"{key}={value}\n" for key, value in self._settings(number).items()))

    def _settings(self, number: int) -> dict[str, str]:
        known = [1] if number == 1 else list(self.controllers)
        listeners = f"PLAINTEXT://{HOST}:{self.brokers[number]},CONTROLLER://{HOST}:{self.controllers[number]}"
        return QUICK | {
            "node.id": str(number),
            "process.roles": "broker,controller",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": ",".join(f"{HOST}:{self.controllers[each]}" for each in known),
            "listeners": listeners,
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.root / f"node-{number}"),
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "offsets.topic.replication.factor": "3",
        }

    def file(self, number: int) -> Path:
        return self.root / f"node-{number}.properties"

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self.brokers.values())

    def start(self, number: int) -> None:
        with (self.root / f"node-{number}.log").open("a") as errors:
            process = spawn_serve("--config", str(self.file(number)), stderr=errors.fileno())
        self._processes[number] = process
        read_ready(process)

    def stop(self, number: int) -> None:
        process = self._processes.pop(number)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=40)
        assert process.returncode == 0

    def kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()

    def tool(self, name: str, *arguments: str, through: int = 2) -> str:
        """Through one broker, so that what it cannot decide is forwarded."""
        server = ("--bootstrap-server", f"{HOST}:{self.brokers[through]}")
        ordered = (*arguments, *server) if name == "kafka-cluster" else (*server, *arguments)
        finished = run(java_command(TOOLS[name], *ordered), timeout_s=90)
        return finished.stdout + finished.stderr

    def add_controller(self, number: int) -> None:
        said = self.tool("kafka-metadata-quorum", "--command-config", str(self.file(number)), "add-controller")
        assert f"Added controller {number}" in said

    def remove_controller(self, number: int) -> None:
        directory = read_meta_properties(RealDisk(), str(self.root / f"node-{number}"))
        assert directory is not None
        names = ("--controller-id", str(number), "--controller-directory-id", str(directory.directory_id))
        said = self.tool("kafka-metadata-quorum", "remove-controller", *names)
        assert f"KRaft controller {number} with directory id" in said

    def voters(self) -> list[int]:
        said = self.tool("kafka-metadata-quorum", "describe", "--status")
        line = next(line for line in said.splitlines() if line.startswith("CurrentVoters:"))
        return sorted(each["id"] for each in json.loads(line.partition(":")[2]))

    def wait_in_sync(self) -> None:
        """Every partition has all of its replicas."""

        def in_sync() -> bool:
            topics = admin(self.bootstrap_servers).list_topics(timeout=20).topics.values()
            partitions = [each for topic in topics for each in topic.partitions.values()]
            return all(sorted(each.isrs) == sorted(each.replicas) for each in partitions)

        wait_until(in_sync, "every replica is in sync", 60)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(4, tmp_path)
    try:
        yield made
    finally:
        made.kill_all()


def test_a_cluster_grows_loses_its_founder_and_is_restarted(nodes: Nodes, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        nodes.start(number)
    for number in (2, 3):
        nodes.add_controller(number)
    assert nodes.voters() == [1, 2, 3]
    nodes.tool("kafka-topics", "--create", "--topic", "t", "--partitions", "6", "--replication-factor", "3")
    with Producing(nodes.bootstrap_servers, "t") as producing, Consuming(nodes.bootstrap_servers, "t") as consuming:
        producing.wait_for_more(50)
        grow(nodes, tmp_path)
        producing.wait_for_more(50)
        decommission_the_founder(nodes)
        producing.wait_for_more(50)
        for number in (2, 3, 4):
            nodes.stop(number)
            producing.wait_for_more(50)
            nodes.start(number)
            nodes.wait_in_sync()
        producing.wait_for_more(50)
        producing.stop()
        consuming.wait_for(producing)
    assert consuming.errors == []
    check_nothing_lost(producing, nodes.bootstrap_servers, "t")


def grow(nodes: Nodes, tmp_path: Path) -> None:
    """A fourth node, which takes the place of the first in every partition and in the quorum."""
    nodes.start(4)
    nodes.add_controller(4)
    plan = []
    for name, topic in admin(nodes.bootstrap_servers).list_topics(timeout=20).topics.items():
        for index, each in topic.partitions.items():
            replicas = [4 if replica == 1 else replica for replica in each.replicas]
            plan.append({"topic": name, "partition": index, "replicas": replicas})
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"version": 1, "partitions": plan}))
    json_file = ("--reassignment-json-file", str(file))
    said = nodes.tool("kafka-reassign-partitions", *json_file, "--execute", "--throttle", "20000000")
    assert "Successfully started partition reassignments" in said

    def moved() -> bool:
        topics = admin(nodes.bootstrap_servers).list_topics(timeout=20).topics.values()
        return all(1 not in each.replicas for topic in topics for each in topic.partitions.values())

    wait_until(moved, "no partition is on node 1", 60)
    said = nodes.tool("kafka-reassign-partitions", *json_file, "--verify")
    assert "Reassignment of partition t-0 is completed." in said
    assert "Clearing broker-level throttles" in said
    nodes.tool("kafka-leader-election", "--election-type", "preferred", "--all-topic-partitions")
    said = nodes.tool("kafka-log-dirs", "--describe", "--broker-list", "1,4")
    (described,) = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    kept = {
        each["broker"]: [part for log in each["logDirs"] for part in log["partitions"]] for each in described["brokers"]
    }
    assert kept[1] == []
    assert "t-0" in {part["partition"] for part in kept[4]}


def decommission_the_founder(nodes: Nodes) -> None:
    nodes.remove_controller(1)
    wait_until(lambda: nodes.voters() == [2, 3, 4], "three voters", 60)
    nodes.stop(1)
    assert "Broker 1 is no longer registered." in nodes.tool("kafka-cluster", "unregister", "--id", "1")
    said = nodes.tool("kafka-broker-api-versions", through=3)
    assert [number for number in (1, 2, 3, 4) if f"(id: {number} " in said] == [2, 3, 4]
