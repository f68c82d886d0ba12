"""One in-process broker per module; tests use topics and groups of their own."""

from collections.abc import Iterator

import pytest

from moldau.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Shared by the module."""
    with Broker() as running:
        yield running


@pytest.fixture
def bootstrap(broker: Broker) -> str:
    """Where it listens."""
    return broker.bootstrap_servers
