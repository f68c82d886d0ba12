"""The broker beside Apache Kafka: same machine, same run, same client (librdkafka), rounds taken in turns."""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.rows import Row
from tests.interop.apache_kafka import ApacheKafka

ROUNDS = 3
QUIET = {"log_level": 0}
PEER = "Apache Kafka"
KAFKA_JVM = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:+ExplicitGCInvokesConcurrent",
)


@dataclass(slots=True)
class Server:
    bootstrap_servers: str
    pid: int
    client: dict[str, str] = field(default_factory=dict)
    """What clients need to get in."""


@contextmanager
def moldau(settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="moldau-bench-") as folder:
        command = [sys.executable, "-m", "moldau", "serve", "--listen", "127.0.0.1:0", "--data-dir", folder]
        for key, value in (settings or {}).items():
            command += ["--set", f"{key}={value}"]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready "), line
            try:
                yield Server(line.split()[1], process.pid)
            finally:
                process.send_signal(signal.SIGTERM)


@contextmanager
def apache_kafka(settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """With Kafka's own JVM settings (bin/kafka-server-start), not those of quick tests."""
    with ApacheKafka(settings, jvm=KAFKA_JVM) as kafka:
        yield Server(kafka.bootstrap_servers, kafka.pid)


def acknowledged_since(server: Server, started: float) -> float:
    producer = Producer({"bootstrap.servers": server.bootstrap_servers, **QUIET})
    producer.produce("first", b"x")
    assert producer.flush(60) == 0
    return time.perf_counter() - started


def first_acknowledged_seconds() -> tuple[float, float]:
    """(Moldau on an empty folder, Apache Kafka on a folder formatted before): from exec to the first record."""
    started = time.perf_counter()
    with moldau() as server:
        ours = acknowledged_since(server, started)
    with ApacheKafka(jvm=KAFKA_JVM) as kafka:
        kafka.stop()
        started = time.perf_counter()
        kafka.start()
        theirs = acknowledged_since(Server(kafka.bootstrap_servers, kafka.pid), started)
    return ours, theirs


def resident_megabytes(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def create(server: Server, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers, **server.client, **QUIET})
    for future in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        future.result(30)


def produced_per_second(server: Server, topic: str, count: int, size: int) -> float:
    """From the first call to the last acknowledgement (acks=all, which is the default of every client today)."""
    producer = Producer(
        {
            "bootstrap.servers": server.bootstrap_servers,
            "linger.ms": 5,
            "batch.size": 1 << 18,
            "queue.buffering.max.messages": count,
            "queue.buffering.max.kbytes": 1 << 21,
            **server.client,
            **QUIET,
        }
    )
    producer.list_topics(topic, timeout=20)
    value = b"x" * size
    produce = producer.produce
    started = time.perf_counter()
    for number in range(count):
        produce(topic, value)
        if number & 0xFFF == 0:
            producer.poll(0)
    assert producer.flush(120) == 0
    return count / (time.perf_counter() - started)


def consumed_per_second(server: Server, topic: str, count: int) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap_servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 8 << 20,
            "queued.max.messages.kbytes": 1 << 20,
            "queued.min.messages": 10_000_000,
            **server.client,
            **QUIET,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    seen = 0
    while seen == 0:
        seen = len(consumer.consume(1, timeout=30))
    started = time.perf_counter()
    while seen < count:
        got = consumer.consume(min(50_000, count - seen), timeout=30)
        assert got, f"only {seen} of {count} came"
        seen += len(got)
    rate = count / (time.perf_counter() - started)
    consumer.close()
    return rate


def one_at_a_time_us(bootstrap_servers: str, topic: str, acks: str, count: int) -> list[float]:
    """What single records take, each acknowledged before the next is sent; sorted, the first 200 left out."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "acks": acks,
            "linger.ms": 0,
            "socket.nagle.disable": True,
            **QUIET,
        }
    )
    times = []
    for number in range(count + 200):
        started = time.perf_counter()
        producer.produce(topic, b"x" * 100, partition=0)
        producer.flush()
        if number >= 200:
            times.append((time.perf_counter() - started) * 1e6)
    return sorted(times)


def rows() -> list[Row]:
    starters = {"moldau": moldau, PEER: apache_kafka}
    found: dict[str, dict[str, list[float]]] = {}

    def note(name: str, who: str, value: float) -> None:
        found.setdefault(name, {}).setdefault(who, []).append(value)

    for _ in range(ROUNDS):
        ours, theirs = first_acknowledged_seconds()
        note("start", "moldau", ours)
        note("start", PEER, theirs)
    with ExitStack() as stack:
        servers = {who: stack.enter_context(start()) for who, start in starters.items()}
        for who, server in servers.items():
            note("memory", who, resident_megabytes(server.pid))
        for turn in range(ROUNDS + 1):  # the first warms up the JVM, and is not counted
            for who, server in servers.items():
                for size, count in ((100, 1_000_000), (1_000, 300_000)):
                    topic = f"bench-{size}-{turn}"
                    create(server, topic)
                    produced = produced_per_second(server, topic, count, size)
                    consumed = consumed_per_second(server, topic, count)
                    if turn:
                        note(f"produce {size}", who, produced)
                        note(f"consume {size}", who, consumed)
                create(server, f"latency-{turn}")
                times = one_at_a_time_us(server.bootstrap_servers, f"latency-{turn}", "1", 3_000)
                if turn:
                    note("p50", who, times[len(times) // 2])
                    note("p99", who, times[len(times) * 99 // 100])

    def row(name: str, key: str, unit: str, target: str, better: str, scale: float = 1) -> Row:
        middle = {who: statistics.median(values) * scale for who, values in found[key].items()}
        return Row(name, middle["moldau"], unit, {PEER: middle[PEER]}, target, better)  # type: ignore[arg-type]  # one of the two words

    return [
        row("Start to first acknowledged record", "start", "s", "<= 1/10", "lower"),
        row("Idle memory after start", "memory", "MB", "<= 1/5", "lower"),
        row("Produce 100 B, librdkafka, acks=all", "produce 100", "records/s", ">= 0.8x", "higher"),
        row("Consume 100 B, librdkafka", "consume 100", "records/s", ">= 0.8x", "higher"),
        row("Produce 1 KB, librdkafka, acks=all", "produce 1000", "records/s", ">= 0.8x", "higher"),
        row("Consume 1 KB, librdkafka", "consume 1000", "records/s", ">= 0.8x", "higher"),
        row("Synchronous round trip, acks=1, p50", "p50", "us", "<= 1x", "lower"),
        row("Synchronous round trip, acks=1, p99", "p99", "us", "<= 1x", "lower"),
    ]
