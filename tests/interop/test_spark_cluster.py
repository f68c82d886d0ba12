"""A real Spark cluster, a master and two workers, against Moldau and Apache Kafka alike.

The same pipeline file runs there; and exactly-once holds when executors are killed at every step of a task.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.testing.ports import free_ports
from tests.interop import spark_exactly_once_driver as exactly_once
from tests.interop.apache_kafka import ApacheKafka
from tests.interop.spark_exactly_once import fill, run_to_the_end
from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_topic, read_all, wait_for
from tests.support.spark_crash import ZOMBIE

RECORDS = 2_000
PARTITIONS = 4
PIPELINE = """
name: spread
checkpoint: ${folder}/checkpoint
kafka: {bootstrap.servers: "127.0.0.1:1"}
spark:
  spark.sql.shuffle.partitions: 2
  spark.driver.host: 127.0.0.1
  spark.driver.bindAddress: 127.0.0.1
  spark.driver.memory: 512m
  spark.executor.memory: 512m
  spark.executor.cores: 1
  # Work begins when both workers have come.
  spark.scheduler.minRegisteredResourcesRatio: 1.0
  spark.scheduler.maxRegisteredResourcesWaitingTime: 120s
sources:
  readings:
    topic: readings
    parse: {format: json, schema: "id long not null, host string"}
steps:
  - python: where_it_runs:add_executor
sinks:
  - {topic: copied, key: host}
  - {delta: "${folder}/table"}
"""
FUNCTION = """
import os

from pyspark.sql import functions as f

def add_executor(rows):
    executor = f.udf(lambda _: os.path.basename(os.getcwd()), "string", useArrow=True)
    return rows.withColumn("executor", executor("id"))
"""


@pytest.fixture(scope="module")
def spark_master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """spark://… of a master and two workers of one core each, on loopback."""
    import pyspark

    from moldau.spark.java import find_java_home

    folder = tmp_path_factory.mktemp("cluster")
    launcher = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    environment = {
        **os.environ,
        "JAVA_HOME": find_java_home(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    port, *ui_ports = free_ports(4)
    url = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    commands = [
        [
            launcher,
            f"{package}.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            str(ui_ports[0]),
        ]
    ]
    for number in (1, 2):
        own = [
            "--host",
            "127.0.0.1",
            "--webui-port",
            str(ui_ports[number]),
            "--work-dir",
            str(folder / f"work-{number}"),
        ]
        commands.append([launcher, f"{package}.worker.Worker", "--cores", "1", "--memory", "1g", *own, url])
    with ExitStack() as stack:
        for number, command in enumerate(commands):
            output = stack.enter_context((folder / f"output-{number}.txt").open("wb"))
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=folder)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        deadline = time.monotonic() + 120
        while len(re.findall("Registering worker", (folder / "output-0.txt").read_text())) < 2:
            assert time.monotonic() < deadline, (folder / "output-0.txt").read_text()[-3000:]
            time.sleep(0.2)
        yield url


@pytest.mark.timeout(600)
@pytest.mark.parametrize("peer", ["moldau", "apache_kafka"])
def test_the_same_file_runs_on_two_workers(
    peer: str, spark_master: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    broker: BrokerProcess | ApacheKafka = request.getfixturevalue(peer)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 2})
    for future in admin.create_topics(
        [NewTopic(name, PARTITIONS, 1) for name in ("readings", "copied", "spread-dlt")]
    ).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 2})
    for number in range(RECORDS):
        value = json.dumps({"id": number, "host": f"h{number % 5}"}).encode()
        producer.produce("readings", value, partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    (tmp_path / "spread.yaml").write_text(PIPELINE)
    (tmp_path / "where_it_runs.py").write_text(FUNCTION)
    command = [sys.executable, "-m", "moldau", "pipeline", "run", str(tmp_path / "spread.yaml"), "--once"]
    command += ["--master", spark_master, "-b", broker.bootstrap_servers, "--set", f"folder={tmp_path}"]
    # The first run takes everything, the second finds nothing to do.
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    rows = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert Counter(row["id"] for row in rows) == Counter(range(RECORDS))
    assert {row["executor"] for row in rows} == {"0", "1"}
    copied = sum(broker_end(broker.bootstrap_servers, "copied", partition) for partition in range(PARTITIONS))
    assert copied >= RECORDS  # transaction markers take offsets too


IN_TRANSACTION = ("before all is acknowledged", "before the marker", "between marker and commit")


LONG = pytest.mark.long


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("peer", "victim"),
    [
        ("moldau", "executor-decisive"),
        ("apache_kafka", f"{ZOMBIE}-decisive"),
        pytest.param("moldau", "executor", marks=LONG),
        pytest.param("moldau", ZOMBIE, marks=LONG),
        pytest.param("apache_kafka", "executor", marks=LONG),
        pytest.param("apache_kafka", ZOMBIE, marks=LONG),
    ],
)
def test_executors_that_are_killed_change_nothing(
    peer: str, victim: str, spark_master: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """In every batch one dies (SIGKILL), at another step of the task; or it leaves a zombie that goes on too late."""
    broker: BrokerProcess | ApacheKafka = request.getfixturevalue(peer)
    bootstrap, steps = broker.bootstrap_servers, exactly_once.steps_for(victim)
    source, target = (create_topic(bootstrap, name, exactly_once.PARTITIONS) for name in ("in", "out"))
    expected = fill(bootstrap, source, len(steps))
    run_to_the_end(bootstrap, source, target, tmp_path, victim, "pass", spark_master)
    if victim.startswith(ZOMBIE):
        ends = {step: zombie_end(tmp_path / "fuses" / f"{batch}.zombie") for batch, step in enumerate(steps)}
        assert {ends[step] for step in IN_TRANSACTION if step in ends} <= {"Fenced", "DeliveryFailed"}, ends
    found = read_all(bootstrap, target, exactly_once.PARTITIONS)
    assert Counter(bytes(each.value() or b"") for each in found) == expected


def zombie_end(note: Path) -> str:
    return wait_for(lambda: note.read_text() if note.exists() else "", f"the zombie of {note.stem} ends", 120)


def broker_end(bootstrap: str, topic: str, partition: int) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends", "log_level": 2})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)
    consumer.close()
    return int(end)
