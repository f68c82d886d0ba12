"""Exactly-once from topic to topic, with workers and drivers killed (SIGKILL) at every step a task goes through.

Every batch dies once, each at another step; the application is started again from its checkpoint until it is done.
What a reader of committed records then finds must be there once. Other tasks of the batch go on while one dies: they
are the zombies that must not commit twice.
"""

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.interop.apache_kafka import ApacheKafka
from tests.interop.spark_exactly_once import fill, run_to_the_end
from tests.interop.spark_exactly_once_driver import KEYS, PARTITIONS, ROWS_PER_PARTITION, steps_for
from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_topic, read_all


@pytest.fixture
def bootstrap(request: pytest.FixtureRequest) -> str:
    cluster: BrokerProcess | ApacheKafka = request.getfixturevalue(request.param)
    return cluster.bootstrap_servers


LONG = pytest.mark.long


# Each death of a driver costs the start of a JVM: all steps are for `make interop-long`, the decisive ones for
# `make interop`, with one query for each cluster.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("bootstrap", "victim"),
    [
        ("moldau", "worker"),
        ("apache_kafka", "worker"),
        ("apache_kafka", "driver-decisive"),
        pytest.param("moldau", "driver", marks=LONG),
        pytest.param("apache_kafka", "driver", marks=LONG),
    ],
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
    [
        ("moldau", "worker"),
        ("apache_kafka", "worker"),
        ("moldau", "driver-decisive"),
        pytest.param("moldau", "driver", marks=LONG),
        pytest.param("apache_kafka", "driver", marks=LONG),
    ],
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
