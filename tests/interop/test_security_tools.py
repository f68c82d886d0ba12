"""Kafka's own tools for users and delegation tokens, on secured brokers: Moldau's and Apache Kafka's print the same;
`moldau token` does, too.

And what Kafka's tool formatted with a first user, Moldau starts with.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from moldau.testing import Broker
from moldau.testing.ports import free_ports
from tests.cli.running import Command
from tests.interop.apache_kafka import HOST, TOOLS, ApacheKafka, java_command
from tests.interop.peers.workshop import run_unchecked
from tests.net.certificates import as_pkcs8, make_identity

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
MASKS = (
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\]", "[TIME]"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d", "DATE"),
    (r"(?<=tokenId : )\S+|\b[A-Za-z0-9_-]{22}(?= )", "TOKEN"),
    (r"[A-Za-z0-9+/]{86}==", "HMAC"),
    # Kafka's answer has no order.
    (r"(SCRAM-SHA-512=\S+), (SCRAM-SHA-256=\S+)", r"\2, \1"),
)


@dataclass(slots=True)
class Tour:
    """What the tools printed on one broker."""

    ports: dict[str, int]
    folder: Path
    printed: dict[str, str] = field(default_factory=dict)
    hmac: str = ""

    def run(self, step: str, tool: str, *arguments: str, listener: str = "PLAINTEXT", config: str = "") -> str:
        server: tuple[str, ...] = ("--bootstrap-server", f"{HOST}:{self.ports[listener]}")
        if config:
            path = self.folder / f"{listener}-{step.replace(' ', '-')}.properties"
            path.write_text(config)
            server += ("--command-config", str(path))
        done = run_unchecked(java_command(TOOLS[tool], *server, *arguments), timeout_s=90)
        text = f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        masked = text
        for pattern, word in MASKS:
            masked = re.sub(pattern, word, masked)
        lines = (re.sub(r"\s+", " ", line).strip() for line in masked.splitlines())
        self.printed[step] = "\n".join(line for line in lines if line and not line.startswith("at "))
        return text


def login(protocol: str, mechanism: str, user: str, password: str, folder: Path) -> str:
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    return (
        f"security.protocol={protocol}\nsasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={module} username="{user}" password="{password}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={folder / 'ca.pem'}\n"
    )


def users(tour: Tour) -> None:
    who = ("--entity-type", "users", "--entity-name", "ann")
    one, other = "SCRAM-SHA-256=[iterations=8192,password=ann-secret]", "SCRAM-SHA-512=[password=ann-secret]"
    tour.run("both at once", "kafka-configs", *who, "--alter", "--add-config", f"{one},{other}")
    tour.run("add", "kafka-configs", *who, "--alter", "--add-config", one)
    tour.run("add the other", "kafka-configs", *who, "--alter", "--add-config", other)
    tour.run("describe", "kafka-configs", *who, "--describe")
    tour.run("weak", "kafka-configs", *who, "--alter", "--add-config", "SCRAM-SHA-256=[iterations=100,password=x]")
    tour.run("remove", "kafka-configs", *who, "--alter", "--delete-config", "SCRAM-SHA-256")
    tour.run("remove again", "kafka-configs", *who, "--alter", "--delete-config", "SCRAM-SHA-256")
    tour.run("describe what is left", "kafka-configs", "--entity-type", "users", "--describe")


def tokens(tour: Tour) -> None:
    """By ann, over TLS; and a login with the token itself."""
    config = login("SASL_SSL", "SCRAM-SHA-512", "ann", "ann-secret", tour.folder)
    tool = "kafka-delegation-tokens"

    def run(step: str, *arguments: str) -> str:
        return tour.run(step, tool, *arguments, listener="SASL_SSL", config=config)

    made = run("create", "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    found = re.search(r"([A-Za-z0-9_-]{22}) +([A-Za-z0-9+/]{86}==)", made)
    assert found is not None, made
    token_id, hmac = found.groups()
    run("describe tokens", "--describe", "--owner-principal", "User:ann")
    run("renew", "--renew", "--renew-time-period", "-1", "--hmac", hmac)
    with_token = config.replace('username="ann"', f'username="{token_id}" tokenauth="true"')
    with_token = with_token.replace("ann-secret", hmac)
    tour.run("use it", "kafka-topics", "--list", listener="SASL_SSL", config=with_token)
    run("expire", "--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    run("expire again", "--expire", "--expiry-time-period", "-1", "--hmac", hmac)


def own_tokens(tour: Tour) -> None:
    """The same with `moldau token`."""
    config = tour.folder / "own.properties"
    config.write_text(login("SASL_SSL", "SCRAM-SHA-512", "ann", "ann-secret", tour.folder))
    command = Command(f"{HOST}:{tour.ports['SASL_SSL']}", str(tour.folder))

    def run(step: str, *arguments: str, token: str = "") -> str:
        ended = command("token", *arguments, "--config", str(config))
        text = f"exit {int(ended.code)}\n{ended.out}\n{ended.err}"
        for pattern, word in ((r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"), *MASKS, (re.escape(token) or "^", "")):
            text = re.sub(pattern, word, text)
        tour.printed[step] = text
        return ended.out

    def until_listed(is_there: bool) -> None:
        """A broker hears of it a moment after the controller has answered."""
        deadline = time.monotonic() + 60
        while (token in command("token", "list", "--json", "--config", str(config)).out) != is_there:
            assert time.monotonic() < deadline, "the broker does not hear of the change"

    made = json.loads(run("moldau creates", "create", "-r", "User:bob", "--json"))
    token = made["token"]
    tour.printed["moldau creates"] = tour.printed["moldau creates"].replace(token, "TOKEN")
    until_listed(True)
    run("moldau lists", "list", "--owner", "User:ann", "--secrets", "--json", token=token)
    run("moldau renews", "renew", token, "--for", "1h", token=token)
    run("moldau expires later", "expire", made["hmac"], "--in", "10m", token=token)
    run("moldau expires", "expire", token, token=token)
    until_listed(False)
    run("moldau expires again", "expire", token, token=token)
    run("moldau renews what is gone", "renew", made["hmac"], token=token)
    run("moldau for somebody else", "create", "--owner", "User:eve")
    tour.printed["moldau for somebody else"] = re.sub(
        r"(?m)^(token +)\S+$", r"\1TOKEN", tour.printed["moldau for somebody else"]
    )


def logins(tour: Tour) -> None:
    wrong = login("SASL_PLAINTEXT", "PLAIN", "bob", "wrong", tour.folder)
    right = login("SASL_SSL", "PLAIN", "bob", "bob-secret", tour.folder)
    tour.run("plain", "kafka-topics", "--list", listener="SASL_SSL", config=right)
    tour.run("wrong password", "kafka-topics", "--list", listener="SASL_PLAINTEXT", config=wrong)
    unknown = login("SASL_PLAINTEXT", "SCRAM-SHA-256", "nobody", "x", tour.folder)
    tour.run("unknown user", "kafka-topics", "--list", listener="SASL_PLAINTEXT", config=unknown)


@pytest.fixture(scope="module")
def tours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tour, Tour]]:
    """Moldau's and Apache Kafka's, made at the same time."""
    folder = tmp_path_factory.mktemp("secured")
    authority = make_identity([("CN", "authority")])
    server = make_identity([("CN", HOST)], authority)
    (folder / "ca.pem").write_text(authority.certificate)
    (folder / "server.pem").write_text(as_pkcs8(server) + server.certificate)
    names = ("PLAINTEXT", "CONTROLLER", "SASL_PLAINTEXT", "SASL_SSL")
    common = {
        "listener.security.protocol.map": ",".join(
            f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in names
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "delegation.token.secret.key": "the key of tokens",
    }
    for name in ("sasl_plaintext", "sasl_ssl"):
        common |= {
            f"listener.name.{name}.plain.sasl.jaas.config": f'{PLAIN} user_bob="bob-secret";',
            f"listener.name.{name}.scram-sha-256.sasl.jaas.config": f"{SCRAM};",
            f"listener.name.{name}.scram-sha-512.sasl.jaas.config": f"{SCRAM};",
        }
    made = []
    for own in (names[:1] + names[2:], names):
        ports = dict(zip(own, free_ports(len(own)), strict=True))
        made.append((ports, ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())))
    (moldau_ports, moldau_listeners), (kafka_ports, kafka_listeners) = made
    kafka = ApacheKafka(
        common | {"listeners": kafka_listeners, "advertised.listeners": kafka_listeners},
        ports=(kafka_ports["PLAINTEXT"], kafka_ports["CONTROLLER"]),
    )
    with Broker(common | {"listeners": moldau_listeners}), kafka, ThreadPoolExecutor(2) as pool:
        both = []
        for name, ports in (("moldau", moldau_ports), ("kafka", kafka_ports)):
            own_folder = folder / name
            own_folder.mkdir()
            (own_folder / "ca.pem").write_text(authority.certificate)
            both.append(Tour(ports, own_folder))
        for stop in (users, tokens, logins):
            list(pool.map(stop, both))
        for tour in both:  # one after the other: the command runs in this process
            own_tokens(tour)
        yield both[0], both[1]


STEPS = (
    *("both at once", "add", "add the other", "describe", "weak", "remove", "remove again", "describe what is left"),
    *("create", "describe tokens", "renew", "use it", "expire", "expire again"),
    *("moldau creates", "moldau lists", "moldau renews", "moldau expires later", "moldau expires"),
    *("moldau expires again", "moldau renews what is gone", "moldau for somebody else"),
    *("plain", "wrong password", "unknown user"),
)


@pytest.mark.parametrize("step", STEPS)
def test_the_tools_print_the_same(tours: tuple[Tour, Tour], step: str) -> None:
    moldau, kafka = tours
    assert moldau.printed[step] == kafka.printed[step]


def test_users_that_kafkas_tool_formatted_a_folder_with(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = tmp_path / "server.properties"
    config.write_text(
        f"process.roles=broker,controller\nnode.id=1\nlog.dirs={tmp_path / 'data'}\n"
        f"listeners=SASL_PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:1\ncontroller.listener.names=CONTROLLER\n"
        f"controller.quorum.voters=1@{HOST}:1\ninter.broker.listener.name=SASL_PLAINTEXT\n"
        "listener.security.protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT\n"
        "sasl.enabled.mechanisms=SCRAM-SHA-256\nsasl.mechanism.inter.broker.protocol=SCRAM-SHA-256\n"
    )
    user = "SCRAM-SHA-256=[name=ann,password=ann-secret]"
    command = java_command(
        TOOLS["kafka-storage"], "format", "--config", str(config), "--cluster-id", "MkU3OEVBNTcwNTJENDM2Qg",
        "--add-scram", user,
    )  # fmt: skip
    done = run_unchecked(command, timeout_s=90)
    assert done.returncode == 0, done.stderr
    settings = {
        "listeners": f"SASL_PLAINTEXT://{HOST}:{port}",
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
    }
    with Broker(settings, data_dir=str(tmp_path / "data")):
        admin = AdminClient(
            {
                "bootstrap.servers": f"{HOST}:{port}",
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanisms": "SCRAM-SHA-256",
                "sasl.username": "ann",
                "sasl.password": "ann-secret",
            }
        )
        assert admin.list_topics(timeout=10).brokers
