"""Apache Kafka's command-line tools against Moldau and against Apache Kafka: they must print the same.

A tour is a list of tool runs; it is made on both brokers, and what is printed (and the exit code) is compared line by
line. Masked is what differs between two runs on the same broker too: addresses, ids, times, rates.
"""

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.interop.apache_kafka import SINGLE_NODE_PROPERTIES, TOOLS, ApacheKafka, java_command
from tests.interop.peers.clients import Record, java_client
from tests.interop.peers.workshop import run_unchecked
from tests.interop.test_broker_api_versions import NOT_IN_MOLDAU, ONLY_IN_MOLDAU
from tests.support.broker_process import BrokerProcess

MASKS = (
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"(?<=127\.0\.0\.1 )\d+", "PORT"),
    (r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\]", "[TIME]"),
    (r"(ClusterId:\s+|Cluster ID: |TopicId: )\S+", r"\1ID"),
    (r'(?<="directoryId": ")[^"]+', "ID"),
    (r'(?<="logDir":")[^"]+|(?<="log_dirs":\[")[^"]+', "DIR"),
    (r"\b(HighWatermark|Epoch|MaxFollowerLagTimeMs): +\d+", r"\1: N"),
    # A Moldau node of its own opens no controller listener: nobody would call.
    (r', "endpoints": \["CONTROLLER://ADDRESS"\]', ""),
)
MASKED_COLUMNS = {
    *("ProducerId", "CurrentTransactionStartTimeMs", "TransactionDurationMs", "LastTimestamp"),
    *("DirectoryId", "LogEndOffset", "LastFetchTimestamp", "LastCaughtUpTimestamp"),
}


@dataclass(slots=True)
class Tour:
    """One broker's tour: the name for whatever it makes, and what was printed at each step."""

    bootstrap: str
    name: str
    scratch: Path
    printed: dict[str, str] = field(default_factory=dict)

    def run(self, step: str, tool: str, *arguments: str, stdin: str | None = None) -> None:
        server = ("--bootstrap-server", self.bootstrap)
        # This one wants its verb first.
        ordered = (*arguments, *server) if tool == "kafka-cluster" else (*server, *arguments)
        finished = run_unchecked(java_command(TOOLS[tool], *ordered), stdin=stdin, timeout_s=90)
        self.printed[step] = self._masked(f"exit {finished.returncode}\n{finished.stdout}\n{finished.stderr}")

    def keep(self, step: str, pattern: str) -> None:
        """Of what a step printed, compare only what the pattern finds, in any order."""
        self.printed[step] = "\n".join(sorted(re.findall(pattern, self.printed[step])))

    def _masked(self, text: str) -> str:
        for pattern, word in (*MASKS, (re.escape(self.name), "NAME")):
            text = re.sub(pattern, word, text)
        lines = (line.rstrip() for line in _without_columns(text.splitlines()))
        return "\n".join(line for line in lines if line and not line.startswith("\tat "))


def _without_columns(lines: list[str]) -> Iterator[str]:
    """Tables are separated by tabs, with the names of the columns in the first row."""
    header: list[str] = []
    for line in lines:
        cells = [cell.strip() for cell in line.split("\t")]
        if not MASKED_COLUMNS.isdisjoint(cells):
            header = cells
        elif len(cells) == len(header):
            line = "\t".join("*" if name in MASKED_COLUMNS else cell for name, cell in zip(header, cells, strict=True))
        yield line


def topics_and_records(tour: Tour) -> None:
    topic = ("--topic", tour.name)
    run = tour.run
    run("create", "kafka-topics", "--create", *topic, "--partitions", "2", "--config", "retention.ms=86400000")
    run("create again", "kafka-topics", "--create", *topic)
    run("create if it is not there", "kafka-topics", "--create", "--if-not-exists", *topic)
    run("list", "kafka-topics", "--list", *topic)
    run("describe", "kafka-topics", "--describe", *topic)
    run("alter", "kafka-topics", "--alter", *topic, "--partitions", "3")
    run("fewer partitions", "kafka-topics", "--alter", *topic, "--partitions", "1")
    run("describe again", "kafka-topics", "--describe", *topic)
    run("describe what is not there", "kafka-topics", "--describe", "--topic", "nowhere")
    run("bad name", "kafka-topics", "--create", "--topic", "a/b")
    run("bad config", "kafka-topics", "--create", "--topic", "bad-config", "--config", "retention.ms=soon")
    run("too many replicas", "kafka-topics", "--create", "--topic", "too-many", "--replication-factor", "3")
    run("overrides", "kafka-topics", "--describe", "--topics-with-overrides", *topic)
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    # It lingers for a second unless told otherwise: on a busy machine that makes two batches of one, and another size.
    run("produce", "kafka-console-producer", *topic, *keyed, "--timeout", "60000", stdin="a:1\na:2\na:3\nb:4\nc:5\n")
    shown = [
        part
        for name in ("print.key", "print.offset", "print.partition")
        for part in ("--formatter-property", f"{name}=true")
    ]
    for partition, count in (("1", "4"), ("2", "1")):
        consumed = ("--partition", partition, "--offset", "earliest", "--max-messages", count, *shown)
        run(f"consume {partition}", "kafka-console-consumer", *topic, *consumed)
    for time in ("latest", "earliest", "max-timestamp", "earliest-local"):
        run(f"offsets {time}", "kafka-get-offsets", *topic, "--time", time)
    tour.keep("offsets max-timestamp", r"exit 0|NAME:\d:")  # which is the newest depends on the producer's clock
    run("offsets of nothing", "kafka-get-offsets", "--topic", "nowhere")
    deletion = tour.scratch / "delete.json"
    deletion.write_text(json.dumps({"version": 1, "partitions": [{"topic": tour.name, "partition": 0, "offset": -1}]}))
    run("delete records", "kafka-delete-records", "--offset-json-file", str(deletion))
    run("offsets after that", "kafka-get-offsets", *topic, "--time", "earliest")
    run("log dirs", "kafka-log-dirs", "--describe", "--topic-list", tour.name)
    run("delete", "kafka-topics", "--delete", *topic)
    run("delete again", "kafka-topics", "--delete", *topic)


def configs(tour: Tour) -> None:
    run = tour.run
    run("create", "kafka-topics", "--create", "--topic", tour.name)
    topic = ("--entity-type", "topics", "--entity-name", tour.name)
    run("topic", "kafka-configs", *topic, "--describe")
    run("topic, all", "kafka-configs", *topic, "--describe", "--all")
    run("set", "kafka-configs", *topic, "--alter", "--add-config", "retention.ms=1000,cleanup.policy=[compact,delete]")
    run("topic, changed", "kafka-configs", *topic, "--describe")
    run("unset", "kafka-configs", *topic, "--alter", "--delete-config", "retention.ms")
    run("unset what is not set", "kafka-configs", *topic, "--alter", "--delete-config", "segment.ms")
    run("bad value", "kafka-configs", *topic, "--alter", "--add-config", "retention.ms=soon")
    run("no such key", "kafka-configs", *topic, "--alter", "--add-config", "no.such=1")
    run("no such topic", "kafka-configs", "--entity-type", "topics", "--entity-name", "nowhere", "--describe")
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    run("broker", "kafka-configs", *broker, "--describe")
    run("broker, set", "kafka-configs", *broker, "--alter", "--add-config", "log.cleaner.threads=2")
    run("broker, changed", "kafka-configs", *broker, "--describe")
    run("broker, static", "kafka-configs", *broker, "--alter", "--add-config", "node.id=7")
    run("broker, unset", "kafka-configs", *broker, "--alter", "--delete-config", "log.cleaner.threads")
    everyone = ("--entity-type", "brokers", "--entity-default")
    run("brokers, set", "kafka-configs", *everyone, "--alter", "--add-config", "log.retention.ms=777777777")
    run("brokers, changed", "kafka-configs", *everyone, "--describe")
    run("topic, inherits", "kafka-configs", *topic, "--describe", "--all")
    run("brokers, unset", "kafka-configs", *everyone, "--alter", "--delete-config", "log.retention.ms")
    group = ("--entity-type", "groups", "--entity-name", tour.name)
    run("group, set", "kafka-configs", *group, "--alter", "--add-config", "consumer.session.timeout.ms=50000")
    run("group", "kafka-configs", *group, "--describe")
    run("users", "kafka-configs", "--entity-type", "users", "--describe")
    run(
        "loggers",
        "kafka-configs",
        "--entity-type",
        "broker-loggers",
        "--entity-name",
        "1",
        "--alter",
        "--add-config",
        "nobody=LOUD",
    )
    run(
        "metrics, set",
        "kafka-client-metrics",
        "--alter",
        "--name",
        tour.name,
        "--metrics",
        "org.apache.kafka.producer.",
        "--interval",
        "30000",
    )
    run("metrics", "kafka-client-metrics", "--describe", "--name", tour.name)
    run("metrics, listed", "kafka-client-metrics", "--list")
    run("metrics, unset", "kafka-client-metrics", "--delete", "--name", tour.name)


def groups(tour: Tour) -> None:
    run = tour.run
    named = ("--group", tour.name)
    topic = ("--topic", tour.name)
    run("create", "kafka-topics", "--create", *topic, "--partitions", "2")
    records = [Record(f"key {number}", "v") for number in range(6)]
    java_client().produce(tour.bootstrap, tour.name, records)
    for protocol in ("classic", "consumer"):
        settings = ("--command-property", f"group.protocol={protocol}", "--max-messages", "6", "--from-beginning")
        run(f"consume, {protocol}", "kafka-console-consumer", *topic, "--group", f"{tour.name}-{protocol}", *settings)
        described = ("--describe", "--group", f"{tour.name}-{protocol}")
        run(f"describe, {protocol}", "kafka-consumer-groups", *described)
        run(f"describe state, {protocol}", "kafka-consumer-groups", *described, "--state", "--verbose")
        run(f"describe members, {protocol}", "kafka-consumer-groups", *described, "--members", "--verbose")
    named = ("--group", f"{tour.name}-classic")
    run("list", "kafka-consumer-groups", "--list", "--state", "empty", "--type", "classic")
    run("all groups", "kafka-groups", "--list")
    for step in ("list", "all groups"):
        tour.keep(step, r"exit 0|NAME.*")  # and those of other tours
    reset = ("--reset-offsets", *named, *topic)
    run("reset, dry", "kafka-consumer-groups", *reset, "--to-earliest", "--dry-run")
    run("reset", "kafka-consumer-groups", *reset, "--to-earliest", "--execute")
    run("shift", "kafka-consumer-groups", *reset, "--shift-by", "1", "--execute")
    run("to a time", "kafka-consumer-groups", *reset, "--to-datetime", "2020-01-01T00:00:00.000", "--execute")
    run("export", "kafka-consumer-groups", *reset, "--to-current", "--export", "--dry-run")
    run("describe after that", "kafka-consumer-groups", "--describe", *named)
    run("delete offsets", "kafka-consumer-groups", "--delete-offsets", *named, *topic)
    run("delete", "kafka-consumer-groups", "--delete", *named)
    run("delete again", "kafka-consumer-groups", "--delete", *named)
    run("describe what is not there", "kafka-consumer-groups", "--describe", *named)


def transactions(tour: Tour) -> None:
    run = tour.run
    run("create", "kafka-topics", "--create", "--topic", tour.name)
    done, open_ = f"{tour.name}-done", f"{tour.name}-open"
    java_client().produce(tour.bootstrap, tour.name, [Record("a", "1")], transactional_id=done)
    java_client().produce(tour.bootstrap, tour.name, [Record("a", "2")], transactional_id=open_, end="never")
    run("list", "kafka-transactions", "list")
    run("list older", "kafka-transactions", "list", "--duration-filter", "3600000")
    run("describe done", "kafka-transactions", "describe", "--transactional-id", done)
    run("describe open", "kafka-transactions", "describe", "--transactional-id", open_)
    run("describe unknown", "kafka-transactions", "describe", "--transactional-id", "nobody")
    place = ("--topic", tour.name, "--partition", "0")
    run("producers", "kafka-transactions", "describe-producers", *place)
    run("hanging", "kafka-transactions", "find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0")
    run("abort", "kafka-transactions", "abort", *place, "--start-offset", "2")
    run("abort again", "kafka-transactions", "abort", *place, "--start-offset", "2")
    run("terminate", "kafka-transactions", "forceTerminateTransaction", "--transactionalId", open_)
    run("describe terminated", "kafka-transactions", "describe", "--transactional-id", open_)


def cluster(tour: Tour) -> None:
    run = tour.run
    run("quorum", "kafka-metadata-quorum", "describe", "--status")
    run("quorum, replicas", "kafka-metadata-quorum", "describe", "--replication", "--human-readable")
    run("features", "kafka-features", "describe")
    run("features, same level", "kafka-features", "upgrade", "--feature", "group.version=1")
    run("features, down", "kafka-features", "downgrade", "--feature", "share.version=0", "--dry-run")
    run("features, unknown", "kafka-features", "upgrade", "--feature", "no.such=1")
    run("cluster id", "kafka-cluster", "cluster-id")
    run("endpoints", "kafka-cluster", "list-endpoints")
    run("acls", "kafka-acls", "--list")
    run("versions", "kafka-broker-api-versions")
    compared_elsewhere = "|".join([*NOT_IN_MOLDAU, *ONLY_IN_MOLDAU])
    tour.keep("versions", rf"\t(?!{compared_elsewhere})\w+\(.*")
    run("create", "kafka-topics", "--create", "--topic", tour.name, "--partitions", "2")
    run("elect", "kafka-leader-election", "--election-type", "preferred", "--all-topic-partitions")
    plan = tour.scratch / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": tour.name, "partition": 0, "replicas": [1]}]}))
    run("reassign", "kafka-reassign-partitions", "--reassignment-json-file", str(plan), "--execute")
    run("reassigned", "kafka-reassign-partitions", "--reassignment-json-file", str(plan), "--verify")
    run("reassigning", "kafka-reassign-partitions", "--list")


def performance(tour: Tour) -> None:
    run = tour.run
    run("create", "kafka-topics", "--create", "--topic", tour.name)
    amount = ("--num-records", "20000", "--record-size", "100", "--throughput", "-1")
    run("produce", "kafka-producer-perf-test", "--topic", tour.name, *amount)
    run("consume", "kafka-consumer-perf-test", "--topic", tour.name, "--num-records", "20000", "--timeout", "20000")
    tour.keep("produce", r"exit 0|20000 records sent")
    tour.keep("consume", r"exit 0| 1\.9073, | 20000, ")


TOURS: dict[str, Callable[[Tour], None]] = {
    "topics and records": topics_and_records,
    "configs": configs,
    "groups": groups,
    "transactions": transactions,
    "cluster": cluster,
    "performance": performance,
}


@pytest.fixture(scope="module")
def fresh_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Some tools list all there is: neither broker is shared with other tests."""
    settings = SINGLE_NODE_PROPERTIES | {"node.id": "1"}
    with ApacheKafka() as kafka, BrokerProcess(tmp_path_factory.mktemp("tools") / "data", 0, **settings) as moldau:
        yield moldau.bootstrap_servers, kafka.bootstrap_servers


@pytest.mark.parametrize("tour", sorted(TOURS))
def test_the_tools_print_the_same(tour: str, fresh_pair: tuple[str, str], tmp_path: Path) -> None:
    name = f"tour-of-{tour.replace(' ', '-')}"
    tours = [Tour(bootstrap, name, tmp_path / str(number)) for number, bootstrap in enumerate(fresh_pair)]
    for each in tours:
        each.scratch.mkdir()
    with ThreadPoolExecutor(len(tours)) as pool:
        list(pool.map(TOURS[tour], tours))
    ours, theirs = (each.printed for each in tours)
    assert ours == theirs
    assert "UnsupportedVersion" not in "".join(ours.values())
