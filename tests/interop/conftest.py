"""Fixtures of the interop tests: one Apache Kafka node per session and worker, foreign clients, fresh topic names."""

import itertools
import os
from collections.abc import Callable, Iterator

import pytest
from tests.interop.apache_kafka import ApacheKafka
from tests.interop.peers.clients import Client, go_client, java_client, node_client

_CLIENTS: dict[str, Callable[[], Client]] = {"java": java_client, "go": go_client, "node": node_client}


@pytest.fixture(scope="session")
def apache_kafka() -> Iterator[ApacheKafka]:
    """A shared single node with its own defaults; tests use topics of their own and leave its configuration alone."""
    with ApacheKafka() as kafka:
        yield kafka


@pytest.fixture(params=sorted(_CLIENTS))
def client(request: pytest.FixtureRequest) -> Client:
    """Every foreign client in turn, built at its first use."""
    return _CLIENTS[request.param]()


@pytest.fixture(scope="session")
def fresh_topic() -> Callable[[str], str]:
    """Names nobody else uses in this run: `fresh_topic("orders")`."""
    numbers = itertools.count()
    return lambda base: f"{base}-{os.getpid()}-{next(numbers)}"
