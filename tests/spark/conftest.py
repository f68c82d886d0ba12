"""One SparkSession per worker, started at the first test that wants it, and a broker for each module."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from moldau.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "512m",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    # Tests stop queries and expect the thread to end, not to linger.
    "spark.sql.streaming.stopTimeout": "30000",
}


# The JVM's start is part of the first test's time.
_SECONDS_WITH_JVM = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a JVM get more time than the others."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_SECONDS_WITH_JVM))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """local[2] with source and sink registered; shared, so tests leave its settings alone."""
    from moldau.spark import session

    folder = tmp_path_factory.mktemp("spark")
    config = SMALL | {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
    running = session("moldau-tests", master="local[2]", config=config)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Shared by the module; tests use topics of their own."""
    with Broker() as running:
        yield running


@pytest.fixture
def bootstrap(broker: Broker) -> str:
    """Where it listens."""
    return broker.bootstrap_servers
