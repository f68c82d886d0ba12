"""Pipelines as people run them, by the command line, and the driver dies at random moments; what their sinks hold in
the end is exact. And who stops one properly, with Ctrl-C or SIGTERM, loses no batch either.
"""

import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from moldau.spark.pipelines.ready import generators
from tests.interop.peers.databases import mariadb, postgresql
from tests.support.broker_process import BrokerProcess
from tests.support.clients import read_all

RECORDS = 1_200
GROUPS = 5
PIPELINE = """
name: survivor
checkpoint: checkpoint
kafka: {bootstrap.servers: "${bootstrap}"}
spark: {spark.sql.shuffle.partitions: "2", spark.driver.memory: 512m}
sources:
  numbers:
    topic: ${in}
    records_per_batch: 100
    parse: {format: json, schema: "id long not null, part long not null"}
steps:
  - {name: counts, group_by: part, aggregate: {n: count(*)}}
dead_letters: ${in}-dlt
sinks:
"""
# Every query takes its time to start; so two pipelines have half of the sinks each.
SINKS = {
    "topics": """
  - {name: topic, from: numbers, topic: "${in}-out", key: id}
  - {name: changes, topic: "${in}-counts", key: part, mode: update}
  - {name: parquet, from: numbers, parquet: parquet}
""",
    "tables": """
  - {name: delta, from: numbers, delta: delta, compact_every: 4}
  - {name: iceberg, from: numbers, iceberg: a.numbers, warehouse: iceberg}
  - {name: database, from: numbers, database: "sqlite:///${folder}/out.db", table: numbers}
  - {name: upsert, from: counts, database: "sqlite:///${folder}/counts.db", table: counts, key: part, mode: update}
""",
    "shared": """
  - {name: topic, from: numbers, topic: "${in}-out", key: id, delivery: exactly-once}
  - {name: looked-up, from: named, topic: "${in}-named", key: id, delivery: exactly-once}
  - {name: delta, from: named, delta: delta, partition_by: part, compact_every: 4}
  - {name: iceberg, from: named, iceberg: a.numbers, warehouse: iceberg, partition_by: part, compact_every: 4}
""",
}
# One read for all of these sinks, and a table that is kept beside it.
SHARING = (
    """
share_reads: true
""",
    """
  parts: {topic: "${in}-parts", as_table: true, parse: {format: json, schema: "part long, name string"}}
steps:
  - {name: named, from: numbers, join: parts, on: part, how: left}
""",
)


class Run:
    """A `moldau pipeline run` in a process group of its own, as a shell would start it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._output = folder / "output.txt"
        command = [sys.executable, "-m", "moldau", "pipeline", "run", *arguments]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True, cwd=folder
            )

    def said(self) -> str:
        return self._output.read_text(errors="replace")

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = 600) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"it ended before {what}:\n{self.said()[-4000:]}"
            assert time.monotonic() < deadline, f"still not {what}:\n{self.said()[-4000:]}"
            time.sleep(0.05)  # what another process has written or printed can only be looked at

    def kill(self) -> None:
        """The JVM with it. Python's workers have groups of their own: they are the zombies."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self, seconds: float = 300) -> int:
        return self.process.wait(seconds)


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Run]:
    run = Run(folder, *arguments)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.kill()


def commits(checkpoint: Path) -> Counter[str]:
    """Batches that are done, by query."""
    found = checkpoint.glob("*/commits/*")
    return Counter(file.parts[-3] for file in found if file.name.isdecimal())


def kill_at_random(folder: Path, checkpoint: Path, query: str, after_s: float, *arguments: str) -> None:
    """Where the queries are in their work when it ends is left to chance; that one of them is at work is not."""
    before = commits(checkpoint)[query]
    with running(folder, *arguments) as run:
        run.wait_until(lambda: commits(checkpoint)[query] > before, f"{query} did a batch")
        time.sleep(after_s)  # the moment of death is the input of this test
        assert run.process.poll() is None, run.said()
        run.kill()


def status(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "moldau", "pipeline", "status", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kind", [pytest.param("tables", marks=pytest.mark.long), "topics", "shared"])
def test_counts_are_exact_however_often_the_driver_is_killed(moldau: BrokerProcess, tmp_path: Path, kind: str) -> None:
    bootstrap, topic, checkpoint = moldau.bootstrap_servers, f"survivor-{kind}", tmp_path / "checkpoint"
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
    for number in range(RECORDS):
        producer.produce(topic, json.dumps({"id": number, "part": number % GROUPS}).encode(), str(number))
        if number % 200 == 0:
            producer.produce(topic, b"broken")
    assert producer.flush(60) == 0
    file = PIPELINE + SINKS[kind]
    if kind == "shared":
        top, steps = SHARING
        file = file.replace("\nsources:", top + "sources:").replace("\nsteps:\n", steps)
        for part in range(GROUPS):
            producer.produce(f"{topic}-parts", json.dumps({"part": part, "name": f"part {part}"}).encode(), str(part))
        assert producer.flush(60) == 0
    (tmp_path / "survivor.yaml").write_text(file)
    own = ["survivor.yaml"]
    for setting in (f"bootstrap={bootstrap}", f"in={topic}", *([f"folder={tmp_path}"] if "${folder}" in file else [])):
        own += ["--set", setting]
    rng = random.Random()
    queries = ["shared-numbers"] if kind == "shared" else re.findall(r"name: (\w+)", SINKS[kind])
    for _ in range(2):
        kill_at_random(tmp_path, checkpoint, rng.choice(queries), rng.uniform(0, 4), *own)
    assert status(tmp_path, *own).startswith("survivor: ended without saying so (killed?)")
    before = commits(checkpoint)
    with running(tmp_path, *own) as run:
        run.wait_until(lambda: commits(checkpoint) != before, "any batch was done")
        assert status(tmp_path, *own).startswith("survivor: running")
        run.wait_until(lambda: "rows/s" in run.said(), "its progress was told")
        # Ctrl-C reaches every process of the terminal's foreground group.
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.end() == 0, run.said()
        assert "stopping after the current batch…" in run.said()
        assert run.said().endswith("survivor: stopped\n")
    assert status(tmp_path, *own).startswith("survivor: not running")
    with running(tmp_path, *own, "--once") as run:
        assert run.end(600) == 0, run.said()
    if kind == "topics":
        check_topics(bootstrap, topic, tmp_path)
    elif kind == "tables":
        check_tables(tmp_path)
    else:
        check_shared(bootstrap, topic, tmp_path)
    assert [each.value() for each in read_all(bootstrap, f"{topic}-dlt")] == [b"broken"] * (RECORDS // 200)


def check_topics(bootstrap: str, topic: str, folder: Path) -> None:
    from moldau.spark import session

    check_ids("topic", [json.loads(each.value() or b"")["id"] for each in read_all(bootstrap, f"{topic}-out")])
    spark = session("moldau-interop", master="local[2]")
    check_ids("parquet", [row.id for row in spark.read.parquet(str(folder / "parquet")).select("id").collect()])
    # Each change of a count was told once: counts only grow.
    told = defaultdict(list)
    for message in read_all(bootstrap, f"{topic}-counts"):
        row = json.loads(message.value() or b"")
        told[row["part"]].append(row["n"])
    assert all(ns == sorted(set(ns)) and ns[-1] == RECORDS // GROUPS for ns in told.values()), told
    assert len(told) == GROUPS


def check_tables(folder: Path) -> None:
    from deltalake import DeltaTable

    from moldau.spark.pipelines.tables import iceberg_catalog

    check_ids("delta", DeltaTable(str(folder / "delta")).to_pyarrow_table().column("id").to_pylist())
    catalog = iceberg_catalog(str(folder / "iceberg"), {})
    check_ids("iceberg", catalog.load_table("a.numbers").scan().to_arrow().column("id").to_pylist())
    catalog.close()
    with sqlite3.connect(folder / "out.db") as connection:
        check_ids("database", [row[0] for row in connection.execute("SELECT id FROM numbers")])
    with sqlite3.connect(folder / "counts.db") as connection:
        counts = dict(connection.execute("SELECT part, n FROM counts").fetchall())
    assert counts == dict.fromkeys(range(GROUPS), RECORDS // GROUPS)


def check_shared(bootstrap: str, topic: str, folder: Path) -> None:
    from deltalake import DeltaTable

    from moldau.spark.pipelines.tables import iceberg_catalog

    check_ids("topic", [json.loads(each.value() or b"")["id"] for each in read_all(bootstrap, f"{topic}-out")])
    catalog = iceberg_catalog(str(folder / "iceberg"), {})
    iceberg = catalog.load_table("a.numbers")
    found = {
        "looked up": [json.loads(each.value() or b"") for each in read_all(bootstrap, f"{topic}-named")],
        "delta": DeltaTable(str(folder / "delta")).to_pyarrow_table().to_pylist(),
        "iceberg": iceberg.scan().to_arrow().to_pylist(),
    }
    assert DeltaTable(str(folder / "delta")).metadata().partition_columns == ["part"]
    assert [each.name for each in iceberg.spec().fields] == ["part"]
    catalog.close()
    for name, rows in found.items():
        check_ids(name, [row["id"] for row in rows])
        assert all(row["name"] == f"part {row['part']}" and row["part"] == row["id"] % GROUPS for row in rows), name


def check_ids(name: str, found: list[int]) -> None:
    expected = Counter(range(RECORDS))
    assert (Counter(found) - expected, expected - Counter(found)) == (Counter(), Counter()), f"{name}: more, fewer"


@pytest.mark.parametrize("end", ["java dies", "all are told to end", "java is told a little earlier"])
def test_the_end_of_java_is_no_traceback(moldau: BrokerProcess, tmp_path: Path, end: str) -> None:
    producer = Producer({"bootstrap.servers": moldau.bootstrap_servers})
    producer.produce("ends", b"x")
    producer.flush()
    kafka = f"kafka: {{bootstrap.servers: '{moldau.bootstrap_servers}'}}"
    rest = "sources: {ends: {topic: ends}}\nsinks: [{console: 1}]\nspark: {spark.driver.memory: 512m}\n"
    (tmp_path / "ends.yaml").write_text(f"name: ends\ncheckpoint: checkpoint\n{kafka}\n{rest}")
    with running(tmp_path, "ends.yaml") as run:
        run.wait_until(lambda: "rows/s" in run.said(), "a batch was done")
        java = child_of(run.process.pid, "java")
        if end == "java dies":
            os.kill(java, signal.SIGKILL)
        else:  # as systemd does, one after the other
            os.kill(java, signal.SIGTERM if "earlier" in end else 0)
            time.sleep(0.2 if "earlier" in end else 0)  # Java has begun to end, or not: either must be well
            os.killpg(run.process.pid, signal.SIGTERM)
        assert run.end() == (1 if end == "java dies" else 0), run.said()
        assert "Traceback" not in run.said(), run.said()
        died = "moldau: ends: Spark's Java process has died" in run.said()
        assert died == (end == "java dies")
        assert ("ends: stopped" in run.said()) == (not died)
    if not died:
        status = json.loads((tmp_path / "checkpoint" / "status.json").read_text())
        assert [status["running"], *((each["state"], each["error"]) for each in status["queries"])] == [
            False,
            ("stopped", ""),
        ]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_who_ends_a_start_sees_no_traceback(tmp_path: Path, number: int, code: int) -> None:
    sinks = "sinks: [{console: 1}, {name: a, parquet: a}, {name: b, parquet: b}]"
    rest = f"checkpoint: checkpoint\nsources: {{ticks: {{rate: 5}}}}\n{sinks}\nspark: {{spark.driver.memory: 512m}}\n"
    (tmp_path / "ticks.yaml").write_text(f"name: ticks\n{rest}")
    status_file = tmp_path / "checkpoint" / "status.json"
    with running(tmp_path, "ticks.yaml") as run:
        run.wait_until(status_file.exists, "the first query is being started")
        run.process.send_signal(number)
        assert run.end() == code, run.said()
        assert "Traceback" not in run.said(), run.said()
    status = json.loads(status_file.read_text())
    assert [status["running"], *(each["state"] for each in status["queries"])] == [False, *["stopped"] * 3]


def child_of(parent: int, name: str) -> int:
    """A process of this name in the group of another."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            pid, rest = stat.parent.name, stat.read_text()
            if f"({name})" in rest and rest.rpartition(")")[2].split()[2] == str(parent):
                return int(pid)
    raise AssertionError(f"no {name} below {parent}")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_databases_agree_however_often_the_driver_between_them_is_killed(moldau: BrokerProcess, tmp_path: Path) -> None:
    """The ready pipeline `integrate`: PostgreSQL's outbox into a topic, the topic into MariaDB, with deletions."""
    bootstrap, checkpoint = moldau.bootstrap_servers, tmp_path / "checkpoint"
    with postgresql() as source, mariadb() as target:
        truth = generators.integrate(bootstrap, {"source_database": source}, 1_000)
        own = ["integrate", "-b", bootstrap, "--checkpoint", str(checkpoint)]
        for setting in (f"source_database={source}", f"target_database={target}", "rows_per_batch=100"):
            own += ["--set", setting]
        rng = random.Random()
        for _ in range(2):
            query = rng.choice(["topic-outbox", "database-changes"])
            kill_at_random(tmp_path, checkpoint, query, rng.uniform(0, 4), *own)
        engine = create_engine(target, poolclass=NullPool)

        def names() -> dict[int, str]:
            with engine.connect() as connection:
                if not engine.dialect.has_table(connection, "customers"):
                    return {}
                return {row[0]: row[1] for row in connection.execute(text("SELECT customer_id, name FROM customers"))}

        with running(tmp_path, *own) as run:
            run.wait_until(lambda: names() == truth["names"], "both databases agreed")
            run.process.send_signal(signal.SIGTERM)
            assert run.end() == 0, run.said()
            assert run.said().endswith("integrate: stopped\n")
        assert names() == truth["names"]
        engine.dispose()
    ids = [dict(each.headers() or ())["id"] for each in read_all(bootstrap, "outbox.event.customer", 2)]
    assert (len(ids), len(set(ids))) == (1_000, 1_000)
