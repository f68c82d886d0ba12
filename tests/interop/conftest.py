"""Fixtures of the interop tests: one Apache Kafka node per session and worker, foreign clients, fresh topic names."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.apache_kafka import SINGLE_NODE_PROPERTIES, ApacheKafka
from tests.interop.peers.clients import Client, go_client, java_client, node_client
from tests.support.broker_process import BrokerProcess

# What failed, for `make interop-again`.
_FAILED = Path("build/interop-failed.txt")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return  # of several workers none knows what failed; whoever gathers their reports does
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    reports = [*reporter.stats.get("failed", ()), *reporter.stats.get("error", ())] if reporter else []
    _FAILED.parent.mkdir(exist_ok=True)
    _FAILED.write_text("\n".join(sorted({report.nodeid for report in reports})))


_CLIENTS: dict[str, Callable[[], Client]] = {"java": java_client, "go": go_client, "node": node_client}


@pytest.fixture(scope="session")
def apache_kafka() -> Iterator[ApacheKafka]:
    """A shared single node with its own defaults; tests use topics of their own and leave its configuration alone."""
    with ApacheKafka() as kafka:
        yield kafka


@pytest.fixture(scope="session")
def moldau(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A shared `moldau serve` with the configuration of `apache_kafka`, under the same rules."""
    settings = SINGLE_NODE_PROPERTIES | {"node.id": "1"}
    with BrokerProcess(tmp_path_factory.mktemp("moldau") / "data", 0, **settings) as broker:
        yield broker


@pytest.fixture(params=sorted(_CLIENTS))
def client(request: pytest.FixtureRequest) -> Client:
    """Every foreign client in turn, built at its first use."""
    return _CLIENTS[request.param]()


@pytest.fixture(scope="session")
def fresh_topic() -> Callable[[str], str]:
    """Names nobody else uses in this run: `fresh_topic("orders")`."""
    numbers = itertools.count()
    return lambda base: f"{base}-{os.getpid()}-{next(numbers)}"
