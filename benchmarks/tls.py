"""TLS beside Apache Kafka's TLS: same machine, same run, same client (librdkafka), rounds taken in turns.

Each broker has one listener for TLS and a plain one; what encryption costs is seen beside the plain one of the same
broker. Certificates are elliptic curve (P-256), TLS 1.3, and whatever suite the two sides choose.
"""

import re
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.broker import KAFKA_JVM, PEER, Server, consumed_per_second, create, moldau, produced_per_second
from benchmarks.rows import Row
from moldau.testing.ports import free_ports
from tests.interop.apache_kafka import ApacheKafka
from tests.net.certificates import as_pkcs8, make_identity

ROUNDS = 3
SIZE, COUNT = 1_000, 100_000


def rows() -> list[Row]:
    found: dict[tuple[str, str, str], list[float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tls-bench-")))
        tls = _tls(folder)
        servers = {"moldau": _moldau(stack, folder, tls), PEER: _kafka(stack, folder, tls)}
        for turn in range(ROUNDS + 1):  # the first warms up the JVM, and is not counted
            for who, ways in servers.items():
                for way, server in ways.items():
                    topic = f"bench-{way}-{turn}"
                    create(server, topic)
                    produced = produced_per_second(server, topic, COUNT, SIZE)
                    consumed = consumed_per_second(server, topic, COUNT)
                    if turn:
                        found.setdefault((who, way, "produce"), []).append(produced)
                        found.setdefault((who, way, "consume"), []).append(consumed)
    middle = {key: statistics.median(values) for key, values in found.items()}

    def row(name: str, way: str, what: str) -> Row:
        return Row(name, middle["moldau", way, what], "records/s", {PEER: middle[PEER, way, what]})

    def share(name: str, what: str) -> Row:
        ours, theirs = (middle[who, "TLS", what] / middle[who, "PLAINTEXT", what] * 100 for who in ("moldau", PEER))
        return Row(name, ours, "%", {PEER: theirs})

    return [
        row("Produce 1 KB over TLS, librdkafka, acks=all", "TLS", "produce"),
        row("Consume 1 KB over TLS, librdkafka", "TLS", "consume"),
        row("Produce 1 KB, the same run without TLS", "PLAINTEXT", "produce"),
        row("Consume 1 KB, the same run without TLS", "PLAINTEXT", "consume"),
        share("Produce: what TLS leaves of it", "produce"),
        share("Consume: what TLS leaves of it", "consume"),
    ]


def _tls(folder: Path) -> dict[str, str]:
    authority = make_identity([("O", "bench"), ("CN", "authority")])
    server = make_identity([("CN", "localhost")], authority)
    (folder / "ca.pem").write_text(authority.certificate)
    key_store = folder / "server.pem"
    key_store.write_text(as_pkcs8(server) + server.certificate)
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(key_store)}


def _ways(plain: int, tls: int, pid: int, folder: Path) -> dict[str, Server]:
    client = {"security.protocol": "SSL", "ssl.ca.location": str(folder / "ca.pem")}
    return {
        "PLAINTEXT": Server(f"127.0.0.1:{plain}", pid),
        "TLS": Server(f"127.0.0.1:{tls}", pid, client),
    }


def _moldau(stack: ExitStack, folder: Path, secured: dict[str, str]) -> dict[str, Server]:
    plain, tls = free_ports(2)
    listeners = f"PLAINTEXT://127.0.0.1:{plain},TLS://127.0.0.1:{tls}"
    settings = {
        "listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TLS:SSL,CONTROLLER:PLAINTEXT",
        **secured,
    }
    server = stack.enter_context(moldau(settings))
    return _ways(plain, tls, server.pid, folder)


def _kafka(stack: ExitStack, folder: Path, secured: dict[str, str]) -> dict[str, Server]:
    plain, tls, controller = free_ports(3)
    listeners = f"PLAINTEXT://127.0.0.1:{plain},TLS://127.0.0.1:{tls},CONTROLLER://127.0.0.1:{controller}"
    settings = {
        "listeners": listeners,
        "advertised.listeners": re.sub(r",CONTROLLER.*", "", listeners),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TLS:SSL,CONTROLLER:PLAINTEXT",
        **secured,
    }
    kafka = stack.enter_context(ApacheKafka(settings, ports=(plain, controller), jvm=KAFKA_JVM))
    return _ways(plain, tls, kafka.pid, folder)
