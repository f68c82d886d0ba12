"""One cluster of two Apache Kafka nodes and one of ours, all brokers and controllers: they elect, replicate, fence and
coordinate each other. In the end the replicas are the same, byte for byte. And brokers of one kind with a controller of
the other: what clients ask of the broker is forwarded, and understood."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from moldau.broker.config import load_broker_config
from moldau.broker.node.node import Node
from moldau.testing.ports import free_ports
from moldau.wire import messages as m
from tests.cluster.workload import wait_until
from tests.interop.apache_kafka import HOST, ApacheKafka, random_id, run_tool

PARTITIONS = 6
OURS = 3
QUIET = {"log_level": 0, "enable.metrics.push": False}


def settings(node_id: int, ports: list[int], root: Path) -> dict[str, str]:
    voters = ",".join(f"{index + 1}@{HOST}:{port}" for index, port in enumerate(ports[3:]))
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{HOST}:{ports[node_id - 1]},CONTROLLER://{HOST}:{ports[node_id + 2]}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{ports[node_id - 1]}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(root / f"node{node_id}"),
        "offsets.topic.replication.factor": "3",
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
        "transaction.state.log.num.partitions": "3",
        "min.insync.replicas": "2",
    }


@contextmanager
def apache_nodes(ports: list[int], root: Path) -> Iterator[dict[int, ApacheKafka]]:
    """Nodes 1 and 2, not started yet."""
    cluster_id = random_id()
    nodes = {
        node_id: ApacheKafka(
            settings(node_id, ports, root),
            log_dir=root / f"node{node_id}",
            cluster_id=cluster_id,
            ports=(ports[node_id - 1], ports[node_id + 2]),
            format_options=(),
        )
        for node_id in (1, 2)
    }
    try:
        yield nodes
    finally:
        for node in nodes.values():
            node.kill()
            node.close()


class Client:
    """Stock clients, in a thread of their own."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.admin = AdminClient({"bootstrap.servers": servers, **QUIET})
        self.sent: list[bytes] = []

    def isrs(self) -> list[list[int]]:
        topic = self.admin.list_topics("t", timeout=20).topics["t"]
        return [sorted(each.isrs) for each in topic.partitions.values()]

    def create(self) -> None:
        self.admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(30)

    def produce(self, name: str, count: int) -> None:
        errors: list[KafkaError] = []

        def told(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                errors.append(error)

        producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True, **QUIET})
        for number in range(count):
            value = f"{name} {number}".encode()
            producer.produce("t", value, partition=number % PARTITIONS, on_delivery=told)
            self.sent.append(value)
            producer.poll(0)
        assert producer.flush(120) == 0
        assert not errors

    def transact(self) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "transactional.id": "x", **QUIET})
        producer.init_transactions(60)
        for decision in ("abort", "commit", "abort", "commit"):
            producer.begin_transaction()
            for number in range(60):
                value = f"{decision} {number}".encode()
                producer.produce("t", value, partition=number % PARTITIONS)
                if decision == "commit":
                    self.sent.append(value)
            (producer.commit_transaction if decision == "commit" else producer.abort_transaction)(60)

    def read(self, group: str) -> list[bytes]:
        """Everything that is committed, as a member of a group."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                **QUIET,
            }
        )
        consumer.subscribe(["t"])
        found: list[bytes] = []
        deadline = time.monotonic() + 120
        while len(found) < len(self.sent) and time.monotonic() < deadline:
            found += [each.value() or b"" for each in consumer.consume(500, 0.5) if not each.error()]
        consumer.commit(asynchronous=False)
        assert len(consumer.committed([TopicPartition("t", 0)], timeout=30)) == 1
        consumer.close()
        return found


async def until(condition: Callable[[], object]) -> None:
    while not await asyncio.to_thread(condition):
        await asyncio.sleep(0.2)


def test_two_of_theirs_and_one_of_ours_are_one_cluster(tmp_path: Path) -> None:
    ports = free_ports(6)

    async def our_node() -> Node:
        node = Node(load_broker_config(settings(OURS, ports, tmp_path)))
        await node.start()
        return node

    async def scenario(theirs: dict[int, ApacheKafka]) -> None:
        config = tmp_path / "ours.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings(OURS, ports, tmp_path).items()))
        await asyncio.to_thread(run_tool, "kafka-storage", "format", "-t", theirs[1].cluster_id, "-c", str(config))
        starting = [asyncio.create_task(asyncio.to_thread(each.start)) for each in theirs.values()]
        node = await our_node()
        await asyncio.gather(*starting)
        client = Client(",".join(f"{HOST}:{port}" for port in ports[:3]))

        def all_in_sync() -> bool:
            return client.isrs() == [[1, 2, 3]] * PARTITIONS

        try:
            await asyncio.to_thread(client.create)
            await asyncio.to_thread(client.produce, "first", 3000)
            await asyncio.to_thread(client.transact)
            assert sorted(await asyncio.to_thread(client.read, "g1")) == sorted(client.sent)
            for victim, each in theirs.items():  # with both gone in turn, ours has led everything there is to lead
                await until(all_in_sync)
                await asyncio.to_thread(each.kill)
                await asyncio.to_thread(client.produce, f"without {victim}", 600)
                await asyncio.to_thread(each.start)
            await until(all_in_sync)
            await node.stop()
            await asyncio.to_thread(client.produce, "without ours", 600)
            node = await our_node()
            await until(all_in_sync)
            assert sorted(await asyncio.to_thread(client.read, "g2")) == sorted(client.sent)
        finally:
            await node.stop()

    with apache_nodes(ports, tmp_path) as theirs:
        asyncio.run(asyncio.wait_for(scenario(theirs), 500))
    for partition in range(PARTITIONS):
        replicas = {
            b"".join(
                path.read_bytes() for path in sorted((tmp_path / f"node{node_id}" / f"t-{partition}").glob("*.log"))
            )
            for node_id in (1, 2, OURS)
        }
        assert len(replicas) == 1


# -- brokers of one kind, a controller of the other


def controller_settings(ports: list[int], folder: Path) -> dict[str, str]:
    return {
        "process.roles": "controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{ports[1]}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"CONTROLLER://{HOST}:{ports[1]}",
        "advertised.listeners": f"CONTROLLER://{HOST}:{ports[1]}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(folder),
    }


def broker_settings(ports: list[int], folder: Path) -> dict[str, str]:
    return controller_settings(ports, folder) | {
        "process.roles": "broker",
        "node.id": "2",
        "listeners": f"PLAINTEXT://{HOST}:{ports[0]}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{ports[0]}",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "3",
    }


def command_the_cluster(port: int) -> None:
    """Everything that a broker forwards, by Apache Kafka's tools."""
    server = f"{HOST}:{port}"

    def tool(name: str, *arguments: str) -> str:
        return run_tool(name, "--bootstrap-server", server, *arguments).stdout

    tool("kafka-topics", "--create", "--topic", "t", "--partitions", "2", "--replication-factor", "1")
    tool("kafka-topics", "--alter", "--topic", "t", "--partitions", str(PARTITIONS))
    tool("kafka-configs", "--alter", "--topic", "t", "--add-config", "retention.ms=77777")
    assert "retention.ms=77777" in tool("kafka-configs", "--describe", "--topic", "t")
    tool("kafka-configs", "--alter", "--entity-type", "brokers", "--entity-default", "--add-config", "num.io.threads=5")
    assert "num.io.threads=5" in tool("kafka-configs", "--describe", "--entity-type", "brokers", "--entity-default")
    client = Client(server)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "t", {"retention.ms": "88888"})
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        client.admin.alter_configs([resource])[resource].result(30)  # the old request, with the old meaning
    assert "retention.ms=88888" in tool("kafka-configs", "--describe", "--topic", "t")
    assert "LeaderId:               1" in tool("kafka-metadata-quorum", "describe", "--status")
    assert "No partition reassignments found." in tool("kafka-reassign-partitions", "--list")
    tool("kafka-leader-election", "--election-type", "preferred", "--all-topic-partitions")
    tool("kafka-features", "downgrade", "--feature", "group.version=0")
    tool("kafka-features", "upgrade", "--feature", "group.version=1")
    client.produce("through", 60)
    assert sorted(client.read("g")) == sorted(client.sent)
    tool("kafka-topics", "--delete", "--topic", "t")
    wait_until(lambda: "t" not in client.admin.list_topics(timeout=20).topics, "the topic is gone")


def test_their_broker_forwards_to_our_controller(tmp_path: Path) -> None:
    ports = free_ports(2)

    async def scenario() -> None:
        node = Node(load_broker_config(controller_settings(ports, tmp_path / "ours")))
        await node.start()
        theirs = ApacheKafka(
            broker_settings(ports, tmp_path / "theirs"),
            log_dir=tmp_path / "theirs",
            cluster_id=node.broker.cluster_id,
            ports=(ports[0], ports[1]),
            format_options=(),
        )
        try:
            await asyncio.to_thread(theirs.start)
            await asyncio.to_thread(command_the_cluster, ports[0])
        finally:
            await asyncio.to_thread(theirs.stop)
            theirs.close()
            await node.stop()

    asyncio.run(asyncio.wait_for(scenario(), 300))


def test_our_broker_forwards_to_their_controller(tmp_path: Path) -> None:
    ports = free_ports(2)

    async def scenario() -> None:
        theirs = ApacheKafka(
            controller_settings(ports, tmp_path / "theirs"),
            log_dir=tmp_path / "theirs",
            ports=(ports[0], ports[1]),
            format_options=(),
        )
        try:
            await asyncio.to_thread(theirs.start)
            node = Node(load_broker_config(broker_settings(ports, tmp_path / "ours")))
            await node.start()
            try:
                await asyncio.to_thread(command_the_cluster, ports[0])
                await set_a_quota(node, ports)
            finally:
                await node.stop()
        finally:
            await asyncio.to_thread(theirs.stop)
            theirs.close()

    asyncio.run(asyncio.wait_for(scenario(), 300))


async def set_a_quota(node: Node, ports: list[int]) -> None:
    """Of their controller, since our broker would not enforce it and takes none; it shows what there is."""
    kind = m.AlterClientQuotasRequest
    entry = kind.EntryData([kind.EntityData("user", "ann")], [kind.OpData("producer_byte_rate", 1000.0, False)])
    answer = await node.broker.channels.call(HOST, ports[1], kind([entry]), timeout_ms=20_000)
    assert [each.error_code for each in answer.entries] == [0]
    await until(lambda: node.broker.image.quotas)
    server = ("--bootstrap-server", f"{HOST}:{ports[0]}")
    described = await asyncio.to_thread(run_tool, "kafka-configs", *server, "--describe", "--entity-type", "users")
    assert "Quota configs for user-principal 'ann' are producer_byte_rate=1000.0" in described.stdout
