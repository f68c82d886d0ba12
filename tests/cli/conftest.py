"""One broker for each file of command-line tests, and commands that talk to it."""

from collections.abc import Iterator

import pytest

from moldau.testing import Broker
from tests.cli.running import Command


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"auto.create.topics.enable": "false"}) as running:
        yield running


@pytest.fixture(scope="module")
def moldau(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Command:
    return Command(broker.bootstrap_servers, str(tmp_path_factory.mktemp("home")))
