"""A broker of ours with a controller and broker of Apache Kafka, over SASL_SSL on every listener they share: each logs
in at the other, replicates from it, and forwards in the client's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.testing import Broker
from moldau.testing.ports import free_ports
from tests.cluster.workload import wait_until
from tests.interop.apache_kafka import HOST, ApacheKafka
from tests.net.certificates import as_pkcs8, make_identity

JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="node" password="node-secret" user_node="node-secret" user_alice="alice-secret";'
)


def write(client: dict[str, Any], topic: str) -> None:
    producer = Producer(client | {"acks": "all"})
    for number in range(200):
        producer.produce(topic, str(number).encode())
    assert producer.flush(30) == 0


def test_kafka_and_moldau_log_in_at_each_other(tmp_path: Path) -> None:
    authority = make_identity([("CN", "authority")])
    node = make_identity([("CN", HOST)], authority)
    (tmp_path / "ca.pem").write_text(authority.certificate)
    (tmp_path / "node.pem").write_text(as_pkcs8(node) + node.certificate)
    plain, kafka_port, controller, ours = free_ports(4)
    common = {
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,NODES:SASL_SSL,CONTROLLER:SASL_SSL",
        "inter.broker.listener.name": "NODES",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.nodes.plain.sasl.jaas.config": JAAS,
        "listener.name.controller.plain.sasl.jaas.config": JAAS,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tmp_path / "node.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "min.insync.replicas": "2",
        "offsets.topic.replication.factor": "2",
    }
    addresses = f"PLAINTEXT://{HOST}:{plain},NODES://{HOST}:{kafka_port}"
    kafka = ApacheKafka(
        common | {"listeners": f"{addresses},CONTROLLER://{HOST}:{controller}", "advertised.listeners": addresses},
        ports=(plain, controller),
        format_options=(),
    )
    moldau = {"process.roles": "broker", "node.id": "2", "listeners": f"NODES://{HOST}:{ours}"}
    with kafka, Broker(common | moldau):
        client: dict[str, Any] = {
            "bootstrap.servers": f"{HOST}:{ours}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "alice-secret",
            "ssl.ca.location": str(tmp_path / "ca.pem"),
            "log_level": 0,
        }
        admin = AdminClient(client)
        admin.create_topics([NewTopic("t", 4, 2)])["t"].result(30)  # forwarded by ours to Kafka's controller

        def in_sync() -> bool:
            partitions = admin.list_topics("t", timeout=20).topics["t"].partitions.values()
            return len({each.leader for each in partitions}) == 2 and all(len(each.isrs) == 2 for each in partitions)

        wait_until(in_sync, "both lead, and both are in sync")
        write(client, "t")  # each leads some partitions, and the other must have the records
        consumer = Consumer(client | {"group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        seen: set[bytes | None] = set()
        while len(seen) < 200:
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None
            seen.add(message.value())
        consumer.close()
