"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords over the wire."""

import time
from pathlib import Path
from typing import Any

import pytest

from moldau.controller.image import TopicImage
from moldau.testing import Broker
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.broker.handlers.conftest import make_broker, on_loop
from tests.broker.handlers.wire_client import WireClient

Create = m.CreateTopicsRequest
Delete = m.DeleteTopicsRequest
Grow = m.CreatePartitionsRequest
Cut = m.DeleteRecordsRequest


def metadata(client: WireClient, name: str) -> Any:
    topics = [m.MetadataRequest.MetadataRequestTopic(name=name)]
    return client.ask(m.MetadataRequest(topics=topics, allow_auto_topic_creation=False), 12).topics[0]


def cut(client: WireClient, topic: str, offset: int, partition: int = 0, version: int = 2) -> tuple[int, int]:
    """(error, low watermark)"""
    wanted = Cut.DeleteRecordsTopic(topic, [Cut.DeleteRecordsPartition(partition, offset)])
    result = client.ask(Cut([wanted], 5_000), version).topics[0].partitions[0]
    return result.error_code, result.low_watermark


@pytest.mark.parametrize("version", range(2, 8))
def test_a_created_topic_is_served_when_the_answer_comes(client: WireClient, version: int) -> None:
    topic = Create.CreatableTopic(f"made-v{version}", 3, 1, configs=[Create.CreatableTopicConfig("retention.ms", "99")])
    result = client.ask(Create([topic], 10_000), version).topics[0]
    assert (result.error_code, result.error_message) == (0, None)
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        configs = {config.name: (config.value, config.config_source) for config in result.configs}
        assert configs["retention.ms"] == ("99", 1)
        assert configs["cleanup.policy"] == ("delete", 5)
    described = metadata(client, topic.name)
    assert [(each.partition_index, each.leader_id, each.error_code) for each in described.partitions] == [
        (0, 1, 0),
        (1, 1, 0),
        (2, 1, 0),
    ]
    if version >= 7:
        assert result.topic_id == described.topic_id
    assert client.produce(topic.name, [b"x"], partition=2).error_code == 0


def test_each_topic_fails_on_its_own_and_says_why(client: WireClient) -> None:
    existing = client.new_topic()
    topics = [
        Create.CreatableTopic(existing, 1, 1),
        Create.CreatableTopic("a/b", 1, 1),
        Create.CreatableTopic("too-many-replicas", 1, 3),
        Create.CreatableTopic("no-partitions", 0, 1),
        Create.CreatableTopic("bad-config", 1, 1, configs=[Create.CreatableTopicConfig("retention.ms", "x")]),
        Create.CreatableTopic("fine", -1, -1),
    ]
    answer = client.ask(Create(topics, 10_000))
    assert {each.name: each.error_code for each in answer.topics} == {
        existing: ErrorCode.TOPIC_ALREADY_EXISTS,
        "a/b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "too-many-replicas": ErrorCode.INVALID_REPLICATION_FACTOR,
        "no-partitions": ErrorCode.INVALID_PARTITIONS,
        "bad-config": ErrorCode.INVALID_CONFIG,
        "fine": 0,
    }
    assert all(each.error_message for each in answer.topics if each.error_code)
    assert metadata(client, "bad-config").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_validate_only_creates_nothing(client: WireClient) -> None:
    topic = Create.CreatableTopic("only-checked", 2, 1)
    assert client.ask(Create([topic], 10_000, validate_only=True)).topics[0].error_code == 0
    assert metadata(client, "only-checked").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(1, 6))
def test_topics_are_deleted_by_name(client: WireClient, version: int) -> None:
    name = client.new_topic()
    deleted = client.ask(Delete(topic_names=[name], timeout_ms=10_000), version).responses[0]
    assert (deleted.name, deleted.error_code) == (name, 0)
    again = client.ask(Delete(topic_names=[name], timeout_ms=10_000), version).responses[0]
    assert again.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.produce(name, [b"x"]).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topics_are_deleted_by_id_and_leave_no_records_behind(client: WireClient) -> None:
    name = client.new_topic()
    client.produce(name, [b"old"])
    topic_id = metadata(client, name).topic_id
    deleted = client.ask(Delete(topics=[Delete.DeleteTopicState(None, topic_id)], timeout_ms=10_000)).responses[0]
    assert (deleted.name, deleted.topic_id, deleted.error_code) == (name, topic_id, 0)
    client.new_topic(name=name)
    assert metadata(client, name).topic_id != topic_id
    assert client.latest(name).offset == 0


@pytest.mark.parametrize(
    ("version", "expected"), [(1, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)]
)
def test_deleting_can_be_forbidden(tmp_path: Path, version: int, expected: ErrorCode) -> None:
    with make_broker(tmp_path, delete_topic_enable="false") as broker, WireClient(broker.bootstrap_servers) as client:
        name = client.new_topic()
        answer = client.ask(Delete(topic_names=[name], timeout_ms=10_000), version)
        assert answer.responses[0].error_code == expected
        assert metadata(client, name).error_code == 0


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_and_never_removed(client: WireClient, version: int) -> None:
    name = client.new_topic()

    def grow(count: int, *, validate_only: bool = False, assignments: Any = None) -> int:
        topic = Grow.CreatePartitionsTopic(name, count, assignments)
        result = client.ask(Grow([topic], 10_000, validate_only), version).results[0]
        assert bool(result.error_message) == bool(result.error_code)
        return int(result.error_code)

    assert grow(4, validate_only=True) == 0
    assert len(metadata(client, name).partitions) == 1
    assert grow(3) == 0
    assert len(metadata(client, name).partitions) == 3
    assert client.produce(name, [b"x"], partition=2).error_code == 0
    assert grow(3) == ErrorCode.INVALID_PARTITIONS
    assert grow(2) == ErrorCode.INVALID_PARTITIONS
    assert grow(4, assignments=[Grow.CreatePartitionsAssignment([9])]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert grow(4, assignments=[Grow.CreatePartitionsAssignment([1])]) == 0


def test_records_are_deleted_up_to_an_offset(client: WireClient) -> None:
    name = client.new_topic()
    client.produce(name, [b"%d" % number for number in range(5)])
    assert cut(client, name, 2) == (0, 2)
    assert client.latest(name, timestamp=-2).offset == 2
    assert cut(client, name, 1, version=0) == (0, 2)  # it never goes back
    assert cut(client, name, 6) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert cut(client, name, -2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert cut(client, name, -1) == (0, 5)  # the high watermark
    assert client.latest(name, timestamp=-2).offset == 5


def test_a_deletion_of_records_survives_a_restart(tmp_path: Path) -> None:
    with make_broker(tmp_path) as broker, WireClient(broker.bootstrap_servers) as client:
        name = client.new_topic()
        client.produce(name, [b"a", b"b", b"c"])
        assert cut(client, name, 2) == (0, 2)
    with make_broker(tmp_path) as broker, WireClient(broker.bootstrap_servers) as client:
        assert client.latest(name, timestamp=-2).offset == 2
        assert client.latest(name).offset == 3


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("delete", 0), ("compact,delete", 0), ("", 0), ("compact", ErrorCode.POLICY_VIOLATION)],
)
def test_compacted_topics_keep_their_records(client: WireClient, policy: str, expected: int) -> None:
    name = client.new_topic(cleanup_policy=policy)
    assert cut(client, name, 0)[0] == expected


def test_records_of_others_are_not_ours_to_delete(broker: Broker, client: WireClient) -> None:
    assert cut(client, "no-such-topic", 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    name = client.new_topic()
    assert cut(client, name, 0, partition=5) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    client.new_topic(name="__consumer_offsets")
    assert cut(client, "__consumer_offsets", 0) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)


def test_a_topic_of_many_partitions_is_made_in_turns(own_broker: Broker, own_client: WireClient) -> None:
    """Its answer does not wait for all the files, nobody waits for more than a few of them, and whoever asks for a
    partition gets it at once."""
    broker = own_broker.node.broker
    made_in_turn: list[int] = []
    place = broker.replicas._place

    def counted(topic: TopicImage, index: int) -> None:
        turn_ended = made_in_turn and made_in_turn[-1] == -1
        if not made_in_turn or turn_ended:
            made_in_turn.append(0)
            broker.loop.call_soon(made_in_turn.append, -1)
        made_in_turn[-1] += 1
        place(topic, index)

    on_loop(own_broker, lambda: setattr(broker.replicas, "_place", counted))
    topic = own_client.new_topic(300)
    now = time.time_ns() // 1_000_000
    assert own_client.produce(topic, [b"v"], partition=299, first_timestamp_ms=now).error_code == 0
    deadline = time.monotonic() + 60
    while on_loop(own_broker, lambda: len(broker.replicas._unmade)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert on_loop(own_broker, lambda: sum(1 for _ in broker.replicas)) == 300
    assert max(made_in_turn) <= 16
    own_client.ask(m.DeleteTopicsRequest([m.DeleteTopicsRequest.DeleteTopicState(topic)], [], 5_000))
    assert on_loop(own_broker, lambda: sum(1 for _ in broker.replicas)) == 0
