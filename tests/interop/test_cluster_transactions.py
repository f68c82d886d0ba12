"""The Java client's transactions on a cluster: it lets brokers add partitions on the way (KIP-890), begins the next
transaction while markers of the last one are still being written, and must not notice.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moldau.testing import Cluster
from tests.cluster.workload import create_topic
from tests.interop.apache_kafka import TOOLS, compile_java, java_command
from tests.interop.peers.workshop import PEERS, run_unchecked

PARTITIONS = 6
PRODUCERS = 10
TRANSACTIONS = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as running:
        create_topic(running.bootstrap_servers, "short", PARTITIONS)
        yield running


@pytest.mark.parametrize("run", range(3))
def test_producer_performance_with_transactions_of_five_milliseconds(cluster: Cluster, run: int) -> None:
    arguments = [
        *("--topic", "short", "--num-records", "2000", "--record-size", "100", "--throughput", "800"),
        *("--transactional-id", f"p{run}", "--transaction-duration-ms", "5"),
        *("--producer-props", f"bootstrap.servers={cluster.bootstrap_servers}"),
    ]
    finished = run_unchecked(java_command(TOOLS["kafka-producer-perf-test"], *arguments), timeout_s=60)
    said = finished.stdout + finished.stderr
    assert finished.returncode == 0, said
    assert "2000 records sent" in said
    assert "Exception" not in said


@pytest.mark.parametrize("kind", ["plain", "offsets"])
def test_many_producers_with_short_transactions(cluster: Cluster, kind: str) -> None:
    classes = compile_java(PEERS / "java" / "ShortTransactions.java")
    numbers = (str(PARTITIONS), str(PRODUCERS), str(TRANSACTIONS))
    program = java_command("ShortTransactions", cluster.bootstrap_servers, "short", *numbers, kind, classes=classes)
    finished = run_unchecked(program, timeout_s=120)
    assert f"failed: 0 of {PRODUCERS * TRANSACTIONS}" in finished.stdout, finished.stdout + finished.stderr[-2000:]
