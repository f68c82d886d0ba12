"""Apache Kafka itself, as a peer: its broker, its command-line tools, and Java programs compiled against its clients.

`ApacheKafka` is a real KRaft node on loopback; `run_tool` runs one of Kafka's own tools against any bootstrap, Moldau's
included; `compile_java` compiles test programs. The jars come from Maven once, into the git-ignored `build/peers`.

Invariant: a started node is stopped when its `with` block, or at the latest this process, ends.
"""

import atexit
import base64
import socket
import struct
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from moldau.testing.ports import free_ports
from tests.interop.peers.workshop import PEERS, PeerError, build_once, require, run, tail

KAFKA_VERSION = "4.3.1"
HOST = "127.0.0.1"

TOOLS = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-metadata-shell": "org.apache.kafka.shell.MetadataShell",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-replica-verification": "org.apache.kafka.tools.ReplicaVerificationTool",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-streams-application-reset": "org.apache.kafka.tools.StreamsResetter",
    "kafka-streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "transactional-message-copier": "org.apache.kafka.tools.TransactionalMessageCopier",
}
"""Kafka's shell scripts and the classes behind them in this release; the scripts themselves are not on Maven."""

SINGLE_NODE_PROPERTIES = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # Only for speed; pass the broker's own defaults (50, 50, 50, 3000) where they matter.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
}

# C1 only and the serial collector: tools live for a second, and tests share two cores.
QUICK_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
SMALL_BROKER_JVM = (*QUICK_JVM, "-Xms128m", "-Xmx512m")

_JAVA_ADVICE = "Apache Kafka needs a JDK of at least 17: on Debian `apt-get install openjdk-17-jdk-headless`."
_MAVEN_ADVICE = "It fetches Apache Kafka's jars: on Debian `apt-get install maven`."


@cache
def kafka_libs() -> Path:
    """The folder with Apache Kafka's jars and all they need, fetched by Maven at the first call."""
    pom = PEERS / "pom.xml"

    def fetch(folder: Path) -> None:
        require("java", _JAVA_ADVICE)
        maven = require("mvn", _MAVEN_ADVICE)
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        run([maven, "-q", "-B", "-f", pom, *goal], timeout_s=600)

    return build_once("kafka", [pom], fetch)


def java_command(
    main_class: str, *arguments: str, jvm: Sequence[str] | None = None, classes: Path | None = None
) -> list[str]:
    """The command line that runs a class with Kafka's jars (and one folder of compiled classes) on its class path."""
    options = (*QUICK_JVM, *archive_options()) if jvm is None else jvm
    # Kafka's jars first: an archive is valid only for a class path that begins with the one it was made from.
    class_path = f"{kafka_libs()}/*" if classes is None else f"{kafka_libs()}/*:{classes}"
    logging = f"-Dlog4j2.configurationFile={PEERS / 'log4j2.properties'}"
    return [require("java", _JAVA_ADVICE), *options, logging, "-cp", class_path, main_class, *arguments]


@cache
def archive_options() -> tuple[str, ...]:
    """A class-data archive of Kafka's clients: tools and test programs start in half the time. Made once, 10 s."""
    java = require("java", _JAVA_ADVICE)

    def train(folder: Path) -> None:
        with ApacheKafka() as kafka:
            # The one tool that needs the admin client, the producer and the consumer.
            tool = (TOOLS["kafka-e2e-latency"], kafka.bootstrap_servers, "training", "10", "all", "10")
            run(java_command(*tool, jvm=(*QUICK_JVM, f"-XX:ArchiveClassesAtExit={folder / 'clients.jsa'}")))

    version = run([java, "-version"]).stderr
    archive = build_once("kafka-archive", [kafka_libs().name, version, *QUICK_JVM], train) / "clients.jsa"
    return f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"  # should it not fit after all: slower, but no noise


@cache
def compile_java(*sources: Path) -> Path:
    """Compile test programs against Kafka's jars; returns the folder of classes, reused while nothing changed."""

    def compile_into(folder: Path) -> None:
        compiler = require("javac", _JAVA_ADVICE)
        options = ["--release", "17", "-Xlint:all,-path,-serial", "-Werror", "-proc:none"]
        run([compiler, *options, "-cp", f"{kafka_libs()}/*", "-d", folder, *sources])

    return build_once(f"java-{sources[0].stem}", [kafka_libs().name, *sources], compile_into)


def run_tool(
    tool: str, *arguments: str, stdin: str | None = None, timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's tools, by script name (`kafka-topics`) or by class; a failure raises with its output."""
    return run(java_command(TOOLS.get(tool, tool), *arguments), stdin=stdin, timeout_s=timeout_s)


def random_id() -> str:
    """A cluster or directory id as Kafka writes them: a uuid in base64url, not starting with a dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        continue
    return text


def answers(host: str, port: int, timeout_s: float = 1) -> bool:
    """Whether a broker answers ApiVersions there. A KRaft broker does so only once it is registered and unfenced."""
    request = struct.pack(">hhih", 18, 0, 1, -1)  # ApiVersions v0, correlation id 1, null client id
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(struct.pack(">i", len(request)) + request)
            header = connection.recv(8, socket.MSG_WAITALL)
            return len(header) == 8 and header[4:] == b"\x00\x00\x00\x01"
    except OSError:
        return False


class ApacheKafka:
    """One Apache Kafka node, `with ApacheKafka() as kafka: kafka.bootstrap_servers`.

    `properties` override everything, so a node of a larger cluster can be had by giving `process.roles`, `node.id`, the
    quorum, `ports` and `format_options` (none for static voters); see `ApacheKafkaCluster`. `log_dir` may hold the data
    of an earlier run; its cluster id is kept. After `stop` or `kill`, `start` runs the node again, on the same data and
    ports. `start_s` is the time the last start took, from exec to the first answer.
    """

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        *,
        log_dir: Path | None = None,
        cluster_id: str | None = None,
        ports: tuple[int, int] | None = None,
        format_options: Sequence[str] = ("--standalone",),
        jvm: Sequence[str] = SMALL_BROKER_JVM,
        start_timeout_s: float = 60,
    ) -> None:
        self._extra = dict(properties or {})
        self._temporary = tempfile.TemporaryDirectory(prefix="apache-kafka-", ignore_cleanup_errors=True)
        self._home = Path(self._temporary.name)
        self.log_dir = log_dir or self._home / "data"
        self.output_path = self._home / "output.txt"
        self.cluster_id = cluster_id or _cluster_id_in(self.log_dir) or random_id()
        self._fixed_ports = ports
        self._ports = ports
        self._format_options = tuple(format_options)
        self._jvm = tuple(jvm)
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self.start_s = 0.0

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def port(self) -> int:
        if self._ports is None:
            raise PeerError("Apache Kafka was not started yet: call start(), or use `with ApacheKafka() as kafka`")
        return self._ports[0]

    @property
    def controller_port(self) -> int:
        if self._ports is None:
            raise PeerError("Apache Kafka was not started yet: call start(), or use `with ApacheKafka() as kafka`")
        return self._ports[1]

    @property
    def pid(self) -> int:
        if self._process is None:
            raise PeerError("Apache Kafka is not running")
        return self._process.pid

    def properties(self) -> dict[str, str]:
        """The server.properties of this node, as they are written at `start`."""
        listeners = f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{self.controller_port}"
        base = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": listeners,
            "advertised.listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.log_dir),
        }
        if self._format_options:
            base["controller.quorum.bootstrap.servers"] = f"{HOST}:{self.controller_port}"
        return base | SINGLE_NODE_PROPERTIES | self._extra

    def start(self) -> Self:
        """Format the log dir if need be, start, and wait until the broker answers."""
        if self._process is not None:
            raise PeerError("Apache Kafka is running already")
        atexit.register(self.stop)
        for attempts_left in (2, 1, 0):
            self._ports = self._ports or _two(free_ports(2))
            try:
                self._start_once()
            except PeerError as failure:
                self.kill()
                if self._fixed_ports or not attempts_left or "Address already in use" not in str(failure):
                    raise
                self._ports = None
            else:
                break
        return self

    def _start_once(self) -> None:
        config = self._home / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self.properties().items()))
        self.log_dir.mkdir(parents=True, exist_ok=True)
        format_arguments = ["--config", str(config), "--cluster-id", self.cluster_id, "--ignore-formatted"]
        if not _is_formatted(self.properties()["log.dirs"]):
            storage_tool = (TOOLS["kafka-storage"], "format", *format_arguments, *self._format_options)
            run(java_command(*storage_tool, jvm=QUICK_JVM))
        started = time.monotonic()
        with self.output_path.open("ab") as output:
            command = java_command("kafka.Kafka", str(config), jvm=self._jvm)
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self._home)
        self._process = process
        # A controller without a broker listens on its own port only.
        port = self.port if "broker" in self.properties()["process.roles"] else self.controller_port
        while not answers(HOST, port):
            if process.poll() is not None:
                raise PeerError(f"Apache Kafka ended with code {process.returncode} while starting:\n{self.output()}")
            if time.monotonic() - started > self._start_timeout_s:
                raise PeerError(f"Apache Kafka did not answer after {self._start_timeout_s} s:\n{self.output()}")
            time.sleep(0.02)
        self.start_s = time.monotonic() - started

    def output(self, lines: int = 60) -> str:
        """The end of what the broker printed."""
        return tail(self.output_path.read_bytes(), lines) if self.output_path.exists() else ""

    def stop(self, timeout_s: float = 30) -> None:
        """Clean shutdown; killed if it takes longer. Nothing happens if it is not running."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        atexit.unregister(self.stop)

    def kill(self) -> None:
        """SIGKILL: the log dir stays as a crash leaves it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        atexit.unregister(self.stop)

    def close(self) -> None:
        """Stop for good: the temporary folder, and with it a log dir that was not given, is gone."""
        self.stop()
        self._temporary.cleanup()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill()
            self._temporary.cleanup()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"Apache Kafka printed last:\n{self.output(20)}")
        self.close()


class ApacheKafkaCluster:
    """Several combined nodes, ids from 1, with static voters: `with ApacheKafkaCluster(3) as cluster: ...`."""

    def __init__(
        self, size: int = 3, properties: Mapping[str, str] | None = None, *, jvm: Sequence[str] = SMALL_BROKER_JVM
    ) -> None:
        ports = free_ports(2 * size)
        voters = ",".join(f"{number + 1}@{HOST}:{ports[2 * number + 1]}" for number in range(size))
        copies = str(min(size, 3))
        shared = {
            "controller.quorum.voters": voters,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "share.coordinator.state.topic.replication.factor": copies,
        } | dict(properties or {})
        cluster_id = random_id()
        self.nodes = [
            ApacheKafka(
                shared | {"node.id": str(number + 1)},
                cluster_id=cluster_id,
                ports=(ports[2 * number], ports[2 * number + 1]),
                format_options=(),
                jvm=jvm,
            )
            for number in range(size)
        ]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.bootstrap_servers for node in self.nodes)

    def __enter__(self) -> Self:
        try:
            with ThreadPoolExecutor(len(self.nodes)) as pool:  # none answers before there is a quorum
                list(pool.map(ApacheKafka.start, self.nodes))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Killed, as the data goes too: without a quorum a clean shutdown waits in vain for the controller."""
        for node in self.nodes:
            node.kill()
            node.close()


def _two(ports: list[int]) -> tuple[int, int]:
    first, second = ports
    return first, second


def _is_formatted(log_dirs: str) -> bool:
    return all((Path(folder) / "meta.properties").exists() for folder in log_dirs.split(","))


def _cluster_id_in(log_dir: Path) -> str | None:
    """The cluster id an earlier run left in meta.properties."""
    meta = log_dir / "meta.properties"
    if not meta.exists():
        return None
    pairs = (line.partition("=") for line in meta.read_text().splitlines())
    return next((value.strip() for key, _, value in pairs if key.strip() == "cluster.id"), None)
