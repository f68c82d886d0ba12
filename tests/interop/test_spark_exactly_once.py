"""Exactly-once from topic to topic, with workers and drivers killed (SIGKILL) at every step a task goes through.

Every batch dies once, each at another step; the application is started again from its checkpoint until it is done.
What a reader of committed records then finds must be there once. Other tasks of the batch go on while one dies: they
are the zombies that must not commit twice.
"""

import signal
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.interop.apache_kafka import ApacheKafka
from tests.interop.spark_exactly_once_driver import KEYS, PARTITIONS, ROWS_PER_PARTITION, steps_for
from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_topic, quiet, read_all

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def bootstrap(request: pytest.FixtureRequest) -> str:
    cluster: BrokerProcess | ApacheKafka = request.getfixturevalue(request.param)
    return cluster.bootstrap_servers


# Each death of a driver costs the start of a JVM, so every step is tried once per cluster, with one query each.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("bootstrap", "victim"),
    [("moldau", "worker"), ("apache_kafka", "worker"), pytest.param("moldau", "driver", marks=pytest.mark.long)],
    indirect=["bootstrap"],
)
def test_every_record_is_passed_on_once(bootstrap: str, tmp_path: Path, victim: str) -> None:
    source, target = (create_topic(bootstrap, name, PARTITIONS) for name in ("in", "out"))
    expected = fill(bootstrap, source, len(steps_for(victim)))
    run_to_the_end(bootstrap, source, target, tmp_path, victim, "pass")
    assert Counter(bytes(each.value() or b"") for each in read_all(bootstrap, target, PARTITIONS)) == expected


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("bootstrap", "victim"),
    [("moldau", "worker"), ("apache_kafka", "worker"), pytest.param("apache_kafka", "driver", marks=pytest.mark.long)],
    indirect=["bootstrap"],
)
def test_every_count_is_told_once(bootstrap: str, tmp_path: Path, victim: str) -> None:
    """A query with state: in each batch a key's count grows, so a count told twice was written twice."""
    source, target = (create_topic(bootstrap, name, PARTITIONS) for name in ("in", "out"))
    batches = len(steps_for(victim))
    fill(bootstrap, source, batches)
    run_to_the_end(bootstrap, source, target, tmp_path, victim, "count")
    told = defaultdict(list)
    for message in read_all(bootstrap, target, PARTITIONS):
        told[message.key()].append(int(bytes(message.value() or b"")))
    assert len(told) == KEYS
    for counts in told.values():
        assert counts == [PARTITIONS * ROWS_PER_PARTITION // KEYS * (batch + 1) for batch in range(batches)]


def fill(bootstrap: str, topic: str, batches: int) -> Counter[bytes]:
    """The same number of records for every batch, partition and key."""
    producer = Producer(quiet(bootstrap, linger_ms=20))
    values = []
    for batch in range(batches):
        for partition in range(PARTITIONS):
            for row in range(ROWS_PER_PARTITION):
                value = f"{batch}.{partition}.{row}".encode()
                number = row + ROWS_PER_PARTITION * partition
                producer.produce(topic, value, b"key-%d" % (number % KEYS), partition)
                values.append(value)
    assert producer.flush(30) == 0
    return Counter(values)


def run_to_the_end(bootstrap: str, source: str, target: str, folder: Path, victim: str, query: str) -> None:
    """Start it again and again. Spark itself repairs the death of a worker; that of a driver, the next start."""
    (folder / "fuses").mkdir()
    module = "tests.interop.spark_exactly_once_driver"
    command = [sys.executable, "-m", module, bootstrap, source, target, str(folder), victim, query]
    deaths = len(steps_for(victim)) if victim == "driver" else 0
    for expected in (*[-signal.SIGKILL] * deaths, 0):
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == expected, done.stderr[-4000:]
    assert len([*(folder / "fuses").iterdir()]) == len(steps_for(victim))
