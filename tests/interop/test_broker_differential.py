"""The same requests to Moldau and to Apache Kafka: every field of every answer is equal, or named here with the reason.

Both directions are checked: a difference that is not expected fails, and so does an expected one that went away.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.apache_kafka import SINGLE_NODE_PROPERTIES, ApacheKafka
from tests.interop.differential import run_scenario
from tests.interop.scenarios.catalogue import SCENARIOS
from tests.support.broker_process import BrokerProcess

APIS_DIFFER = "the list of APIs is compared one by one in test_broker_api_versions.py"
EXPECTED: dict[str, dict[str, str]] = {
    "altering configs": {
        f"unknown operation v1: responses[0].{field}": "Kafka fails with an internal error; Moldau says INVALID_REQUEST"
        for field in ("error_code", "error_message")
    },
    "api versions": {f"versions v{version}: api_keys": APIS_DIFFER for version in range(5)},
    "odd configs": {
        f"alter this broker, unknown key v1: responses[0].{field}": "Kafka keeps it for plug-ins, which Moldau lacks"
        for field in ("error_code", "error_message")
    },
    "describing the cluster": {
        "quorum v2: nodes[0].listeners": "a Moldau node of its own opens no controller listener, as nobody would call"
    },
}


@pytest.fixture(scope="module")
def fresh_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Scenarios run once on a broker: neither is shared with other tests."""
    data: Path = tmp_path_factory.mktemp("differential") / "data"
    settings = SINGLE_NODE_PROPERTIES | {"node.id": "1"}
    with ApacheKafka() as kafka, BrokerProcess(data, 0, **settings) as moldau:
        yield moldau.bootstrap_servers, kafka.bootstrap_servers


@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - {"every api is offered"}))
def test_moldau_answers_as_apache_kafka_does(name: str, fresh_pair: tuple[str, str]) -> None:
    moldau, kafka = fresh_pair
    found = run_scenario(SCENARIOS[name], ("moldau", moldau), ("kafka", kafka))
    expected = EXPECTED.get(name, {})
    unexpected = [line for line in found if _place(line) not in expected]
    assert not unexpected, "\n".join(unexpected)
    assert {_place(line) for line in found} == expected.keys(), (
        "an expected difference is gone: remove it from EXPECTED"
    )


def _place(line: str) -> str:
    """`step: path`, without the two values."""
    return line.partition(": moldau ")[0]
