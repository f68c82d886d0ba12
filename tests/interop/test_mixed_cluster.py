"""One cluster of two Apache Kafka nodes and one of ours, all brokers and controllers: they elect, replicate, fence and
coordinate each other. In the end the replicas are the same, byte for byte."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.broker.config import load_broker_config
from moldau.broker.node import Node
from tests.interop.apache_kafka import HOST, ApacheKafka, free_ports, random_id, run_tool

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
