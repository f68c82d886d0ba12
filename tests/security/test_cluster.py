"""Nodes that prove themselves to each other: replication, elections and forwarding over secured listeners."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from moldau.broker.config import InvalidConfig, read_properties
from moldau.client.connection import Connection
from moldau.client.security import librdkafka_security
from moldau.client.settings import parse_client_settings
from moldau.testing import Broker, Cluster, Security
from moldau.testing.ports import free_ports
from moldau.wire import messages as m
from tests.net.certificates import as_pkcs8, make_identity
from tests.security.tokens import Issuer


def create(settings: dict[str, Any], topic: str, replicas: int) -> None:
    admin = AdminClient(settings)
    for done in admin.create_topics([NewTopic(topic, 3, replicas)]).values():
        done.result(20)


def write(settings: dict[str, Any], topic: str) -> None:
    producer = Producer(settings | {"acks": "all", "log_level": 0})
    for number in range(100):
        producer.produce(topic, str(number).encode())
    assert producer.flush(20) == 0


def write_and_read(settings: dict[str, Any], topic: str, replicas: int) -> None:
    create(settings, topic, replicas)
    write(settings, topic)
    consumer = Consumer(settings | {"group.id": "g", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        seen: set[bytes | None] = set()
        while len(seen) < 100:
            message = consumer.poll(20)
            assert message is not None
            assert message.error() is None
            seen.add(message.value())
    finally:
        consumer.close()


def token_owner(address: str, trusted: Path) -> str:
    """Whom the controller takes a client for that asks one of the brokers."""
    settings = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "alice-secret",
        "ssl.truststore.location": str(trusted),
    }
    host, _, port = address.rpartition(":")
    with Connection(host, int(port), parse_client_settings(settings)) as connection:
        answer = connection.call(m.CreateDelegationTokenRequest(max_lifetime_ms=-1), m.CreateDelegationTokenResponse)
    assert answer.error_code == 0
    return answer.token_requester_principal_name


def test_three_nodes(tmp_path: Path) -> None:
    authority = make_identity([("CN", "authority")])
    node = make_identity([("CN", "localhost")], authority)
    (tmp_path / "ca.pem").write_text(authority.certificate)
    (tmp_path / "node.pem").write_text(as_pkcs8(node) + node.certificate)
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="node" password="node-secret" user_node="node-secret" user_alice="alice-secret";'
    )
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tmp_path / "node.pem"),
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": jaas,
        "listener.name.controller.plain.sasl.jaas.config": jaas,
        "delegation.token.secret.key": "the key of tokens",
        # Sessions end, and go on: the nodes log in again.
        "connections.max.reauth.ms": "2000",
    }
    with Cluster(3, settings) as cluster:
        client: dict[str, Any] = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(tmp_path / "ca.pem"),
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "alice-secret",
        }
        write_and_read(client, "rivers", 3)
        for number in (1, 2, 3):  # two of which ask the third, in alice's name
            assert token_owner(cluster.address(number), tmp_path / "ca.pem") == "alice"
        leader = cluster.controller_id()
        cluster.crash(leader)
        write(client, "rivers")


def test_nodes_log_in_with_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file holds the token; whoever renews it writes a new one there, and nobody is restarted: the nodes that stay
    log in with it at the one that comes back."""
    caplog.set_level(logging.INFO, "moldau.audit")
    issuer = Issuer(tmp_path)
    token = tmp_path / "token"
    token.write_text(issuer.token(sub="node") + "\n")
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.mechanism.controller.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": issuer.file.as_uri(),
        "sasl.oauthbearer.expected.audience": "rivers",
        "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:node;User:renewed;User:olga",
    }
    client: dict[str, Any] = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "OAUTHBEARER",
        "oauth_cb": lambda _: (issuer.token(), time.time() + 250),
    }
    with Cluster(3, settings) as cluster:
        client["bootstrap.servers"] = cluster.bootstrap_servers
        write_and_read(client, "rivers", 3)
        leader = cluster.controller_id()
        token.write_text(issuer.token(sub="renewed"))
        cluster.crash(leader)
        caplog.clear()
        cluster.start_node(leader)
        write(client, "rivers")
        logins = {json.loads(line)["principal"] for line in caplog.messages if '"authentication"' in line}
        assert logins == {"User:renewed", "User:olga"}
    token.write_text("\n")
    with pytest.raises(InvalidConfig, match="holds no token"):
        Cluster(3, settings).__enter__()


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [("SASL_SSL", "SCRAM-SHA-512"), ("SASL_PLAINTEXT", "SCRAM-SHA-256"), ("SASL_SSL", "PLAIN"), ("SSL", "PLAIN")],
)
def test_a_secure_broker_in_a_test(protocol: str, mechanism: str) -> None:
    users = {"alice": 'alice "and" \\ secret', "bob": "bob-secret"}
    with Broker(security=Security(protocol, mechanism, users)) as broker:
        write_and_read(broker.client_settings(), "t", 1)
        assert AdminClient(broker.client_settings("bob")).list_topics("t", timeout=10).topics["t"].error is None


def with_nobody(settings: dict[str, Any]) -> None:
    """Whoever is not `admin` may do nothing."""
    admin = AdminClient(settings)
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion("eve", credential, b"eve-secret")
    admin.alter_user_scram_credentials([change])["eve"].result(10)
    eve = AdminClient(settings | {"sasl.username": "eve", "sasl.password": "eve-secret"})
    assert "t" not in eve.list_topics(timeout=10).topics


def test_moldau_cluster_secure(tmp_path: Path) -> None:
    """One command: certificates, users, and a client.properties that gets in."""
    base_port = free_ports(1)[0]
    command = [sys.executable, "-m", "moldau", "cluster", "--secure", "-n", "3", "-d", str(tmp_path / "c")]
    with subprocess.Popen([*command, "-p", str(base_port)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready ")
            properties = read_properties(str(tmp_path / "c" / "client.properties"))
            settings: dict[str, Any] = librdkafka_security(properties) | {
                "bootstrap.servers": properties["bootstrap.servers"]
            }
            create(settings, "t", 3)
            write(settings, "t")
            with_nobody(settings)
        finally:
            process.terminate()
            process.wait(30)
    for secret in ("node-1.properties", "client.properties", "security/node.pem", "security/admin-password"):
        assert (tmp_path / "c" / secret).stat().st_mode & 0o077 == 0
