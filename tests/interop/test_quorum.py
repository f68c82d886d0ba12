"""The metadata quorum and Apache Kafka: its tools read our log and drive our voters, its controllers vote with ours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from moldau.broker.config import load_broker_config
from moldau.broker.node.node import Node
from moldau.broker.quorum.quorum import MetadataQuorum
from moldau.log.checkpoints import uuid_text
from moldau.testing import Cluster
from moldau.testing.ports import free_ports
from moldau.wire import messages as m
from tests.broker.quorum.members import World
from tests.broker.quorum.test_quorum import run, topic
from tests.broker.quorum.test_snapshots import OFTEN
from tests.cli.running import Command
from tests.cluster.workload import create_topic, wait_until
from tests.interop.apache_kafka import HOST, ApacheKafka, random_id, run_tool
from tests.support.clients import wait_for

TROUBLE = ("Exception", "mismatch", "Mismatch", "not valid", "isvalid: false", "Could not")


def dump(path: Path) -> str:
    output = run_tool("kafka-dump-log", "--cluster-metadata-decoder", "--files", str(path)).stdout
    assert not [word for word in TROUBLE if word in output], output
    return output


def test_the_dump_tool_reads_our_log_and_our_snapshots(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        for node_id in (1, 2, 3):
            world.start(node_id)
        leader = await world.bootstrap()
        await world.until(lambda: len(leader.quorum.voters) == 3)
        for number in range(40):
            await (await world.leader()).quorum.append(topic(number))
        await world.until(lambda: len(leader.quorum.files.snapshots) > 1)

    settings = OFTEN | {"controller.quorum.auto.join.enable": "true", "metadata.max.retention.bytes": "-1"}
    run(World(tmp_path, 3, settings, dynamic=True), scenario)
    folder = tmp_path / "node1" / "__cluster_metadata-0"
    log = dump(folder / "00000000000000000000.log")
    for word in ("LeaderChange", "KRaftVersion", "KRaftVoters", '"type":"TOPIC_RECORD"', '"name":"t3"'):
        assert word in log
    founding, *_, newest = sorted(folder.glob("*.checkpoint"))
    assert founding.name == "00000000000000000000-0000000000.checkpoint"
    assert "KRaftVoters" in dump(founding)
    snapshot = dump(newest)
    for word in ("SnapshotHeader", "KRaftVoters", '"type":"FEATURE_LEVEL_RECORD"', '"name":"t3"', "SnapshotFooter"):
        assert word in snapshot


def image_shown(file: Path) -> str:
    """What Kafka's shell has read of a file; on a busy machine it answers before it has read anything, and says so."""

    def tree() -> str:
        shown = " ".join(run_tool("kafka-metadata-shell", "--snapshot", str(file), "tree", "/image").stdout.split())
        return "" if "offset -1, epoch -1" in shown else shown

    return wait_for(tree, f"an image of {file.name}", 60)


def test_the_metadata_shell_shows_what_is_in_our_log_and_our_snapshots(tmp_path: Path) -> None:
    rarely = {"metadata.log.max.record.bytes.between.snapshots": "20000"}  # the first segment has what is asked for
    with Cluster(nodes=3, settings=rarely, data_dir=str(tmp_path)) as cluster:
        create_topic(cluster.bootstrap_servers, "shown", 2, retention_ms="77777")
        create_topic(cluster.bootstrap_servers, "more", 200)
        folder = tmp_path / "node-1" / "__cluster_metadata-0"
        wait_until(lambda: any(folder.glob("*.checkpoint")), "a snapshot")
        partition = cluster.inner.nodes[1].broker.image.topics["shown"].partitions[1]
    newest = max(folder.glob("*.checkpoint"))
    for file in (newest, folder / "00000000000000000000.log"):
        tree = image_shown(file)
        assert "retention.ms: 77777" in tree
        assert f"replicas={list(partition.replicas)}," in tree
        assert "metadataVersion: Optional[4.3-IV0]" in tree
        assert all(f"BrokerRegistration(id={number}," in tree for number in (1, 2, 3))
        assert all(f"ControllerRegistration(id={number}," in tree for number in (1, 2, 3))


# -- one quorum of both


def controller_settings(node_id: int, ports: list[int], folder: Path) -> dict[str, str]:
    return {
        "process.roles": "controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{index + 1}@{HOST}:{port}" for index, port in enumerate(ports)),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"CONTROLLER://{HOST}:{ports[node_id - 1]}",
        "advertised.listeners": f"CONTROLLER://{HOST}:{ports[node_id - 1]}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT",
        "log.dirs": str(folder),
    }


@contextmanager
def apache_controllers(ports: list[int], root: Path) -> Iterator[dict[int, ApacheKafka]]:
    """Nodes 1 and 2 of three."""
    cluster_id = random_id()
    nodes = {
        node_id: ApacheKafka(
            controller_settings(node_id, ports, root / f"kafka{node_id}"),
            log_dir=root / f"kafka{node_id}",
            cluster_id=cluster_id,
            ports=(ports[node_id - 1], ports[node_id - 1]),
            format_options=(),
        )
        for node_id in (1, 2)
    }
    try:
        for node in nodes.values():
            node.start()
        yield nodes
    finally:
        for node in nodes.values():
            node.kill()
            node.close()


def described(port: int) -> dict[int, tuple[str, int]]:
    """(role, lag) by node, as Apache Kafka's own tool sees the quorum."""
    where = ("--bootstrap-controller", f"{HOST}:{port}")
    lines = run_tool("kafka-metadata-quorum", *where, "describe", "--replication").stdout.splitlines()
    rows = [line.split() for line in lines if line[:1].isdigit()]
    return {int(row[0]): (row[-1], int(row[3])) for row in rows}


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.05)


def _is_led_later(quorum: MetadataQuorum, epoch: int) -> bool:
    return quorum.epoch > epoch and quorum.leader_id is not None


def test_apache_kafkas_controllers_and_ours_are_one_quorum(tmp_path: Path) -> None:
    """Two of theirs, one of ours: everybody leads once, and nobody loses anything."""
    ports = free_ports(3)

    async def scenario(theirs: Mapping[int, ApacheKafka]) -> None:
        settings = controller_settings(3, ports, tmp_path / "ours")
        config = tmp_path / "ours.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        # Formatted by their tool, since a new voter that gets no answer in time founds a cluster of its own.
        cluster_id = theirs[1].cluster_id
        await asyncio.to_thread(run_tool, "kafka-storage", "format", "-t", cluster_id, "-c", str(config))
        node = Node(load_broker_config(settings))
        await node.start()
        quorum = node.broker.metadata_log
        try:
            assert quorum.committed.features["metadata.version"] == 30
            led: set[int] = set()
            while led != {1, 2, 3}:
                await until(lambda: quorum.leader_id is not None)
                leader, epoch = quorum.leader_id, quorum.epoch
                assert leader is not None
                led.add(leader)
                if leader == 3:
                    await until(lambda: quorum.is_leader)
                    await quorum.append([m.ConfigRecord(4, "", "num.io.threads", "5")])
                    await quorum.resign()
                else:
                    await asyncio.to_thread(theirs[leader].stop)
                    await until(partial(_is_led_later, quorum, epoch))
                    await asyncio.to_thread(theirs[leader].start)
            seen: dict[int, tuple[str, int]] = {}
            while sorted(lag for _, lag in seen.values()) != [0, 0, 0]:
                seen = await asyncio.to_thread(described, ports[0])
            assert sorted(role for role, _ in seen.values()) == ["Follower", "Follower", "Leader"]
        finally:
            await node.stop()

    with apache_controllers(ports, tmp_path) as theirs:
        asyncio.run(asyncio.wait_for(scenario(theirs), 300))
    # What ours appended is in the log of theirs.
    assert '"name":"num.io.threads","value":"5"' in dump(
        tmp_path / "kafka1" / "__cluster_metadata-0" / "00000000000000000000.log"
    )


# -- their tool changes our voters


def dynamic_settings(node_id: int, ports: list[int], folder: Path) -> dict[str, str]:
    settings = controller_settings(node_id, ports, folder)
    del settings["controller.quorum.voters"]
    servers = [f"{HOST}:{ports[0]}"] if node_id == 1 else [f"{HOST}:{port}" for port in ports]
    return settings | {"controller.quorum.bootstrap.servers": ",".join(servers)}


def test_their_tool_adds_and_removes_our_voters(tmp_path: Path) -> None:
    ports = free_ports(2)

    async def with_nodes(use: Callable[[list[Node]], Awaitable[None]]) -> None:
        nodes = []
        try:
            for node_id in (1, 2):
                node = Node(load_broker_config(dynamic_settings(node_id, ports, tmp_path / f"node{node_id}")))
                nodes.append(node)
                await node.start()
            await use(nodes)
        finally:
            for node in reversed(nodes):
                await node.stop()

    async def scenario(nodes: list[Node]) -> None:
        config = tmp_path / "server.properties"
        settings = dynamic_settings(2, ports, tmp_path / "node2")
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        where = ("--bootstrap-controller", f"{HOST}:{ports[0]}")
        output = await asyncio.to_thread(
            run_tool, "kafka-metadata-quorum", *where, "--command-config", str(config), "add-controller"
        )
        assert "Added controller 2" in output.stdout
        quorum = nodes[0].broker.metadata_log
        assert [voter.key.id for voter in quorum.voters] == [1, 2]
        directory_id = quorum.voters.voters[1].key.directory_id
        await until(lambda: len(nodes[1].broker.metadata_log.voters) == 2)
        removal = ("remove-controller", "--controller-id", "2", "--controller-directory-id", uuid_text(directory_id))
        output = await asyncio.to_thread(run_tool, "kafka-metadata-quorum", *where, *removal)
        assert "Removed" in output.stdout
        assert [voter.key.id for voter in quorum.voters] == [1]

    asyncio.run(asyncio.wait_for(with_nodes(scenario), 200))


def test_a_node_that_founded_its_quorum_alone_moves_to_us_and_back(tmp_path: Path) -> None:
    """As docs/operations.md says: the same settings on the same folder, and each reads what the other led."""
    with ApacheKafka(log_dir=tmp_path / "data") as kafka:
        run_tool("kafka-topics", "--bootstrap-server", kafka.bootstrap_servers, "--create", "--topic", "theirs")
        kafka.stop()

        async def with_us() -> None:
            node = Node(load_broker_config(kafka.properties()))
            await node.start()
            try:
                assert node.broker.metadata_log.is_leader
            finally:
                await node.stop()

        asyncio.run(asyncio.wait_for(with_us(), 60))
        kafka.start()
        listed = run_tool("kafka-topics", "--bootstrap-server", kafka.bootstrap_servers, "--list").stdout
        assert listed.split() == ["theirs"]


def test_our_command_adds_and_removes_apache_kafkas_voters(tmp_path: Path) -> None:
    """`moldau quorum` through a broker of theirs; another node of theirs watches, votes, and goes for good."""
    place, port = free_ports(2)
    listener = f"CONTROLLER://{HOST}:{port}"
    listeners = f"PLAINTEXT://{HOST}:{place},{listener}"
    with ApacheKafka(log_dir=tmp_path / "first") as first:
        settings = {
            "node.id": "2",
            "listeners": listeners,
            "advertised.listeners": listeners,
            "controller.quorum.bootstrap.servers": f"{HOST}:{first.controller_port}",
        }
        second = ApacheKafka(
            settings,
            log_dir=tmp_path / "second",
            cluster_id=first.cluster_id,
            ports=(place, port),
            format_options=("--no-initial-controllers",),
        )
        moldau = Command(first.bootstrap_servers, str(tmp_path))

        def is_a(role: str) -> bool:
            rows = moldau.ok("quorum", "replicas", "--json").json
            return [row["role"] for row in rows if row["id"] == 2] == [role]

        with second:
            wait_for(lambda: is_a("observer"), "the second controller is seen")
            (row,) = [row for row in moldau.ok("quorum", "replicas", "--json").json if row["id"] == 2]
            who = ("2", row["directory"])
            assert moldau.ok("quorum", "add-voter", *who, "--listener", listener).out == "2 is a voter\n"
            wait_for(lambda: is_a("voter"), "it votes")
            removed = moldau.ok("quorum", "remove-voter", *who, "--json").json
            assert removed == {"voter": 2, "directory": row["directory"], "result": "removed"}
            wait_for(lambda: not is_a("voter"), "it votes no more")
        rows = "broker", "list", "--format", "{id} {state}"
        wait_for(lambda: "2 online" not in moldau.ok(*rows).lines, "it is away")
        assert moldau.ok("broker", "unregister", "2").out == "unregistered 2\n"
        moldau.refused(4, "broker", "unregister", "2")
