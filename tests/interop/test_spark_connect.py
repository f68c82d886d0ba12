"""Source, sink and whole pipelines behind Spark Connect: this side has no JVM, and the server has no such client.

Programs are processes of their own, as a process of PySpark is either of the one kind or of the other.
"""

import json
import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.interop.apache_kafka import ApacheKafka
from tests.interop.spark_connect import ConnectServer
from tests.interop.spark_exactly_once import fill, run_to_the_end
from tests.interop.spark_exactly_once_driver import KEYS, PARTITIONS, ROWS_PER_PARTITION, steps_for
from tests.interop.test_spark_pipelines import commits, running
from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_topic, fresh, quiet, read_all

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]
RECORDS = 600
GROUPS = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path_factory.mktemp("connect")) as found:
        yield found


@pytest.fixture
def bootstrap(request: pytest.FixtureRequest) -> str:
    cluster: BrokerProcess | ApacheKafka = request.getfixturevalue(request.param)
    return cluster.bootstrap_servers


BOTH = pytest.mark.parametrize("bootstrap", ["moldau", "apache_kafka"], indirect=True)

PROGRAM = """
import sys

from pyspark.sql import SparkSession

url, bootstrap, topic = sys.argv[1:]
spark = SparkSession.builder.remote(url).getOrCreate()
rows = spark.range(500).selectExpr("CAST(id AS STRING) AS key", "CAST(id * 2 AS STRING) AS value")
rows.write.format("moldau").option("kafka.bootstrap.servers", bootstrap).option("topic", topic).mode("append").save()
read = spark.read.format("moldau").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
(row,) = read.selectExpr("count(*) AS n", "sum(CAST(CAST(value AS STRING) AS BIGINT)) AS total").collect()
print(row.n, row.total)
"""


@BOTH
def test_a_program_that_imports_nothing_of_ours_writes_and_reads(server: ConnectServer, bootstrap: str) -> None:
    """The server registers the format by itself, from the package installed in its Python."""
    topic = create_topic(bootstrap, "connect", 2)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.url, bootstrap, topic],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.split() == ["500", str(500 * 499)], done.stderr[-4000:]


@BOTH
def test_every_record_is_passed_on_once(server: ConnectServer, bootstrap: str, tmp_path: Path) -> None:
    """A worker of the server dies once in each batch, at the decisive steps of a task."""
    source, target = (create_topic(bootstrap, name, PARTITIONS) for name in ("in", "out"))
    expected = fill(bootstrap, source, len(steps_for("worker-decisive")))
    run_to_the_end(bootstrap, source, target, tmp_path, "worker-decisive", "pass", server.url)
    assert Counter(bytes(each.value() or b"") for each in read_all(bootstrap, target, PARTITIONS)) == expected


@pytest.mark.parametrize("bootstrap", ["moldau"], indirect=True)
def test_every_count_is_told_once(server: ConnectServer, bootstrap: str, tmp_path: Path) -> None:
    """Output mode update: `foreachBatch`, whose function runs in a process of the server."""
    source, target = (create_topic(bootstrap, name, PARTITIONS) for name in ("in", "out"))
    batches = len(steps_for("worker-decisive"))
    fill(bootstrap, source, batches)
    run_to_the_end(bootstrap, source, target, tmp_path, "worker-decisive", "count", server.url)
    told = defaultdict(list)
    for message in read_all(bootstrap, target, PARTITIONS):
        told[message.key()].append(int(bytes(message.value() or b"")))
    assert len(told) == KEYS
    for counts in told.values():
        assert counts == [PARTITIONS * ROWS_PER_PARTITION // KEYS * (batch + 1) for batch in range(batches)]


PIPELINE = """
name: far
checkpoint: ${folder}/checkpoint
share_reads: true
dead_letters: ${in}-dlt
kafka: {bootstrap.servers: "${bootstrap}"}
sources:
  numbers:
    topic: ${in}
    records_per_batch: 100
    parse: {format: json, schema: "id long not null, part long not null"}
  parts: {topic: "${in}-parts", as_table: true, parse: {format: json, schema: "part long, name string"}}
steps:
  - {name: named, from: numbers, join: parts, on: part, how: left}
  - {name: counts, group_by: part, aggregate: {n: count(*)}}
sinks:
  - {name: topic, from: numbers, topic: "${in}-out", key: id}
  - {name: looked-up, from: named, topic: "${in}-named", key: id, delivery: exactly-once}
  - {name: delta, from: numbers, delta: "${folder}/table"}
  - {name: iceberg, from: numbers, iceberg: a.numbers, warehouse: "${folder}/iceberg"}
  - {name: database, from: numbers, database: "sqlite:///${folder}/out.db", table: numbers}
  - {name: upsert, from: counts, database: "sqlite:///${folder}/counts.db", table: counts, key: part, mode: update}
"""


def test_a_pipeline_is_exact_though_the_server_is_killed(
    server: ConnectServer, moldau: BrokerProcess, tmp_path: Path
) -> None:
    """By the command line, on this side; the server dies amid its work, and is started again."""
    bootstrap, topic, checkpoint = moldau.bootstrap_servers, fresh("far"), tmp_path / "checkpoint"
    producer = Producer(quiet(bootstrap))
    for part in range(GROUPS):
        producer.produce(f"{topic}-parts", json.dumps({"part": part, "name": f"part {part}"}).encode(), str(part))
    for number in range(RECORDS):
        producer.produce(topic, json.dumps({"id": number, "part": number % GROUPS}).encode(), str(number))
        if number % 200 == 0:
            producer.produce(topic, b"broken")
    assert producer.flush(60) == 0
    (tmp_path / "far.yaml").write_text(PIPELINE)
    own = ["far.yaml", "--master", server.url]
    for setting in (f"folder={tmp_path}", f"bootstrap={bootstrap}", f"in={topic}"):
        own += ["--set", setting]
    with running(tmp_path, *own) as run:
        run.wait_until(lambda: commits(checkpoint)["shared-numbers"] > 0, "a batch was done")
        server.kill()
        run.kill()  # Spark's client would ask for a server that is gone for some ten minutes
    before = commits(checkpoint)
    server.start()
    with running(tmp_path, *own, "--once") as run:
        assert run.end(600) == 0, run.said()
    assert commits(checkpoint) != before
    check(bootstrap, topic, tmp_path)


def check(bootstrap: str, topic: str, folder: Path) -> None:
    from deltalake import DeltaTable

    from moldau.spark.pipelines.tables import iceberg_catalog

    catalog = iceberg_catalog(str(folder / "iceberg"), {})
    found = {
        "topic": [json.loads(each.value() or b"")["id"] for each in read_all(bootstrap, f"{topic}-out")],
        "delta": DeltaTable(str(folder / "table")).to_pyarrow_table().column("id").to_pylist(),
        "iceberg": catalog.load_table("a.numbers").scan().to_arrow().column("id").to_pylist(),
    }
    catalog.close()
    with sqlite3.connect(folder / "out.db") as connection:
        found["database"] = [row[0] for row in connection.execute("SELECT id FROM numbers")]
    with sqlite3.connect(folder / "counts.db") as connection:
        counts = dict(connection.execute("SELECT part, n FROM counts").fetchall())
    named = [json.loads(each.value() or b"") for each in read_all(bootstrap, f"{topic}-named")]
    assert all(row["name"] == f"part {row['part']}" for row in named)
    found["looked up"] = [row["id"] for row in named]
    for name, ids in found.items():
        assert sorted(ids) == list(range(RECORDS)), name
    assert counts == dict.fromkeys(range(GROUPS), RECORDS // GROUPS)
    assert [each.value() for each in read_all(bootstrap, f"{topic}-dlt")] == [b"broken"] * (RECORDS // 200)
