"""The group scenarios over real connections: is Apache Kafka as they say, and does Moldau keep to them?"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.testing import Broker
from tests.groups.over_the_wire import PROPERTIES, SCENARIOS, await_coordinator, differences
from tests.interop.apache_kafka import HOST, ApacheKafka


@pytest.fixture(scope="module", params=["Apache Kafka", "Moldau"])
def address(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    if request.param == "Moldau":
        with Broker(PROPERTIES) as broker:
            host, port = broker.bootstrap_servers.split(":")
            await_coordinator((host, int(port)))
            yield host, int(port)
    else:
        with ApacheKafka(PROPERTIES) as kafka:
            await_coordinator((HOST, kafka.port))
            yield HOST, kafka.port


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_answer_is_as_in_the_scenario(name: str, address: tuple[str, int]) -> None:
    path = Path(__file__).parents[1] / "groups" / "scenarios" / f"{name}.txt"
    assert differences(path, address) == []
