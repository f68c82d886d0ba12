"""Every admin and query API answers every version a 4.x broker offers, and a senseless request with no surprise."""

import pytest

from moldau.broker.requests.registry import served_apis
from moldau.wire import Message, apis
from moldau.wire import messages as m
from tests.broker.requests.handlers.wire_client import WireClient

APIS = frozenset(
    [
        *("ListOffsets", "CreateTopics", "DeleteTopics", "DeleteRecords"),
        *("InitProducerId", "OffsetForLeaderEpoch", "DescribeConfigs", "AlterConfigs"),
        *("AlterReplicaLogDirs", "DescribeLogDirs", "CreatePartitions", "ElectLeaders"),
        *("IncrementalAlterConfigs", "AlterPartitionReassignments", "ListPartitionReassignments", "DescribeQuorum"),
        *("UpdateFeatures", "DescribeCluster", "DescribeProducers", "GetTelemetrySubscriptions"),
        *("PushTelemetry", "ListConfigResources", "DescribeTopicPartitions"),
    ]
)
CASES = [
    (api.name, version)
    for api in apis().values()
    if api.name in APIS
    for version in range(api.versions.first, api.versions.last + 1)
]


def test_all_of_them_are_served() -> None:
    assert {each.api.name for each in served_apis().values()} >= APIS


@pytest.mark.parametrize(("name", "version"), CASES)
def test_a_request_of_defaults_is_answered(client: WireClient, name: str, version: int) -> None:
    request: Message = getattr(m, f"{name}Request")()
    answer = client.ask(request, version)
    assert type(answer).__name__ == f"{name}Response"
    # The connection lives on, and nothing was answered twice.
    assert client.ask(m.DescribeClusterRequest()).error_code == 0
