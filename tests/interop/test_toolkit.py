"""The toolkit's own tests, on Apache Kafka; and its members killed again and again, on both brokers."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.apache_kafka import ApacheKafka
from tests.support.broker_process import BrokerProcess
from tests.toolkit.killing import judge, run_killing
from tests.toolkit.members import ENDING_STEPS, FAILING_STEPS, STEPS

FOLDER = Path(__file__).parents[1] / "toolkit"
FILES = [
    "test_app.py",
    "test_rebalances.py",
    "test_producer.py",
    "test_tools.py",
    "test_bad_luck.py",
    "test_commit_modes.py",
    "test_running.py",
]


@pytest.mark.timeout(600)
def test_the_whole_suite_on_apache_kafka(apache_kafka: ApacheKafka) -> None:
    environment = os.environ | {"TOOLKIT_BOOTSTRAP": apache_kafka.bootstrap_servers}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", *(str(FOLDER / name) for name in FILES)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=590, check=False)
    assert done.returncode == 0, done.stdout[-6_000:]


@pytest.mark.long
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("kind", ["apache_kafka", "moldau"])
@pytest.mark.parametrize("failing", [False, True])
def test_members_killed_a_hundred_times(
    kind: str, failing: bool, request: pytest.FixtureRequest, fresh_topic: Callable[[str], str], tmp_path: Path
) -> None:
    """At random moments and at every named step, with rebalances going on."""
    server: ApacheKafka | BrokerProcess = request.getfixturevalue(kind)
    topic = fresh_topic("numbers")
    steps = [*STEPS, *ENDING_STEPS, *(FAILING_STEPS if failing else ())]
    killing = run_killing(
        server.bootstrap_servers,
        topic,
        topic,
        tmp_path,
        kills=100 - len(steps),
        steps=steps,
        failing=failing,
        seed=random.randrange(1_000_000),
    )
    counts = judge(killing, is_ordered=not failing)
    print(f"{kind}, {'failing' if failing else 'steady'}: {killing.sent} records, {counts}")
    assert killing.killed == 100


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_memory_is_flat_over_a_long_backlog(moldau: BrokerProcess, fresh_topic: Callable[[str], str]) -> None:
    """Ten million records (TOOLKIT_BACKLOG says otherwise) go through one process whose memory does not grow."""
    count = int(os.environ.get("TOOLKIT_BACKLOG", "10000000"))
    topic = fresh_topic("backlog")
    command = [sys.executable, "-m", "tests.toolkit.backlog", moldau.bootstrap_servers, topic, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7_000, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    sizes = [int(size) for size in done.stdout.split()]
    print(f"{count} records, resident MiB after each twentieth: {sizes}")
    assert len(sizes) == 20
    warm = max(sizes[:5])  # buffers, caches and the client's queue are there by then
    assert max(sizes[5:]) <= warm + 32, sizes
