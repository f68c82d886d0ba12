"""Every command that talks to a cluster, on Moldau and on Apache Kafka: the same words, the same exit codes.

One tour is walked on both; compared is what each step printed and how it ended. Masked is what differs between two runs
on the same broker too: names, times, ids, addresses, sizes on disk.
"""

import json
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import Command
from tests.interop.apache_kafka import KAFKA_VERSION, TOOLS, ApacheKafka, kafka_libs
from tests.support.broker_process import BrokerProcess
from tests.support.clients import wait_for
from tests.support.stray_batches import UNVERIFIED, write_stray_batch

_NUMBERS = (
    *("timestamp_ms", "epoch", "high_watermark", "fetched_seconds_ago", "end", "seconds", "leads", "replicas"),
    *("producer_id", "producer_epoch", "last_sequence", "bytes", "total_bytes", "usable_bytes", "partitions"),
    *("max_lag", "lag_per_second"),
)
MASKS = (
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r'"port": \d+', '"port": N'),
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
    (rf'("(?:{"|".join(_NUMBERS)})": )[-\d.]+', r"\1N"),
    (r'("(?:cluster_id|directory|log_dir)": )"[^"]*"', r'\1"ID"'),
    (r"(leader \d+ in epoch) \d+", r"\1 N"),
    (r"\d+ partitions of \d+ topics", "N partitions of N topics"),
    (r"producer \d+, epoch", "producer N, epoch"),  # how many others had one depends on what ran before
)


class Tour:
    def __init__(self, bootstrap_servers: str, name: str, scratch: Path) -> None:
        self.name = name
        self.scratch = scratch
        self.printed: dict[str, str] = {}
        self.bootstrap_servers = bootstrap_servers
        self._command = Command(bootstrap_servers, str(scratch))

    def run(self, step: str, *arguments: str, stdin: str = "") -> str:
        ended = self._command(*arguments, stdin=stdin)
        text = f"exit {int(ended.code)}\n{ended.out}\n{ended.err}"
        for pattern, word in (*MASKS, (re.escape(self.name), "NAME"), (re.escape(str(self.scratch)), "SCRATCH")):
            text = re.sub(pattern, word, text)
        # How a broker words a refusal is its own affair; that there is one, and which kind, is not.
        self.printed[step] = re.sub(r"(?m)^moldau: (?!nothing|\d|no |there|the ).*$", "moldau: …", text)
        return ended.out

    def ok(self, step: str, *arguments: str, stdin: str = "") -> str:
        said = self.run(step, *arguments, stdin=stdin)
        assert self.printed[step].startswith("exit 0\n"), (step, self.printed[step])
        return said


def topics(tour: Tour) -> None:
    name = tour.name
    tour.ok("create", "topic", "create", name, "-p", "3", "-c", "retention.ms=600000")
    tour.run("create again", "topic", "create", name)
    tour.ok("create if not there", "topic", "create", name, "--if-not-exists")
    tour.ok("create dry", "topic", "create", f"{name}-dry", "--dry-run")
    tour.run("create badly", "topic", "create", f"{name}-bad", "-c", "retention.ms=soon")
    tour.run("create with too many replicas", "topic", "create", f"{name}-bad", "-r", "5")
    tour.ok("list", "topic", "list", f"{name}*", "--json")
    tour.ok("describe", "topic", "describe", name)
    tour.ok("alter", "topic", "alter", name, "-c", "max.message.bytes=2000", "-u", "retention.ms")
    tour.ok("describe altered", "topic", "describe", name, "--json")
    tour.ok("config", "config", "describe", "topic", name, "max.message.bytes", "retention.ms", "--json")
    tour.ok("config append", "config", "set", "topic", name, "cleanup.policy+=compact")
    tour.ok("config appended", "config", "describe", "topic", name, "cleanup.policy", "--json")
    tour.ok("config unset", "config", "unset", "topic", name, "cleanup.policy")
    tour.run("config nonsense", "config", "set", "topic", name, "no.such.setting=1")
    tour.ok("config broker", "config", "set", "broker", "1", "log.cleaner.threads=2")
    # Kafka may take a moment until it holds: the value is left out.
    tour.ok(
        "config of broker", "config", "describe", "broker", "1", "log.cleaner.threads", "--format", "{setting} {from}"
    )
    metrics = ("client-metrics", name)
    tour.ok("config client metrics", "config", "set", *metrics, "interval.ms=60000", "metrics=org.apache")
    tour.ok("config list", "config", "list", "client-metrics", "--json")
    tour.ok("config client metrics back", "config", "unset", *metrics, "interval.ms", "metrics")
    tour.ok("config broker back", "config", "unset", "broker", "1", "log.cleaner.threads")
    tour.ok("add partitions", "topic", "add-partitions", name, "--to", "4")
    tour.run("fewer partitions", "topic", "add-partitions", name, "--to", "2")
    tour.run("describe nothing", "topic", "describe", f"{name}-none")
    tour.run("delete nothing", "topic", "delete", f"{name}-none")


def records(tour: Tour) -> None:
    name = tour.name
    lines = "".join(f"k{number}:value {number}\n" for number in range(20))
    at = ["-t", "2026-01-02T03:04:05Z"]
    tour.ok("produce", "produce", name, "-k", ":", "-H", "h=1", "-z", "zstd", *at, stdin=lines)
    tour.ok("produce to one", "produce", name, "-p", "3", *at, "--json", stdin="a\nb\nc\n")
    tour.ok("produce a transaction", "produce", name, "-p", "2", *at, "--transactional-id", f"{name}-t", stdin="x\ny\n")
    tour.run("produce badly", "produce", name, "-k", ":", stdin="none\n")
    tour.run("produce too much", "produce", name, "-p", "0", stdin="x" * 5_000)
    tour.ok("consume one", "consume", name, "-p", "3", "-a", "-e", "--json")
    for partition in ("0", "1", "2"):
        tour.ok(
            f"consume {partition}", "consume", name, "-p", partition, "-a", "-e", "-k", "=", "--headers", "--timestamps"
        )
    tour.ok("consume relative", "consume", name, "-p", "3", "-o", "-1", "-e")
    tour.ok("consume since", "consume", name, "-p", "3", "--since", "2026-01-02", "-e", "-n", "2")
    tour.ok("consume until", "consume", name, "-p", "3", "-a", "--until", "2026-01-02")
    tour.ok(
        "consume some",
        "consume",
        name,
        "-a",
        "-e",
        "--where",
        "value=value 7",
        "--format",
        "{partition} {offset} {key}",
    )
    tour.ok("consume as a group", "consume", name, "-g", f"{name}-g", "-a", "-n", "25", "--format", "")
    tour.ok("offsets", "topic", "offsets", name, "--at", "2026-01-02T03:04:05Z", "--json")
    tour.ok("sizes", "topic", "sizes", name, "-p", "--json")
    tour.run("consume nothing", "consume", f"{name}-none")
    tour.ok("empty", "topic", "empty", name, "-p", "3", "--before", "2", "--json")


def groups(tour: Tour) -> None:
    name, group = tour.name, f"{tour.name}-g"
    tour.ok("group", "group", "describe", group, "--json")
    tour.ok("group lag", "group", "lag", group, "--json")
    listed = tour.ok(
        "group list", "group", "list", "--state", "empty", "--type", "classic", "--format", "{group} {state}"
    )
    # Other tests have left groups of their own on these brokers.
    tour.printed["group list"] = "\n".join(line for line in listed.splitlines() if line.startswith(tour.name))
    tour.printed["group list"] = tour.printed["group list"].replace(tour.name, "NAME")
    tour.ok("group plan", "group", "reset", group, "-t", name, "--to", "earliest", "--plan", str(tour.scratch / "plan"))
    tour.ok("group reset", "group", "reset", group, "-t", f"{name}:0,1", "--to", "+1", "--execute", "--json")
    tour.ok("group by time", "group", "reset", group, "-t", name, "--to", "2026-01-02T03:04:05Z", "--execute")
    tour.ok("group by plan", "group", "reset", group, "--from-file", str(tour.scratch / "plan"), "--execute")
    tour.run("group too late", "group", "lag", group, "--max", "0")
    tour.ok("judged", "lag", group, "--format", "{partition} {committed} {end} {lag} {state}")
    tour.ok("group offsets", "group", "delete-offsets", group, "-t", name, "--json")
    tour.ok("group delete", "group", "delete", group)
    tour.run("group delete again", "group", "delete", group)
    tour.run("no group", "group", "describe", group)
    tour.ok("members", "group", "members", "--help")


def operating(tour: Tour) -> None:
    name = tour.name
    tour.ok("brokers", "broker", "list", "--json")
    tour.ok("disks", "broker", "disks", "--json")
    tour.ok("features", "broker", "features", "--format", "{feature} {level}")
    tour.run("bad feature", "broker", "set-feature", "metadata.version", "1")
    tour.ok("elect", "broker", "elect-leaders", name)
    tour.ok("quorum", "quorum", "status", "--json")
    tour.ok("quorum replicas", "quorum", "replicas", "--json")
    tour.ok("plan", "reassign", "plan", name)
    tour.run("plan too much", "reassign", "plan", name, "-r", "3")
    plan = tour.scratch / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": name, "partition": 0, "replicas": [1]}]}))
    tour.ok("run", "reassign", "run", str(plan), "--wait")
    tour.ok("status", "reassign", "status")
    tour.ok("cancel", "reassign", "cancel", "--all")
    tour.ok("unthrottle", "reassign", "unthrottle", name)
    tour.run("drain", "reassign", "drain", "1")
    tour.ok("transactions", "txn", "describe", f"{name}-t", "--format", "{state} {timeout_ms} {partitions}")
    tour.ok("producers", "txn", "producers", name, "-p", "2", "--json")
    tour.ok("hanging", "txn", "hanging", name)
    tour.ok("terminate", "txn", "terminate", f"{name}-t")
    start = _leave_one_hanging(tour, f"{name}-stuck")
    tour.run("one hangs", "txn", "hanging", f"{name}-stuck", "--older-than", "0", "--format", "{start_offset}")
    tour.ok("abort", "txn", "abort", f"{name}-stuck", "-p", "0", "--start-offset", start)
    tour.ok("none hangs", "txn", "hanging", f"{name}-stuck", "--older-than", "0")
    tour.run("abort again", "txn", "abort", f"{name}-stuck", "-p", "0", "--start-offset", start)
    tour.run("no transaction", "txn", "describe", f"{name}-none")
    tour.ok("health", "health")
    tour.ok("top", "top", "-c", "1", "-i", "0.3", "--format", "")
    tour.ok("bench", "bench", "latency", name, "-n", "5", "--format", "{records}")
    tour.ok("delete", "topic", "delete", name)


def _leave_one_hanging(tour: Tour, topic: str) -> str:
    """Where it begins. That nobody asks the coordinator takes a moment to hold."""
    (setting,) = UNVERIFIED
    tour.ok("create stuck", "topic", "create", topic)
    tour.ok("without questions", "config", "set", "broker", "1", f"{setting}={UNVERIFIED[setting]}")
    began: list[int] = []

    def is_written() -> bool:
        try:
            began.append(write_stray_batch(tour.bootstrap_servers, topic, 1_000_000))
        except AssertionError:
            return False
        return True

    wait_for(is_written, "a batch nobody asked for")
    tour.ok("with questions", "config", "unset", "broker", "1", setting)
    return str(began[0])


@pytest.fixture(scope="module")
def tours(
    moldau: BrokerProcess, apache_kafka: ApacheKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Tour, Tour]]:
    made = []
    for kind, servers in (("m", moldau.bootstrap_servers), ("k", apache_kafka.bootstrap_servers)):
        scratch = tmp_path_factory.mktemp(f"tour-{kind}")
        made.append(Tour(servers, f"cli-{kind}-tour", scratch))
    for part in (topics, records, groups, operating):
        for tour in made:
            part(tour)
    yield made[0], made[1]
    for tour in made:
        shutil.rmtree(tour.scratch)


def test_every_command_says_the_same_on_both(tours: tuple[Tour, Tour]) -> None:
    ours, theirs = tours
    differing = [step for step in ours.printed if ours.printed[step] != theirs.printed[step]]
    told = "\n".join(f"--- {step}\nmoldau: {ours.printed[step]}\nkafka: {theirs.printed[step]}" for step in differing)
    assert not differing, told
    assert len(ours.printed) > 70


def test_files_of_apache_kafka_are_verified_and_dumped(apache_kafka: ApacheKafka, tours: tuple[Tour, Tour]) -> None:
    moldau = Command("127.0.0.1:1", str(tours[0].scratch))
    assert " 0 problems" in moldau.ok("log", "verify", str(apache_kafka.log_dir)).err
    metadata = moldau.ok("log", "dump", str(apache_kafka.log_dir / "__cluster_metadata-0"), "--decode", "--json").lines
    assert any(json.loads(line)["key"] == "TopicRecord" for line in metadata)


WITHOUT_A_SCRIPT = {
    "ClientCompatibilityTest",
    "LogCompactionTester",
    "OAuthCompatibilityTool",
    "TransactionalMessageCopier",
}
WITH_A_SCRIPT_NO_TEST_RUNS = {
    "ConnectPluginPath": "connect-plugin-path",
    "JmxTool": "kafka-jmx",
    "ShareConsumerPerformance": "kafka-share-consumer-perf-test",
    "VerifiableShareConsumer": "kafka-verifiable-share-consumer",
}


def test_the_tables_of_the_docs_know_every_tool_in_kafka_s_jar() -> None:
    """Not a list from memory: classes with a `main` are what scripts start."""
    with zipfile.ZipFile(kafka_libs() / f"kafka-tools-{KAFKA_VERSION}.jar") as jar:
        found = {
            name.removesuffix(".class").replace("/", ".")
            for name in jar.namelist()
            if name.endswith(".class")
            and b"\x00\x04main" in (code := jar.read(name))
            and b"([Ljava/lang/String;)V" in code
        }
    scripts = {name: script for script, name in TOOLS.items()}
    text = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    for name in sorted(found):
        short = name.rpartition(".")[2]
        if short not in WITHOUT_A_SCRIPT:
            script = scripts.get(name) or WITH_A_SCRIPT_NO_TEST_RUNS[short]
            assert re.search(rf"`{script}[` ]", text), script
    assert len(found) > 30
