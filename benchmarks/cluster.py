"""Three nodes beside three of Apache Kafka: same machine, same run, same client (librdkafka), rounds taken in turns.

Nodes are processes of their own, broker and controller at once, with their own defaults: a session of 9 s, a quorum
that looks for a new leader when the old one was silent for 2 s. Failing over is probed with the protocol itself, every
few milliseconds, because clients look for a new leader at their own pace; librdkafka's pace is told beside.

`python -m benchmarks.cluster throughput failover` prints only these parts and writes nothing.
"""

import contextlib
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.broker import KAFKA_JVM, PEER, QUIET, one_at_a_time_us, resident_megabytes
from benchmarks.rows import Row
from moldau.broker.config.cluster import NodePorts, cluster_settings
from moldau.records.builder import build_batch
from moldau.testing.ports import free_ports
from moldau.wire import ErrorCode, Message, apis, decode, encode
from moldau.wire import messages as m
from moldau.wire.headers import decode_response_header, encode_request_header
from tests.interop.apache_kafka import ApacheKafkaCluster

HOST = "127.0.0.1"
NODES = 3
WARM_UPS = 2  # rounds that are not counted: three JVMs need more time to get warm than one
ROUNDS = 3
PARTITIONS = 6
FAILOVERS = 3
MANY_PARTITIONS = 1_000
MANY_RECORDS = 100_000
PROBE_SECONDS = 0.01
GIVE_UP_SECONDS = 60.0
SESSION_SECONDS = 9.0  # broker.session.timeout.ms of both

R = TypeVar("R", bound=Message)


# -- the nodes


class Node(Protocol):
    """`start` returns when clients may connect."""

    @property
    def pid(self) -> int: ...
    def start(self) -> Any: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


class MoldauNode:
    """What `moldau cluster` starts, one by one."""

    def __init__(self, properties: Path) -> None:
        self._properties = properties
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        command = [sys.executable, "-m", "moldau", "serve", "--config", str(self._properties)]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        with self._properties.with_suffix(".log").open("a") as output:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True, env=environment)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("ready "), line

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


@dataclass(slots=True)
class Cluster:
    nodes: dict[int, Node]
    addresses: dict[int, tuple[str, int]]
    name: str
    start_seconds: float = 0.0
    running: set[int] = field(default_factory=set)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.addresses.values())

    @property
    def resident_megabytes(self) -> float:
        return sum(resident_megabytes(node.pid) for node in self.nodes.values())

    def start_all(self) -> None:
        started = time.perf_counter()
        with ThreadPoolExecutor(len(self.nodes)) as pool:  # none answers before there is a quorum
            list(pool.map(lambda node: node.start(), self.nodes.values()))
        self.start_seconds = time.perf_counter() - started
        self.running = set(self.nodes)

    def start(self, number: int) -> None:
        self.nodes[number].start()
        self.running.add(number)

    def kill(self, number: int) -> None:
        self.running.remove(number)
        self.nodes[number].kill()

    def stop(self, number: int) -> None:
        self.running.remove(number)
        self.nodes[number].stop()

    def anybody(self) -> tuple[str, int]:
        return self.addresses[min(self.running)]


@contextmanager
def moldau_cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="moldau-bench-") as folder:
        ports = free_ports(2 * NODES)
        pairs = [NodePorts(*ports[2 * place : 2 * place + 2]) for place in range(NODES)]
        nodes: dict[int, Node] = {}
        for number, settings in enumerate(cluster_settings(HOST, pairs, folder), start=1):
            file = Path(folder) / f"node-{number}.properties"
            file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            nodes[number] = MoldauNode(file)
        addresses = {number: (HOST, pair.broker) for number, pair in enumerate(pairs, start=1)}
        cluster = Cluster(nodes, addresses, "moldau")
        try:
            cluster.start_all()
            yield cluster
        finally:
            for node in nodes.values():
                node.kill()
            for file in sorted(Path(folder).glob("*.log")):
                sys.stderr.write("".join(f"{file.stem}: {line}\n" for line in file.read_text().splitlines()[-20:]))


@contextmanager
def kafka_cluster() -> Iterator[Cluster]:
    """Started a second time to be measured: the first formats the folders, which is not part of a start."""
    settings = {"default.replication.factor": "3", "min.insync.replicas": "2", "transaction.state.log.min.isr": "2"}
    with ApacheKafkaCluster(NODES, settings, jvm=KAFKA_JVM) as kafka:
        for node in kafka.nodes:
            node.kill()
        cluster = Cluster(
            dict(enumerate(kafka.nodes, start=1)),
            {number: (HOST, node.port) for number, node in enumerate(kafka.nodes, start=1)},
            PEER,
        )
        cluster.start_all()
        yield cluster


# -- the protocol, asked directly


def ask(address: tuple[str, int], request: Message, version: int, answer: type[R], timeout: float = 2.0) -> R:
    """One request on a connection of its own; OSError if nobody answers."""
    api = apis()[request.number]
    payload = bytes(encode_request_header(api, version, 1, "bench")) + bytes(encode(request, version))
    with socket.create_connection(address, timeout) as connection:
        connection.settimeout(timeout)
        connection.sendall(struct.pack(">i", len(payload)) + payload)
        frame = _receive(connection, *struct.unpack(">i", _receive(connection, 4)))
    _, position = decode_response_header(frame, header_version=api.response_header_version(version))
    return decode(answer, version, frame[position:])


def _receive(connection: socket.socket, size: int) -> memoryview:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("closed before the answer was complete")
        data += part
    return memoryview(bytes(data))


def metadata(cluster: Cluster, topic: str | None = None) -> m.MetadataResponse:
    topics = [m.MetadataRequest.MetadataRequestTopic(name=topic)] if topic is not None else []
    return ask(cluster.anybody(), m.MetadataRequest(topics, allow_auto_topic_creation=False), 12, m.MetadataResponse)


def controller_id(cluster: Cluster) -> int:
    kind = m.DescribeQuorumRequest
    request = kind([kind.TopicData("__cluster_metadata", [kind.PartitionData(0)])])
    return ask(cluster.anybody(), request, 1, m.DescribeQuorumResponse).topics[0].partitions[0].leader_id


def produces(cluster: Cluster, topic: str, index: int) -> bool:
    """Whether somebody leads the partition and acknowledges a record with acks=all."""
    found = metadata(cluster, topic)
    leader = next(each.leader_id for each in found.topics[0].partitions if each.partition_index == index)
    if leader not in cluster.running:
        return False
    batch = bytes(build_batch([(0, int(time.time() * 1000), None, b"x", ())]))
    kind = m.ProduceRequest
    data = kind.TopicProduceData(topic, partition_data=[kind.PartitionProduceData(index, batch)])
    request = kind(None, -1, 1_000, [data])
    answer = ask(cluster.addresses[leader], request, 9, m.ProduceResponse)
    return answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE


def creates(cluster: Cluster, topic: str, turn: int) -> bool:
    """Whether a topic can be created now, or was by an attempt before."""
    address = cluster.addresses[sorted(cluster.running)[turn % len(cluster.running)]]
    request = m.CreateTopicsRequest([m.CreateTopicsRequest.CreatableTopic(topic, 1, 2)], 1_000)
    code = ask(address, request, 7, m.CreateTopicsResponse).topics[0].error_code
    return code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)


def seconds_until(holds: Callable[[], bool], started: float) -> float:
    while True:
        with contextlib.suppress(OSError, StopIteration):
            if holds():
                return time.perf_counter() - started
        assert time.perf_counter() - started < GIVE_UP_SECONDS, "this does not happen any more"
        time.sleep(PROBE_SECONDS)  # the resolution of what is measured; asking more often would disturb it


def is_whole(cluster: Cluster, topic: str, partitions: int) -> bool:
    """Whether every replica of the topic is in sync."""
    found = metadata(cluster, topic).topics[0].partitions
    return len(found) == partitions and all(len(each.isr_nodes) == NODES and each.leader_id > 0 for each in found)


def create(cluster: Cluster, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **QUIET})
    wanted = NewTopic(topic, partitions, NODES, config={"min.insync.replicas": "2"})
    for future in admin.create_topics([wanted], operation_timeout=60, request_timeout=60).values():
        future.result(60)
    seconds_until(lambda: is_whole(cluster, topic, partitions), time.perf_counter())


# -- what is measured

Note = Callable[[str, str, float], None]


def produced_per_second(cluster: Cluster, topic: str, count: int, size: int) -> float:
    """From the first call to the last acknowledgement of all in-sync replicas."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "acks": "all",
            "linger.ms": 5,
            "batch.size": 1 << 18,
            "queue.buffering.max.messages": count,
            "queue.buffering.max.kbytes": 1 << 21,
            **QUIET,
        }
    )
    producer.list_topics(topic, timeout=20)
    value = b"x" * size
    started = time.perf_counter()
    for number in range(count):
        producer.produce(topic, value, partition=number % PARTITIONS)
        if number & 0xFFF == 0:
            producer.poll(0)
    assert producer.flush(120) == 0
    return count / (time.perf_counter() - started)


def throughput(clusters: Sequence[Cluster], note: Note) -> None:
    for turn in range(-WARM_UPS, ROUNDS):
        for cluster in clusters:
            for size, count in ((100, 500_000), (1_000, 100_000)):
                topic = f"produce-{size}-round-{turn}"
                create(cluster, topic, PARTITIONS)
                rate = produced_per_second(cluster, topic, count, size)
                if turn >= 0:
                    note(f"produce {size}", cluster.name, rate)
            create(cluster, f"latency-round-{turn}", 1)
            times = one_at_a_time_us(cluster.bootstrap_servers, f"latency-round-{turn}", "all", 2_000)
            if turn >= 0:
                note("p50", cluster.name, times[len(times) // 2] / 1e3)
                note("p99", cluster.name, times[len(times) * 99 // 100] / 1e3)
    for cluster in clusters:
        note("memory after", cluster.name, cluster.resident_megabytes)


class Sender:
    """librdkafka with one record to deliver, whatever happens to the leader."""

    def __init__(self, cluster: Cluster, topic: str, index: int) -> None:
        settings: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", **QUIET}
        self._producer = Producer(settings)
        self._topic, self._index = topic, index
        self.delivered_at = 0.0
        self.send()
        assert self._producer.flush(30) == 0

    def send(self) -> None:
        def on_delivery(error: object, _: object) -> None:
            assert error is None, error
            self.delivered_at = time.perf_counter()

        self._producer.produce(self._topic, b"x", partition=self._index, on_delivery=on_delivery)

    def poll(self) -> None:
        self._producer.poll(0)

    def wait(self) -> float:
        assert self._producer.flush(60) == 0
        return self.delivered_at


def fail_leader(cluster: Cluster, topic: str, note: Note) -> None:
    """SIGKILL the leader of a partition, which is not the active controller."""
    create(cluster, topic, NODES)
    controller = controller_id(cluster)
    leaders = {each.partition_index: each.leader_id for each in metadata(cluster, topic).topics[0].partitions}
    index, victim = next((index, leader) for index, leader in leaders.items() if leader != controller)
    sender = Sender(cluster, topic, index)
    started = time.perf_counter()
    cluster.kill(victim)
    sender.send()

    def serves() -> bool:
        sender.poll()
        return produces(cluster, topic, index)

    note("leader", cluster.name, seconds_until(serves, started))
    note("leader librdkafka", cluster.name, sender.wait() - started)
    bring_back(cluster, victim, topic)


def fail_controller(cluster: Cluster, topic: str, note: Note) -> None:
    """SIGKILL the active controller, which leads a partition too."""
    create(cluster, topic, NODES)
    victim = controller_id(cluster)
    leaders = {each.partition_index: each.leader_id for each in metadata(cluster, topic).topics[0].partitions}
    index = next(index for index, leader in leaders.items() if leader == victim)
    turns = iter(range(1_000_000))
    started = time.perf_counter()
    cluster.kill(victim)
    created = seconds_until(lambda: creates(cluster, f"{topic}-after", next(turns)), started)
    note("controller", cluster.name, created)
    note("controller leads", cluster.name, seconds_until(lambda: produces(cluster, topic, index), started))
    bring_back(cluster, victim, topic)


def bring_back(cluster: Cluster, number: int, topic: str) -> None:
    cluster.start(number)
    seconds_until(lambda: is_whole(cluster, topic, NODES), time.perf_counter())


def failover(clusters: Sequence[Cluster], note: Note) -> None:
    for turn in range(FAILOVERS):
        for cluster in clusters:
            fail_leader(cluster, f"leader-{turn}", note)
            fail_controller(cluster, f"controller-{turn}", note)


def recovery(clusters: Sequence[Cluster], note: Note) -> None:
    """One node of many partitions, killed and stopped: until it serves, and until it is in sync everywhere."""
    for cluster in clusters:
        topic = "many"
        started = time.perf_counter()
        create(cluster, topic, MANY_PARTITIONS)
        note("create many", cluster.name, time.perf_counter() - started)
        fill(cluster, topic)
        victim = next(number for number in cluster.nodes if number != controller_id(cluster))
        cluster.kill(victim)
        # Not restarted before its session is over: until then no controller would take it back.
        seconds_until(
            lambda: all(each.node_id != victim for each in metadata(cluster).brokers),  # noqa: B023 - called here and now
            time.perf_counter(),
        )
        fill(cluster, topic)
        for how in ("killed", "stopped"):
            if how == "stopped":
                started = time.perf_counter()
                cluster.stop(victim)
                note("stop", cluster.name, time.perf_counter() - started)
            started = time.perf_counter()
            cluster.start(victim)
            note(f"{how} serves", cluster.name, time.perf_counter() - started)
            whole = seconds_until(lambda: is_whole(cluster, topic, MANY_PARTITIONS), started)  # noqa: B023 - likewise
            note(f"{how} in sync", cluster.name, whole)
        note("memory many", cluster.name, cluster.resident_megabytes)


def fill(cluster: Cluster, topic: str) -> None:
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 50, **QUIET}
    producer = Producer(settings)
    value = b"x" * 1_000
    for number in range(MANY_RECORDS):
        while True:
            try:
                producer.produce(topic, value, partition=number % MANY_PARTITIONS)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    assert producer.flush(120) == 0


PARTS: dict[str, Callable[[Sequence[Cluster], Note], None]] = {
    "throughput": throughput,
    "failover": failover,
    "recovery": recovery,
}


def measure(parts: Sequence[str], starters: Sequence[Any]) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}

    def note(name: str, who: str, value: float) -> None:
        found.setdefault(name, {}).setdefault(who, []).append(value)

    with contextlib.ExitStack() as stack:
        clusters = [stack.enter_context(start()) for start in starters]
        for cluster in clusters:
            note("start", cluster.name, cluster.start_seconds)
            note("memory", cluster.name, cluster.resident_megabytes)
        for part in parts:
            PARTS[part](clusters, note)
    return found


def rows() -> list[Row]:
    found = measure(list(PARTS), (moldau_cluster, kafka_cluster))

    def row(name: str, key: str, unit: str, better: str, target: str = "") -> Row:
        middle = {who: statistics.median(values) for who, values in found[key].items()}
        return Row(name, middle["moldau"], unit, {PEER: middle[PEER]}, target, better)  # type: ignore[arg-type]  # one of the two words

    def after_kill(name: str, key: str, target: str = "") -> Row:
        return row(f"{name} (session {SESSION_SECONDS:.0f} s)", key, "s", "lower", target)

    limit = f"<= {SESSION_SECONDS + 2:.0f}"
    many = f"{MANY_PARTITIONS:,} partitions"
    return [
        row(f"Produce 100 B, acks=all, 3 replicas, {PARTITIONS} partitions", "produce 100", "records/s", "higher"),
        row(f"Produce 1 KB, acks=all, 3 replicas, {PARTITIONS} partitions", "produce 1000", "records/s", "higher"),
        row("One record at a time, acks=all, 3 replicas, p50", "p50", "ms", "lower"),
        row("One record at a time, acks=all, 3 replicas, p99", "p99", "ms", "lower"),
        after_kill("Leader killed: its partition takes acks=all again", "leader", limit),
        after_kill("Leader killed: librdkafka's record is acknowledged", "leader librdkafka"),
        row("Active controller killed: a topic can be created", "controller", "s", "lower"),
        after_kill("Active controller killed: what it led takes acks=all again", "controller leads"),
        row("Start of three nodes until all serve", "start", "s", "lower"),
        row("Memory of three nodes, idle after start", "memory", "MB", "lower"),
        row("Memory of three nodes after these records", "memory after", "MB", "lower"),
        row(f"Create a topic of {many} until a broker names all leaders", "create many", "s", "lower"),
        row(f"Killed node of {many}: start until it serves", "killed serves", "s", "lower"),
        row(f"Killed node of {many}: start until it is in sync", "killed in sync", "s", "lower"),
        row(f"Node of {many}: clean stop", "stop", "s", "lower"),
        row(f"Stopped node of {many}: start until it serves", "stopped serves", "s", "lower"),
        row(f"Stopped node of {many}: start until it is in sync", "stopped in sync", "s", "lower"),
        row(f"Memory of three nodes with {many} each", "memory many", "MB", "lower"),
    ]


def main() -> None:
    words = sys.argv[1:] or list(PARTS)
    starters: dict[str, Any] = {"moldau": moldau_cluster, "kafka": kafka_cluster}
    chosen = [starters[word] for word in words if word in starters] or list(starters.values())
    for name, values in measure([word for word in words if word in PARTS], chosen).items():
        for who, each in values.items():
            print(f"{name:20} {who:14} {statistics.median(each):12.3f}   {[round(value, 3) for value in each]}")


if __name__ == "__main__":
    main()
