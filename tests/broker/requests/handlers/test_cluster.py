"""Topics page by page, the cluster, its quorum and features, elections and reassignments."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from moldau.testing import Broker
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.broker.requests.handlers.conftest import make_broker
from tests.broker.requests.handlers.wire_client import WireClient

Pages = m.DescribeTopicPartitionsRequest
Features = m.UpdateFeaturesRequest
Quorum = m.DescribeQuorumRequest
Elect = m.ElectLeadersRequest
Move = m.AlterPartitionReassignmentsRequest
UPGRADE, SAFE_DOWNGRADE = 1, 2


def page(client: WireClient, names: list[str], limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    where = None if cursor is None else Pages.Cursor(*cursor)
    return client.ask(Pages([Pages.TopicRequest(name) for name in names], limit, where))


def shape(answer: Any) -> list[tuple[str, int, list[int]]]:
    return [(each.name, each.error_code, [p.partition_index for p in each.partitions]) for each in answer.topics]


class TestPages:
    def test_topics_come_sorted_with_ids_and_operations(self, client: WireClient) -> None:
        b, a = client.new_topic(2, name="pages-b"), client.new_topic(name="pages-a")
        answer = page(client, [b, "pages-none", a, "a/b", a])
        assert shape(answer) == [
            ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION, []),
            (a, 0, [0]),
            (b, 0, [0, 1]),
            ("pages-none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
        ]
        assert answer.next_cursor is None
        one = answer.topics[1]
        assert any(one.topic_id)
        assert one.topic_authorized_operations == 3576
        first = one.partitions[0]
        assert (first.leader_id, first.replica_nodes, first.isr_nodes) == (1, [1], [1])
        assert (first.eligible_leader_replicas, first.last_known_elr, first.offline_replicas) == ([], [], [])

    @pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
    def test_pages_add_up_to_everything(self, own_client: WireClient, limit: int) -> None:
        for name, count in (("a", 1), ("b", 3), ("c", 2)):
            own_client.new_topic(count, name=name)
        seen: list[tuple[str, int]] = []
        cursor = None
        for turn in itertools.count():
            answer = page(own_client, [], limit, cursor)
            found = [(each.name, p.partition_index) for each in answer.topics for p in each.partitions]
            assert len(found) <= limit
            assert turn < 10
            seen += found
            if answer.next_cursor is None:
                break
            cursor = (answer.next_cursor.topic_name, answer.next_cursor.partition_index)
        assert seen == [("a", 0), ("b", 0), ("b", 1), ("b", 2), ("c", 0), ("c", 1)]

    def test_a_limit_below_one_is_one(self, client: WireClient) -> None:
        name = client.new_topic(2)
        assert [shape(page(client, [name], limit)) for limit in (0, -5)] == [[(name, 0, [0])]] * 2

    def test_the_broker_has_a_limit_of_its_own(self, tmp_path: Path) -> None:
        broker = make_broker(tmp_path, max_request_partition_size_limit="2")
        with broker, WireClient(broker.bootstrap_servers) as client:
            name = client.new_topic(3)
            answer = page(client, [name])
        assert shape(answer) == [(name, 0, [0, 1])]
        assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == (name, 2)

    def test_cursors(self, client: WireClient) -> None:
        name = client.new_topic(3)
        assert shape(page(client, [name], cursor=(name, 2))) == [(name, 0, [2])]
        assert shape(page(client, [name], cursor=(name, 9))) == [(name, 0, [])]
        for senseless in ((name, -1), ("another", 0)):
            assert shape(page(client, [name], cursor=senseless)) == [(name, ErrorCode.INVALID_REQUEST, [])]
        # A topic that was deleted between two pages is no reason to stop.
        assert (name, 0, [0, 1, 2]) in shape(page(client, [], cursor=("a-deleted-topic", 1)))


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described(broker: Broker, client: WireClient, version: int) -> None:
    request = m.DescribeClusterRequest(include_cluster_authorized_operations=True)
    answer = client.ask(request, version)
    assert (answer.error_code, answer.controller_id, answer.cluster_authorized_operations) == (0, 1, 8096)
    assert len(answer.cluster_id) == 22
    address = [f"{each.host}:{each.port}" for each in answer.brokers]
    assert address == [broker.bootstrap_servers]


def test_brokers_are_not_controllers(client: WireClient) -> None:
    mismatched = client.ask(m.DescribeClusterRequest(endpoint_type=2))
    assert (mismatched.error_code, mismatched.brokers) == (ErrorCode.MISMATCHED_ENDPOINT_TYPE, [])
    unknown = client.ask(m.DescribeClusterRequest(endpoint_type=9))
    assert unknown.error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
    assert unknown.error_message == "Unsupported endpoint type 9"


@pytest.mark.parametrize("version", range(3))
def test_the_quorum_is_this_node(client: WireClient, version: int) -> None:
    asked = Quorum([Quorum.TopicData("__cluster_metadata", [Quorum.PartitionData(0)])])
    before = client.ask(asked, version).topics[0].partitions[0]
    client.new_topic()
    after = client.ask(asked, version).topics[0].partitions[0]
    while after.high_watermark < after.current_voters[0].log_end_offset:  # something is on its way to the disk
        after = client.ask(asked, version).topics[0].partitions[0]
    assert (after.error_code, after.leader_id, after.leader_epoch) == (0, 1, 1)
    assert after.high_watermark > before.high_watermark
    (voter,) = after.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (1, after.high_watermark)
    assert (voter.last_caught_up_timestamp > 0) == (version >= 1)
    assert any(voter.replica_directory_id) == (version >= 2)
    assert [each.node_id for each in client.ask(asked, version).nodes] == ([1] if version >= 2 else [])


@pytest.mark.parametrize(
    ("topic", "partitions"), [("other", [0]), ("__cluster_metadata", [1]), ("__cluster_metadata", [0, 1])]
)
def test_there_is_no_other_quorum(client: WireClient, topic: str, partitions: list[int]) -> None:
    asked = Quorum([Quorum.TopicData(topic, [Quorum.PartitionData(index) for index in partitions])])
    answer = client.ask(asked)
    codes = {each.error_code for each in answer.topics[0].partitions}
    assert (codes, answer.nodes) == ({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}, [])


def finalized(client: WireClient) -> dict[str, int]:
    answer = client.ask(m.ApiVersionsRequest(client_software_name="t", client_software_version="1"), 4)
    return {each.name: each.max_version_level for each in answer.finalized_features}


@pytest.mark.parametrize("version", range(3))
def test_feature_levels_go_down_and_up(own_client: WireClient, version: int) -> None:
    assert finalized(own_client)["group.version"] == 1

    def update(level: int, how: int, feature: str = "group.version", *, validate_only: bool = False) -> Any:
        change = Features.FeatureUpdateKey(feature, level, how == SAFE_DOWNGRADE, how)
        return own_client.ask(Features(5_000, [change], validate_only), version)

    assert update(0, UPGRADE).error_code == ErrorCode.INVALID_UPDATE_VERSION
    if version >= 1:
        assert update(0, SAFE_DOWNGRADE, validate_only=True).error_code == 0
        assert finalized(own_client)["group.version"] == 1
    done = update(0, SAFE_DOWNGRADE)
    assert done.error_code == 0
    if version < 2:
        assert [(each.feature, each.error_code) for each in done.results] == [("group.version", 0)]
    assert finalized(own_client).get("group.version", 0) == 0
    assert update(1, UPGRADE).error_code == 0
    assert finalized(own_client)["group.version"] == 1
    refused = update(1, UPGRADE, "no.such.version")
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "no.such.version" in refused.error_message


@pytest.mark.parametrize("version", range(3))
def test_a_leader_that_is_preferred_stays(client: WireClient, version: int) -> None:
    name = client.new_topic()
    asked = [Elect.TopicPartitions(name, [0, 9]), Elect.TopicPartitions("no-such", [0])]
    answer = client.ask(Elect(0, asked, 5_000), version)
    codes = [[each.error_code for each in topic.partition_result] for topic in answer.replica_election_results]
    assert codes == [
        [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
    ]
    everything = client.ask(Elect(0, None, 5_000), version)
    assert [each for topic in everything.replica_election_results for each in topic.partition_result] == []


@pytest.mark.parametrize("version", range(2))
def test_replicas_move_only_where_there_is_a_broker(client: WireClient, version: int) -> None:
    name = client.new_topic()

    def move(topic: str, index: int, replicas: list[int] | None) -> int:
        target = Move.ReassignablePartition(index, replicas)
        request = Move(timeout_ms=5_000, topics=[Move.ReassignableTopic(topic, [target])])
        return int(client.ask(request, version).responses[0].partitions[0].error_code)

    assert move(name, 0, [1]) == 0
    assert move(name, 0, [9]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert move(name, 0, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert move(name, 5, [1]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    listed = client.ask(m.ListPartitionReassignmentsRequest(5_000, None))
    assert (listed.error_code, listed.topics) == (0, [])
    assert client.produce(name, [b"still here"]).error_code == 0
