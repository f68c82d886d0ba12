"""One tour through every command that talks to a cluster, as a transcript: what each step was and what it printed.

`tests/cli/golden` has the transcripts that count. Moldau is held against them in `tests/cli/test_golden_outputs.py`,
Apache Kafka in `tests/interop/test_command_line.py`: the same words, the same exit codes. Masked is what differs
between two runs on the same broker: names, times, ids, addresses, sizes on disk.

Who changes what a command says looks at the difference, and writes the transcripts anew with
`GOLDEN=write python -m pytest tests/cli/test_golden_outputs.py`.
"""

import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer

from tests.cli.running import Command, Ended
from tests.spark.fake_registry import running as registry_running
from tests.support.clients import wait_for
from tests.support.stray_batches import UNVERIFIED, write_stray_batch

GOLDEN = Path(__file__).resolve().parents[1] / "cli" / "golden"

# Same on both, so that their outputs are.
SETTINGS = {
    "node.id": "1",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}

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
    (r"reader-[-0-9a-f]{36}", "MEMBER"),
    (r"(?m)^( *\d+  \w+) .*$", r"\1 VERSIONS"),  # which versions of an API there are is a broker's affair
)


_LOOKING = frozenset({"list", "describe", "offsets", "sizes", "status", "replicas", "producers"})
_HEARD_SECONDS_MAX = 10.0


class Tour:
    """`ok` where a command must succeed, `run` where how it ends is in the transcript only."""

    def __init__(self, bootstrap_servers: str, name: str, scratch: Path) -> None:
        self.name = name
        self.scratch = scratch
        self.bootstrap_servers = bootstrap_servers
        self.commands: set[str] = set()
        self._steps: list[str] = []
        self._expected: list[str] = []
        self._command = Command(bootstrap_servers, str(scratch))

    def run(self, *arguments: str, stdin: str = "", only: str = "") -> str:
        """`only` lines in which this pattern is found are kept: the others are about this machine.

        A broker hears of a change a moment after the controller has answered: who only looks, looks again for a while.
        """
        self.commands.add(" ".join(arguments[:2]))
        deadline = time.monotonic() + _HEARD_SECONDS_MAX
        while True:
            ended = self._command(*arguments, stdin=stdin)
            step = self._step(arguments, ended, only)
            expected = self._expected[len(self._steps)] if len(self._steps) < len(self._expected) else step
            if step == expected or not _LOOKING.intersection(arguments[:2]) or time.monotonic() > deadline:
                break
        self._steps.append(step)
        return ended.out

    def _step(self, arguments: tuple[str, ...], ended: Ended, only: str) -> str:
        kept = [line for line in ended.out.splitlines() if re.search(only, line)]
        text = "\n".join([f"$ moldau {shlex.join(arguments)}", f"exit {int(ended.code)}", *kept, ended.err]).rstrip()
        for pattern, word in (*MASKS, (re.escape(self.name), "NAME"), (re.escape(str(self.scratch)), "SCRATCH")):
            text = re.sub(pattern, word, text)
        # How a broker words a refusal is its own affair; that there is one, and which kind, is not.
        return re.sub(r"(?m)^moldau: (?!nothing|\d|no |there|the ).*$", "moldau: …", text)

    def ok(self, *arguments: str, stdin: str = "", only: str = "") -> str:
        said = self.run(*arguments, stdin=stdin, only=only)
        assert "\nexit 0" in self._steps[-1], self._steps[-1]
        return said

    def walk(self, part: Callable[["Tour"], None]) -> str:
        """One part's transcript."""
        self._steps = []
        file = GOLDEN / f"{part.__name__}.txt"
        is_written = os.environ.get("GOLDEN") == "write" or not file.exists()
        self._expected = [] if is_written else file.read_text(encoding="utf-8").rstrip("\n").split("\n\n")
        part(self)
        return "\n\n".join(self._steps) + "\n"


def golden(part: Callable[[Tour], None]) -> str:
    return (GOLDEN / f"{part.__name__}.txt").read_text(encoding="utf-8")


def write_if_asked(part: Callable[[Tour], None], transcript: str) -> None:
    if os.environ.get("GOLDEN") == "write":
        GOLDEN.mkdir(exist_ok=True)
        (GOLDEN / f"{part.__name__}.txt").write_text(transcript, encoding="utf-8")


def topics(tour: Tour) -> None:
    name = tour.name
    tour.ok("topic", "create", name, "-p", "3", "-c", "retention.ms=600000")
    tour.run("topic", "create", name)
    tour.ok("topic", "create", name, "--if-not-exists")
    tour.ok("topic", "create", f"{name}-dry", "--dry-run")
    tour.run("topic", "create", f"{name}-bad", "-c", "retention.ms=soon")
    tour.run("topic", "create", f"{name}-bad", "-r", "5")
    tour.ok("topic", "list", f"{name}*", "--json")
    tour.ok("topic", "describe", name)
    tour.ok("topic", "alter", name, "-c", "max.message.bytes=2000", "-u", "retention.ms")
    tour.ok("topic", "describe", name, "--json")
    tour.ok("config", "describe", "topic", name, "max.message.bytes", "retention.ms", "--json")
    tour.ok("config", "set", "topic", name, "cleanup.policy+=compact")
    tour.ok("config", "describe", "topic", name, "cleanup.policy", "--json")
    tour.ok("config", "unset", "topic", name, "cleanup.policy")
    tour.run("config", "set", "topic", name, "no.such.setting=1")
    tour.ok("config", "set", "broker", "1", "log.cleaner.threads=2")
    # Kafka may take a moment until it holds: the value is left out.
    tour.ok("config", "describe", "broker", "1", "log.cleaner.threads", "--format", "{setting} {from}")
    metrics = ("client-metrics", name)
    tour.ok("config", "set", *metrics, "interval.ms=60000", "metrics=org.apache")
    tour.ok("config", "list", "client-metrics", "--json")
    tour.ok("config", "unset", *metrics, "interval.ms", "metrics")
    tour.ok("config", "unset", "broker", "1", "log.cleaner.threads")
    tour.ok("topic", "add-partitions", name, "--to", "4")
    tour.run("topic", "add-partitions", name, "--to", "2")
    tour.run("topic", "describe", f"{name}-none")
    tour.run("topic", "delete", f"{name}-none")


def records(tour: Tour) -> None:
    name = tour.name
    lines = "".join(f"k{number}:value {number}\n" for number in range(20))
    at = ["-t", "2026-01-02T03:04:05Z"]
    tour.ok("produce", name, "-k", ":", "-H", "h=1", "-z", "zstd", *at, stdin=lines)
    tour.ok("produce", name, "-p", "3", *at, "--json", stdin="a\nb\nc\n")
    tour.ok("produce", name, "-p", "2", *at, "--transactional-id", f"{name}-t", stdin="x\ny\n")
    tour.run("produce", name, "-k", ":", stdin="none\n")
    tour.run("produce", name, "-p", "0", stdin="x" * 5_000)
    tour.ok("consume", name, "-p", "3", "-a", "-e", "--json")
    for partition in ("0", "1", "2"):
        tour.ok("consume", name, "-p", partition, "-a", "-e", "-k", "=", "--headers", "--timestamps")
    tour.ok("consume", name, "-p", "3", "-o", "-1", "-e")
    tour.ok("consume", name, "-p", "3", "--since", "2026-01-02", "-e", "-n", "2")
    tour.ok("consume", name, "-p", "3", "-a", "--until", "2026-01-02")
    tour.ok(
        "consume",
        name,
        "-a",
        "-e",
        "--where",
        "value=value 7",
        "--format",
        "{partition} {offset} {key}",
    )
    tour.ok("consume", name, "-g", f"{name}-g", "-a", "-n", "25", "--format", "")
    tour.ok("topic", "offsets", name, "--at", "2026-01-02T03:04:05Z", "--json")
    tour.ok("topic", "sizes", name, "-p", "--json")
    tour.run("consume", f"{name}-none")
    tour.ok("topic", "empty", name, "-p", "3", "--before", "2", "--json")


def groups(tour: Tour) -> None:
    name, group = tour.name, f"{tour.name}-g"
    tour.ok("group", "describe", group, "--json")
    tour.ok("group", "lag", group, "--json")
    tour.ok("group", "list", "--state", "empty", "--type", "classic", "--format", "{group} {state}")
    tour.ok("group", "reset", group, "-t", name, "--to", "earliest", "--plan", str(tour.scratch / "plan"))
    tour.ok("group", "reset", group, "-t", f"{name}:0,1", "--to", "+1", "--execute", "--json")
    tour.ok("group", "reset", group, "-t", name, "--to", "2026-01-02T03:04:05Z", "--execute")
    tour.ok("group", "reset", group, "--from-file", str(tour.scratch / "plan"), "--execute")
    tour.run("group", "lag", group, "--max", "0")
    tour.ok("lag", group, "--format", "{partition} {committed} {end} {lag} {state}")
    tour.ok("group", "delete-offsets", group, "-t", name, "--json")
    tour.ok("group", "delete", group)
    tour.run("group", "delete", group)
    tour.run("group", "describe", group)
    streams = f"{name}-app"
    tour.ok("topic", "create", f"{streams}-counts-changelog", f"{streams}-counts-repartition")
    tour.ok("group", "reset-streams", streams, "-t", name)
    tour.ok("group", "reset-streams", streams, "-t", f"{name}:0,1", "--to", "1", "--execute", "--json")
    tour.ok("group", "reset-streams", streams)
    tour.ok("group", "delete", streams)
    with _member(tour, f"{name}-live"):
        tour.run("group", "reset-streams", f"{name}-live", "-t", name, "--execute")
        tour.ok("group", "members", f"{name}-live", "--json")
        tour.run("group", "delete", f"{name}-live")


def operating(tour: Tour) -> None:
    name = tour.name
    tour.ok("broker", "list", "--json")
    tour.ok("broker", "disks", "--json")
    tour.ok("broker", "api-versions", "1", only=r"^key|^ *(0|1|18) ")
    tour.ok("broker", "features", "--format", "{feature} {level}")
    tour.run("broker", "set-feature", "metadata.version", "1")
    tour.ok("broker", "set-feature", "transaction.version", "1", "--downgrade", "--dry-run", "--json")
    tour.ok("broker", "elect-leaders", name)
    tour.ok("quorum", "status", "--json")
    tour.ok("quorum", "replicas", "--json")
    tour.ok("reassign", "plan", name)
    tour.run("reassign", "plan", name, "-r", "3")
    plan = tour.scratch / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": name, "partition": 0, "replicas": [1]}]}))
    tour.ok("reassign", "run", str(plan), "--wait")
    tour.ok("reassign", "status")
    tour.ok("reassign", "cancel", "--all")
    tour.ok("reassign", "cancel", "--all", "--json")
    tour.ok("reassign", "unthrottle", name)
    tour.run("reassign", "drain", "1")
    tour.ok("txn", "list", "--format", "{id} {state}")
    tour.ok("txn", "describe", f"{name}-t", "--format", "{state} {timeout_ms} {partitions}")
    tour.ok("txn", "producers", name, "-p", "2", "--json")
    tour.ok("txn", "hanging", name)
    tour.ok("txn", "terminate", f"{name}-t")
    tour.ok("txn", "terminate", f"{name}-t", "--format", "{id} {result}")
    start = _leave_one_hanging(tour, f"{name}-stuck")
    tour.run("txn", "hanging", f"{name}-stuck", "--older-than", "0", "--format", "{start_offset}")
    tour.ok("txn", "abort", f"{name}-stuck", "-p", "0", "--start-offset", start)
    tour.ok("txn", "hanging", f"{name}-stuck", "--older-than", "0")
    tour.run("txn", "abort", f"{name}-stuck", "-p", "0", "--start-offset", start)
    tour.run("txn", "describe", f"{name}-none")
    tour.ok("health")
    tour.ok(
        "doctor", "--format", "{check} {result}", only="^(bootstrap|login|advertised|brokers|leaders|replicas|quorum)"
    )
    tour.ok("top", "-c", "1", "-i", "0.3", "--format", "")
    tour.ok("bench", "latency", name, "-n", "5", "--format", "{records}")
    tour.ok("bench", "produce", name, "-n", "5", only="^produced|^records")
    tour.ok("bench", "consume", name, "-n", "5", only="^consumed|^records")
    tour.ok("topic", "delete", name)


def letters(tour: Tour) -> None:
    """Dead letters as Kafka Connect writes them, traces as the toolkit does."""
    name = f"{tour.name}-l"
    told = {"topic": name, "partition": 0, "offset": 7}
    told |= {"exception.class.name": "ValueError", "exception.message": "no such colour"}
    headers = [each for key, value in told.items() for each in ("-H", f"__connect.errors.{key}={value}")]
    at = ["-t", "2026-01-02T03:04:05Z"]
    tour.ok("topic", "create", name, f"{name}-dlt")
    tour.ok("produce", f"{name}-dlt", "-k", ":", *headers, *at, stdin="k:mauve\n")
    tour.ok("dlq", "list", name)
    tour.ok("dlq", "list", name, "--json")
    tour.ok("dlq", "show", name, "0:0")
    tour.ok("dlq", "show", name, "0:0", "--json")
    tour.ok("dlq", "redrive", name, "--all")
    tour.ok("dlq", "redrive", name, "--all", "--json")
    tour.ok("consume", name, "-a", "-e", "-k", "=")
    tour.run("dlq", "show", name, "0:9")
    story = {"at_ms": 1_767_323_045_000, "event": "produced", "app": "shop", "topic": name}
    tour.ok("topic", "create", f"{name}-trace")
    tour.ok("produce", f"{name}-trace", "-k", "=", *at, stdin=f"o-17={json.dumps(story)}\n")
    tour.ok("trace", "o-17", "--topic", f"{name}-trace")
    tour.ok("trace", "o-17", "--topic", f"{name}-trace", "--json")
    tour.run("trace", "o-18", "--topic", f"{name}-trace")


def guarding(tour: Tour) -> None:
    """Rules, limits, users. `moldau token` needs a login: tests/interop/test_security_tools.py."""
    tour.ok("acl", "add", "-p", "User:ann", "-o", "Read", "--topic", "team-", "--prefixed")
    tour.ok("acl", "add", "-p", "User:bob", "-o", "Write", "--topic", "orders", "--deny", "--json")
    _until(tour, "acl", "list", expected=2)
    tour.ok("acl", "list")
    tour.ok("acl", "list", "--topic", "team-a", "--json")
    tour.ok("acl", "remove", "-o", "Read", "--topic", "team-", "--prefixed")
    tour.ok("acl", "remove", "--all", "--json")
    tour.ok("quota", "set", "-u", "ann", "--produce", "1M", "--mutations", "2.5")
    tour.ok("quota", "set", "--ip", "", "--connections", "10", "--json")
    _until(tour, "quota", "list", expected=3)
    tour.ok("quota", "list")
    tour.ok("quota", "list", "--json")
    tour.ok("quota", "remove", "-u", "ann")
    tour.ok("quota", "remove", "--ip", "", "--json")
    tour.ok("user", "add", "ann", "-m", "SCRAM-SHA-256", "--password-stdin", stdin="secret\n")
    tour.ok("user", "add", "bob", "-m", "SCRAM-SHA-512", "--password-stdin", "--json", stdin="secret\n")
    _until(tour, "user", "list", expected=2)
    tour.ok("user", "list")
    tour.ok("user", "list", "--json")
    tour.ok("user", "remove", "ann")
    tour.ok("user", "remove", "bob", "--json")


def schemas(tour: Tour) -> None:
    """A registry of our own: Apache Kafka has none."""
    order = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    avro, proto = tour.scratch / "order.avsc", tour.scratch / "order.proto"
    avro.write_text(json.dumps(order))
    proto.write_text('syntax = "proto3";\nmessage Order { int32 id = 1; }\n')
    with registry_running() as registry:
        at = ("--registry", registry.url)
        tour.ok("registry", "list", *at)
        tour.ok("registry", "register", "orders-value", str(avro), *at)
        tour.ok("registry", "register", "orders-value", str(avro), *at, "--json")
        tour.ok("registry", "check", "orders-value", str(avro), *at)
        tour.run("registry", "check", "orders-value", str(proto), "--json", *at)
        tour.run("registry", "check", "orders-value", str(proto), "--version", "all", *at)
        imports = ("--reference", "order=orders-value:1")
        tour.ok("registry", "register", "p-value", str(proto), *imports, *at, "--format", "{id} {result}")
        tour.ok("registry", "list", *at)
        tour.ok("registry", "list", "--prefix", "p", *at, "--json")
        tour.ok("registry", "versions", "p-value", *at)
        tour.ok("registry", "show", "p-value", *at)
        tour.ok("registry", "show", "--id", "1", *at, "--json")
        tour.ok("registry", "references", "orders-value", *at)
        tour.ok("registry", "level", *at)
        tour.ok("registry", "level", "p-value", *at, "--json")
        tour.ok("registry", "level", "p-value", "--set", "full-transitive", *at)
        tour.ok("registry", "level", "p-value", "--unset", *at)
        tour.ok("registry", "mode", "--set", "readonly", *at)
        tour.ok("registry", "mode", "p-value", *at)
        tour.ok("registry", "delete", "p-value", *at)
        tour.run("registry", "delete", "p-value", *at)
        tour.ok("registry", "list", "--deleted", *at, "--format", "{subject}")
        tour.ok("registry", "delete", "p-value", "--permanent", *at)
        tour.ok("registry", "delete", "orders-value", "--version", "latest", "--permanent", *at, "--json")
        tour.ok("registry", "list", "--deleted", *at, "--json")
        tour.run("registry", "show", "orders-value", *at)


def _until(tour: Tour, *command: str, expected: int) -> None:
    """A broker hears of a change a moment after the controller has answered."""
    asking = Command(tour.bootstrap_servers, str(tour.scratch))
    wait_for(lambda: len(asking.ok(*command, "--json").json) == expected, " ".join(command))


@contextmanager
def _member(tour: Tour, group: str) -> Iterator[None]:
    """Somebody who reads the tour's topic."""
    settings = {"bootstrap.servers": tour.bootstrap_servers, "group.id": group, "client.id": "reader"}
    consumer = Consumer(settings)
    try:
        consumer.subscribe([tour.name])

        def has_partitions() -> bool:
            consumer.poll(0.1)
            return bool(consumer.assignment())

        wait_for(has_partitions, "a member with partitions")
        yield
    finally:
        consumer.close()


def _leave_one_hanging(tour: Tour, topic: str) -> str:
    """Where it begins. That nobody asks the coordinator takes a moment to hold."""
    (setting,) = UNVERIFIED
    tour.ok("topic", "create", topic)
    tour.ok("config", "set", "broker", "1", f"{setting}={UNVERIFIED[setting]}")
    began: list[int] = []

    def is_written() -> bool:
        try:
            began.append(write_stray_batch(tour.bootstrap_servers, topic, 1_000_000))
        except AssertionError:
            return False
        return True

    wait_for(is_written, "a batch nobody asked for")
    tour.ok("config", "unset", "broker", "1", setting)
    return str(began[0])


PARTS = (topics, records, groups, operating, letters, guarding, schemas)

# What a tour through somebody's cluster cannot have, and who tries it instead.
ELSEWHERE = {
    **dict.fromkeys(("serve", "format", "cluster"), "run Moldau's own nodes, never Apache Kafka"),
    **dict.fromkeys(("certs", "context", "console-user"), "talk to no cluster"),
    **dict.fromkeys(
        ("pipeline", "spark"),
        "need Java: tests/spark; what they stand on reads Apache Kafka in tests/interop/test_spark_*.py",
    ),
    "app": "tests/toolkit/test_running.py; tests/interop/test_toolkit.py runs it on Apache Kafka",
    "console": "tests/interop/test_console.py, on both",
    "relay": "tests/toolkit/test_relay.py; tests/interop/test_toolkit_delays.py runs it on Apache Kafka",
    "token": "needs a login: tests/interop/test_security_tools.py, on both",
    "log": "reads files: tests/cli/test_log_commands.py, and Apache Kafka's in tests/interop/test_command_line.py",
    "broker unregister": "needs a broker that went away: tests/cli/test_cluster.py, tests/interop/test_quorum.py",
    "quorum add-voter": "needs one more controller: tests/interop/test_quorum.py",
    "quorum remove-voter": "needs one more controller: tests/interop/test_quorum.py",
}
