"""One broker per module, with two log dirs, and a raw client; and a broker of its own for tests that bend it."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from moldau.controller.image import UNASSIGNED_DIR
from moldau.testing import Broker
from tests.broker.requests.handlers.wire_client import WireClient

T = TypeVar("T")
OnLoop = Callable[[Callable[[], T]], T]


def make_broker(folder: Path, **settings: str) -> Broker:
    changed = {key.replace("_", "."): value for key, value in settings.items()}
    dirs = {"log.dirs": f"{folder}/one,{folder}/two", "auto.create.topics.enable": "false"}
    return Broker(dirs | changed)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Shared by the module: topics of your own, and settings put back."""
    with make_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[WireClient]:
    with WireClient(broker.bootstrap_servers) as connected:
        yield connected


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """For this test alone."""
    with make_broker(tmp_path) as running:
        yield running


@pytest.fixture
def own_client(own_broker: Broker) -> Iterator[WireClient]:
    with WireClient(own_broker.bootstrap_servers) as connected:
        yield connected


def on_loop(broker: Broker, work: Callable[[], T]) -> T:
    """Run it where the node lives, and give back what it returns.

    First every replica has found its log dir and told the controller: what a test changes by hand stays then.
    """

    async def run() -> T:
        while any(UNASSIGNED_DIR in partition.image.directories for partition in broker.node.broker.replicas):
            await asyncio.sleep(0.01)
        return work()

    return asyncio.run_coroutine_threadsafe(run(), broker.node.broker.loop).result(20)
