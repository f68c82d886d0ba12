"""Delays, relay and transactional handlers: their own tests on Apache Kafka; and many kills, on both brokers."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.apache_kafka import ApacheKafka
from tests.support.broker_process import BrokerProcess
from tests.toolkit import relays, test_delays, test_relayed_retries, test_transactional, transactional_members

FOLDER = Path(__file__).parents[1] / "toolkit"
FILES = ["test_delays.py", "test_app_delays.py", "test_relay.py", "test_relayed_retries.py", "test_transactional.py"]
ROUNDS = 12


@pytest.mark.timeout(600)
def test_the_suites_on_apache_kafka(apache_kafka: ApacheKafka) -> None:
    """But for tests that bring a broker of their own to take it away."""
    environment = os.environ | {"TOOLKIT_BOOTSTRAP": apache_kafka.bootstrap_servers}
    files = [str(FOLDER / name) for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-k", "not a_broker_that and not not_there_yet", *files]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=590, check=False)
    assert done.returncode == 0, done.stdout[-6_000:]


@pytest.mark.long
@pytest.mark.timeout(1_700)
@pytest.mark.parametrize("kind", ["apache_kafka", "moldau"])
def test_relays_killed_again_and_again(
    kind: str, request: pytest.FixtureRequest, fresh_topic: Callable[[str], str], tmp_path: Path
) -> None:
    server: ApacheKafka | BrokerProcess = request.getfixturevalue(kind)
    rounds = [[(step, 1 + number % 3) for step in relays.STEPS[number % 2 :: 2]] for number in range(2 * ROUNDS)]
    bootstrap = server.bootstrap_servers
    test_delays.check_killed(bootstrap, fresh_topic("delays"), fresh_topic("out"), tmp_path, rounds)


@pytest.mark.long
@pytest.mark.timeout(1_700)
@pytest.mark.parametrize("kind", ["apache_kafka", "moldau"])
def test_transactional_members_killed_again_and_again(
    kind: str, request: pytest.FixtureRequest, fresh_topic: Callable[[str], str], tmp_path: Path
) -> None:
    server: ApacheKafka | BrokerProcess = request.getfixturevalue(kind)
    steps = transactional_members.STEPS
    rounds = [[(step, 1 + number % 3) for step in steps[number % 2 :: 2]] for number in range(2 * ROUNDS)]
    work = test_transactional.Work(server.bootstrap_servers, fresh_topic, tmp_path)
    test_transactional.check_killed(work, rounds)


@pytest.mark.long
@pytest.mark.timeout(1_700)
@pytest.mark.parametrize("kind", ["apache_kafka", "moldau"])
def test_retries_by_relay_with_members_and_relays_killed(
    kind: str, request: pytest.FixtureRequest, fresh_topic: Callable[[str], str], tmp_path: Path
) -> None:
    """Every retry is made, and made once."""
    server: ApacheKafka | BrokerProcess = request.getfixturevalue(kind)
    members, others = transactional_members.STEPS, relays.STEPS
    rounds = [
        ([(members[n % 5], 1 + n % 2), (members[(n + 2) % 5], 1)], [(others[n], 1 + n % 2), (others[(n + 5) % 10], 1)])
        for n in range(len(others))
    ]
    work = test_transactional.Work(server.bootstrap_servers, fresh_topic, tmp_path)
    test_relayed_retries.check_killed(work, fresh_topic("delays"), rounds)
