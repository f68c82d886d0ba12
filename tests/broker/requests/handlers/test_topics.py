"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords over the wire."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.config import BrokerConfig
from moldau.broker.quorum import prepared
from moldau.broker.requests.handlers import create_partitions, create_topics, delete_topics
from moldau.controller.delta import ImageDelta, diff
from moldau.controller.image import ClusterImage
from moldau.records import build_batch
from moldau.seams import disk
from moldau.testing import Broker, throwaway_disk
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.broker.requests.handlers.conftest import make_broker, on_loop
from tests.broker.requests.handlers.wire_client import WireClient

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


class PerTurn:
    """How often something is done in one turn of the loop."""

    def __init__(self, broker: Broker, owner: object, name: str) -> None:
        self.counts = [0]
        self._is_counting = False
        self._loop = broker.node.broker.loop
        self._work = getattr(owner, name)
        on_loop(broker, lambda: setattr(owner, name, self))

    def __call__(self, *arguments: object, **named: object) -> object:
        if not self._is_counting:
            self._is_counting = True
            self.counts.append(0)
            self._loop.call_soon(setattr, self, "_is_counting", False)
        self.counts[-1] += 1
        return self._work(*arguments, **named)


def wait_until(broker: Broker, holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not on_loop(broker, holds) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert on_loop(broker, holds)


def test_a_topic_of_many_partitions_is_made_in_turns(own_broker: Broker, own_client: WireClient) -> None:
    """Its answer does not wait for all the files, nobody waits for more than a few of them, and whoever asks for a
    partition gets it at once. Counted is what makes files: that the controller knows their dirs is told of all
    replicas made meanwhile at one go, and the slower its disk is, the more they are."""
    broker = own_broker.node.broker
    replicas = broker.replicas
    made = PerTurn(own_broker, broker.logs, "get_or_create")
    topic = own_client.new_topic(300)
    now = time.time_ns() // 1_000_000
    assert own_client.produce(topic, [b"v"], partition=299, first_timestamp_ms=now).error_code == 0
    wait_until(own_broker, lambda: not replicas._behind)
    assert on_loop(own_broker, lambda: sum(1 for _ in replicas)) == 300
    assert sum(made.counts) == 300
    assert max(made.counts) <= 2  # one in its turn, and the one that was asked for


@pytest.mark.parametrize("transactional_id", [None, "wide"])
def test_who_writes_to_many_partitions_at_once_has_them_made_in_turns(
    own_broker: Broker, own_client: WireClient, transactional_id: str | None
) -> None:
    broker = own_broker.node.broker
    # A broker whose own turns to make replicas never come.
    on_loop(own_broker, lambda: setattr(broker.replicas, "_is_catching_up", True))
    made = PerTurn(own_broker, broker.logs, "get_or_create")
    topic = own_client.new_topic(100)
    batch = bytes(build_batch([(0, time.time_ns() // 1_000_000, b"k", b"v", ())]))
    kind = m.ProduceRequest
    data = [kind.PartitionProduceData(number, batch) for number in range(100)]
    answer = own_client.ask(kind(transactional_id, 1, 5_000, [kind.TopicProduceData(topic, partition_data=data)]), 12)
    assert [each.error_code for each in answer.responses[0].partition_responses] == [0] * 100
    assert (sum(made.counts), max(made.counts)) == (100, 5)


def test_a_topic_of_many_partitions_waits_for_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While much is to be written back, an fsync takes as long as all of it: so there is none for a partition, and none
    on the loop; the metadata's own is made by a thread."""
    flushed_by: list[int] = []
    monkeypatch.setattr(disk, "flush_descriptor", lambda _: flushed_by.append(threading.get_ident()))
    monkeypatch.setattr(
        throwaway_disk, "ThrowawayDisk", throwaway_disk.FillableDisk
    )  # which flushes what it is told to
    rare = dict.fromkeys(
        ("log_flush_offset_checkpoint_interval_ms", "log_flush_start_offset_checkpoint_interval_ms"), "3600000"
    )
    with (
        make_broker(tmp_path, log_dirs=f"{tmp_path}/one", **rare) as broker,
        WireClient(broker.bootstrap_servers) as client,
    ):
        loop_thread = on_loop(broker, threading.get_ident)
        flushed_by.clear()
        topic = client.new_topic(300)
        assert client.produce(topic, [b"v"], partition=299).error_code == 0
        wait_until(broker, lambda: not broker.node.broker.replicas._behind)
        assert loop_thread not in flushed_by
        assert 1 <= len(flushed_by) <= 10


def test_a_topic_of_many_partitions_is_removed_in_turns(own_broker: Broker, own_client: WireClient) -> None:
    """It is not served from the moment it is deleted, and a new one of its name has nothing of it, although nobody
    waits for more than a few of its folders to be renamed."""
    broker = own_broker.node.broker
    replicas, logs = broker.replicas, broker.logs
    topic = own_client.new_topic(300)
    now = time.time_ns() // 1_000_000
    assert own_client.produce(topic, [b"old"], partition=299, first_timestamp_ms=now).error_code == 0
    wait_until(own_broker, lambda: not replicas._behind)
    removed = PerTurn(own_broker, logs, "delete")
    # The answer comes in a turn after that of the image: so look in that one.
    served: list[int] = []
    apply = replicas.apply

    def applied(image: ClusterImage, delta: ImageDelta, config: BrokerConfig) -> None:
        apply(image, delta, config)
        if delta.topics_deleted:
            served.append(sum(1 for _ in replicas))

    on_loop(own_broker, lambda: setattr(replicas, "apply", applied))
    own_client.ask(m.DeleteTopicsRequest([m.DeleteTopicsRequest.DeleteTopicState(topic)], [], 5_000))
    assert served == [0]
    own_client.new_topic(300, topic)
    told = own_client.produce(topic, [b"new"], partition=299, first_timestamp_ms=now)
    assert (told.error_code, told.base_offset) == (0, 0)
    wait_until(own_broker, lambda: not replicas._behind and not replicas._unremoved)
    assert sum(removed.counts) == 300
    assert max(removed.counts) <= 16
    assert on_loop(own_broker, lambda: {each.log.topic_id == each.topic_id for each in replicas}) == {True}
    assert on_loop(own_broker, lambda: len(logs.logs)) == 300


def test_a_new_topic_has_nothing_of_one_that_has_its_name_still(own_broker: Broker, own_client: WireClient) -> None:
    replicas = own_broker.node.broker.replicas
    topic = own_client.new_topic(20)
    now = time.time_ns() // 1_000_000
    assert own_client.produce(topic, [b"old"], partition=19, first_timestamp_ms=now).error_code == 0
    wait_until(own_broker, lambda: not replicas._behind)
    on_loop(own_broker, lambda: setattr(replicas, "_remove_in_turns", lambda: None))
    own_client.ask(m.DeleteTopicsRequest([m.DeleteTopicsRequest.DeleteTopicState(topic)], [], 5_000))
    assert on_loop(own_broker, lambda: len(replicas._unremoved)) == 20
    own_client.new_topic(20, topic)
    told = own_client.produce(topic, [b"new"], partition=19, first_timestamp_ms=now)
    assert (told.error_code, told.base_offset) == (0, 0)
    wait_until(own_broker, lambda: not replicas._behind)
    assert not on_loop(own_broker, lambda: replicas._unremoved)
    assert on_loop(own_broker, lambda: {each.log.topic_id == each.topic_id for each in replicas}) == {True}


def test_a_topic_deleted_before_its_files_were_made_gets_none(own_broker: Broker, own_client: WireClient) -> None:
    broker = own_broker.node.broker
    on_loop(own_broker, lambda: setattr(broker.replicas, "_catch_up_next", lambda: False))
    topic = own_client.new_topic(100)
    made = PerTurn(own_broker, broker.replicas, "_place")
    own_client.ask(m.DeleteTopicsRequest([m.DeleteTopicsRequest.DeleteTopicState(topic)], [], 5_000))
    assert on_loop(own_broker, lambda: not broker.replicas._behind)
    assert sum(made.counts) == 0


def test_a_node_that_stops_removes_what_is_deleted(tmp_path: Path) -> None:
    with make_broker(tmp_path) as broker, WireClient(broker.bootstrap_servers) as client:
        replicas = broker.node.broker.replicas
        topic = client.new_topic(100)
        wait_until(broker, lambda: not replicas._behind)
        on_loop(broker, lambda: setattr(replicas, "_remove_in_turns", lambda: None))
        client.ask(m.DeleteTopicsRequest([m.DeleteTopicsRequest.DeleteTopicState(topic)], [], 5_000))
        assert on_loop(broker, lambda: len(replicas._unremoved)) == 100
    assert not [path for path in tmp_path.rglob(f"{topic}-*") if not path.name.endswith("-delete")]


def test_many_partitions_get_a_new_leader_epoch_in_turns(own_broker: Broker, own_client: WireClient) -> None:
    """Whoever asks for one finds it as the image says; who led and does no more is not asked for long."""
    broker = own_broker.node.broker
    replicas = broker.replicas
    topic = own_client.new_topic(100)
    wait_until(own_broker, lambda: not replicas._behind)
    changed = PerTurn(own_broker, replicas, "_change")

    def applied(**fields: Any) -> None:
        """As if the controller had said so."""
        before = replicas._image
        known = before.topics[topic]
        partitions = known.partitions
        for index, image in list(partitions.items()):
            partitions = partitions.with_entry(index, image._replace(**fields))
        after = replace(before, topics=before.topics.with_entry(topic, known._replace(partitions=partitions)))
        replicas.apply(after, diff(before, after), replicas._config)

    def lead_anew() -> tuple[int, int]:
        applied(leader_epoch=7)
        return replicas.leader(topic, 99).leader_epoch, len(replicas._behind)

    assert on_loop(own_broker, lead_anew) == (7, 99)
    wait_until(own_broker, lambda: not replicas._behind)
    assert max(changed.counts) <= 16
    assert on_loop(own_broker, lambda: {each.leader_epoch for each in replicas}) == {7}

    def lead_anew_and_no_more() -> set[bool]:
        applied(leader_epoch=8)
        applied(leader_epoch=9, leader=5)
        return {each.is_leader for each in replicas}

    assert on_loop(own_broker, lead_anew_and_no_more) == {False}


def test_commands_that_take_long_are_decided_by_a_thread(
    own_broker: Broker, own_client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that belongs to it: encoding, the next image, what differs. What is short stays where it is."""
    deciders: dict[str, set[str]] = {}

    def noted(where: object, name: str) -> None:
        original = getattr(where, name)

        def note(*given: Any, **named: Any) -> Any:
            if name == "apply" and len(given[1]) < 200:  # of somebody else
                return original(*given, **named)
            deciders.setdefault(name, set()).add(threading.current_thread().name.partition("_")[0])
            return original(*given, **named)

        monkeypatch.setattr(where, name, note)

    for handler, name in ((create_topics, "create_topics"), (create_partitions, "create_partitions")):
        noted(handler, name)
    noted(delete_topics, "delete_topics")
    noted(prepared, "apply")
    noted(prepared, "diff")

    def decided(request: Any) -> tuple[Any, dict[str, set[str]]]:
        deciders.clear()
        return own_client.ask(request), dict(deciders)

    answer, by = decided(Create([Create.CreatableTopic("large", 400, 1)], 10_000))
    assert answer.topics[0].error_code == 0
    assert by == {"create_topics": {"moldau"}, "apply": {"moldau"}, "diff": {"moldau"}}
    answer, by = decided(Grow([Grow.CreatePartitionsTopic("large", 800, None)], 10_000))
    assert answer.results[0].error_code == 0
    assert by == {"create_partitions": {"moldau"}, "apply": {"moldau"}, "diff": {"moldau"}}
    assert len(metadata(own_client, "large").partitions) == 800
    names = [f"small{number}" for number in range(300)]
    answer, by = decided(Create([Create.CreatableTopic(name, 1, 1) for name in names], 10_000))
    assert [each.name for each in answer.topics] == names
    assert by["create_topics"] == {"moldau"}
    answer, by = decided(Delete([Delete.DeleteTopicState(name) for name in names], [], 10_000))
    assert {each.error_code for each in answer.responses} == {0}
    assert by == {"delete_topics": {"moldau"}, "apply": {"moldau"}, "diff": {"moldau"}}
    _, by = decided(Create([Create.CreatableTopic("short", 1, 1)], 10_000))
    assert by.keys() == {"create_topics"}, "what differs is for whoever publishes it"
    assert "moldau" not in by["create_topics"]
