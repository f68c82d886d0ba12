"""Every list of a request may be long: others have their turn meanwhile, and nothing is told wrong for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from moldau.broker.coordinators import groups, shards
from moldau.broker.requests.handlers import describe_configs, produce
from moldau.groups import GroupShard
from moldau.testing import Broker
from moldau.timers.turns import Turns
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m
from moldau.wire.produce import ProduceFrame
from tests.broker.requests.handlers.conftest import on_loop
from tests.broker.requests.handlers.test_coordinated_requests import Transactional
from tests.broker.requests.handlers.wire_client import WireClient
from tests.support.clients import fresh, wait_for

MANY = 2_000
NONE, NO_SUCH = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One for each time that long work let others have their turn."""
    found: list[int] = []
    run: Callable[[Turns, Any], Any] = Turns.run
    next_turn = Turns.next_turn

    def counting(work: Any) -> Any:
        while True:
            try:
                next(work)
            except StopIteration as done:
                return done.value
            found.append(1)
            yield

    def counted_turn(turns: Turns) -> asyncio.Future[None]:
        found.append(1)
        return next_turn(turns)

    monkeypatch.setattr(Turns, "run", lambda turns, work: run(turns, counting(work)))
    monkeypatch.setattr(Turns, "next_turn", counted_turn)
    return found


class Long(NamedTuple):
    """A request of `MANY` elements."""

    request: Message
    version: int | None
    codes: Callable[[Any], Iterator[int]]
    """All error codes of its answer, one for each element."""
    expected: set[int]
    per_turn_max: int


def _commit(kind: Any, topic: Any, partition: Any, *head: Any) -> Any:
    return kind(*head, topics=[topic(f"none-{n}", partitions=[partition(0, 5)]) for n in range(MANY)])


def _long_requests() -> dict[str, Long]:
    names = [f"none-{number}" for number in range(MANY)]
    commit, txn_commit, fetch = m.OffsetCommitRequest, m.TxnOffsetCommitRequest, m.OffsetFetchRequest
    delete, add, markers = m.OffsetDeleteRequest, m.AddPartitionsToTxnRequest, m.WriteTxnMarkersRequest
    records, alter, incremental = m.DeleteRecordsRequest, m.AlterConfigsRequest, m.IncrementalAlterConfigsRequest
    quorum, describe, configs = m.DescribeQuorumRequest, m.DescribeTopicPartitionsRequest, m.DescribeConfigsRequest
    log_dirs = m.AlterReplicaLogDirsRequest

    def partitions(answer: Any) -> Iterator[int]:
        return (each.error_code for topic in answer.topics for each in topic.partitions)

    def added(answer: Any) -> Iterator[int]:
        for result in answer.results_by_transaction:
            yield from (e.partition_error_code for topic in result.topic_results for e in topic.results_by_partition)

    asked = [fetch.OffsetFetchRequestTopics(name, partition_indexes=[0]) for name in names]
    transaction = add.AddPartitionsToTxnTransaction
    deep = add.AddPartitionsToTxnTopic("none", list(range(MANY)))
    wide = [transaction(name, 1, 0, topics=[add.AddPartitionsToTxnTopic("none", [0])]) for name in names]
    marker, marked = markers.WritableTxnMarker, markers.WritableTxnMarkerTopic
    set_one = [incremental.AlterableConfig("no.such", 0, "1")]
    return {
        "OffsetCommit": Long(
            _commit(commit, commit.OffsetCommitRequestTopic, commit.OffsetCommitRequestPartition, "g"),
            9,
            partitions,
            {NO_SUCH},
            400,
        ),
        "OffsetCommit, partitions": Long(
            commit(
                "g",
                topics=[
                    commit.OffsetCommitRequestTopic(
                        "none", partitions=[commit.OffsetCommitRequestPartition(number, 5) for number in range(MANY)]
                    )
                ],
            ),
            9,
            partitions,
            {NO_SUCH},
            400,
        ),
        "TxnOffsetCommit": Long(
            _commit(
                txn_commit, txn_commit.TxnOffsetCommitRequestTopic, txn_commit.TxnOffsetCommitRequestPartition, "t"
            ),
            None,
            partitions,
            {NO_SUCH},
            400,
        ),
        "OffsetFetch": Long(
            fetch(groups=[fetch.OffsetFetchRequestGroup("g", topics=asked)]),
            9,
            lambda answer: partitions(answer.groups[0]),
            {NONE},
            800,
        ),
        "OffsetFetch of one group": Long(
            fetch("g", [fetch.OffsetFetchRequestTopic("none", list(range(MANY)))]), 7, partitions, {NONE}, 800
        ),
        "LeaveGroup": Long(
            m.LeaveGroupRequest("g", members=[m.LeaveGroupRequest.MemberIdentity(name) for name in names]),
            None,
            lambda answer: (each.error_code for each in answer.members),
            {ErrorCode.UNKNOWN_MEMBER_ID},
            400,
        ),
        "OffsetDelete": Long(
            delete("g", [delete.OffsetDeleteRequestTopic(n, [delete.OffsetDeleteRequestPartition(0)]) for n in names]),
            0,
            lambda answer: iter([answer.error_code] * MANY),
            {ErrorCode.GROUP_ID_NOT_FOUND},
            MANY,
        ),
        "AddPartitionsToTxn, partitions": Long(
            add([transaction("t", 1, 0, topics=[deep])]), None, added, {NO_SUCH}, 400
        ),
        "AddPartitionsToTxn, transactions": Long(add(wide), None, added, {NO_SUCH}, 400),
        "WriteTxnMarkers": Long(
            markers([marker(1, 0, True, [marked("none", list(range(MANY)))])]),
            None,
            lambda answer: (e.error_code for each in answer.markers for t in each.topics for e in t.partitions),
            {NO_SUCH},
            100,
        ),
        "DeleteRecords": Long(
            records([records.DeleteRecordsTopic(name, [records.DeleteRecordsPartition(0, 0)]) for name in names], 100),
            None,
            partitions,
            {NO_SUCH},
            100,
        ),
        "AlterConfigs": Long(
            alter([alter.AlterConfigsResource(2, name, [alter.AlterableConfig("no.such", "1")]) for name in names]),
            None,
            lambda answer: (each.error_code for each in answer.responses),
            {ErrorCode.INVALID_CONFIG},
            200,
        ),
        "IncrementalAlterConfigs": Long(
            incremental([incremental.AlterConfigsResource(2, name, set_one) for name in names]),
            None,
            lambda answer: (each.error_code for each in answer.responses),
            {ErrorCode.INVALID_CONFIG},
            200,
        ),
        "DescribeConfigs": Long(
            configs([configs.DescribeConfigsResource(2, name) for name in names]),
            None,
            lambda answer: (each.error_code for each in answer.results),
            {NO_SUCH},
            400,
        ),
        "DescribeQuorum": Long(
            quorum([quorum.TopicData("none", [quorum.PartitionData(number) for number in range(MANY)])]),
            None,
            partitions,
            {NO_SUCH},
            800,
        ),
        "FindCoordinator": Long(
            m.FindCoordinatorRequest(key_type=7, coordinator_keys=names),
            None,
            lambda answer: (each.error_code for each in answer.coordinators),
            {ErrorCode.INVALID_REQUEST},
            200,
        ),
        "DescribeTopicPartitions": Long(
            describe([describe.TopicRequest(name) for name in names]),
            None,
            lambda answer: (each.error_code for each in answer.topics),
            {NO_SUCH},
            200,
        ),
        "AlterReplicaLogDirs": Long(
            log_dirs(
                [log_dirs.AlterReplicaLogDir("/none", [log_dirs.AlterReplicaLogDirTopic("t", list(range(MANY)))])]
            ),
            None,
            lambda answer: (e.error_code for each in answer.results for e in each.partitions),
            {ErrorCode.LOG_DIR_NOT_FOUND},
            100,
        ),
    }


@pytest.mark.parametrize("name", _long_requests())
def test_a_long_list_is_answered_in_turns(client: WireClient, steps: list[int], name: str) -> None:
    wait_for(lambda: client.ask(m.FindCoordinatorRequest("g", 0), 3).error_code == 0, "a coordinator")
    wait_for(
        lambda: client.ask(m.HeartbeatRequest("g")).error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "a shard"
    )
    wait_for(lambda: client.ask(m.FindCoordinatorRequest("t", 1), 3).error_code == 0, "another")
    long = _long_requests()[name]
    steps.clear()
    codes = list(long.codes(client.ask(long.request, long.version)))
    assert (len(codes), set(codes)) == (MANY, long.expected)
    assert len(steps) >= MANY // long.per_turn_max


class Committing:
    """A group's offsets for a topic of three partitions."""

    def __init__(self, client: WireClient) -> None:
        self.client, self.topic, self.group = client, client.new_topic(3), fresh("group")
        wait_for(lambda: client.ask(m.FindCoordinatorRequest(self.group, 0), 3).error_code == 0, "a coordinator")
        wait_for(lambda: set(self.commit([0])) == {NONE}, "the coordinator")

    def commit(self, offsets: list[int], *, generation: int = -1, member: str = "", missing: int = 0) -> list[int]:
        """Of one partition after the other, round and round; and of some that do not exist."""
        kind = m.OffsetCommitRequest
        places = [kind.OffsetCommitRequestPartition(n % 3, offset) for n, offset in enumerate(offsets)]
        places += [kind.OffsetCommitRequestPartition(3 + n, 1) for n in range(missing)]
        topic = kind.OffsetCommitRequestTopic(self.topic, partitions=places)
        answer = self.client.ask(kind(self.group, generation, member, topics=[topic]), 9)
        assert [each.name for each in answer.topics] == [self.topic] * (1 + bool(missing)), "cut, and whole again"
        return [each.error_code for told in answer.topics for each in told.partitions]

    def committed(self, mentions: int = 1) -> list[int]:
        kind = m.OffsetFetchRequest
        asked = kind.OffsetFetchRequestTopics(self.topic, partition_indexes=[0, 1, 2] * mentions)
        (group,) = self.client.ask(kind(groups=[kind.OffsetFetchRequestGroup(self.group, topics=[asked])]), 9).groups
        (topic,) = group.topics
        return [each.committed_offset for each in topic.partitions]


@pytest.fixture
def appends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each batch a group coordinator writes, how many records it has."""
    found: list[int] = []
    append = shards.append_records

    def counted(broker: Any, partition: Any, records: Any, *others: Any, **named: Any) -> int:
        found.append(len(records))
        return append(broker, partition, records, *others, **named)

    monkeypatch.setattr(groups, "append_records", counted)
    return found


def test_a_long_commit_is_one_batch_and_its_last_word_counts(client: WireClient, appends: list[int]) -> None:
    scene = Committing(client)
    appends.clear()
    codes = scene.commit(list(range(MANY)), missing=700)
    assert (codes.count(NONE), codes.count(NO_SUCH)) == (MANY, 700)
    assert appends == [MANY]
    assert scene.committed() == [max(range(index, MANY, 3)) for index in range(3)]
    assert scene.committed(MANY) == scene.committed() * MANY


def test_a_long_commit_of_a_stranger_changes_nothing(client: WireClient, appends: list[int]) -> None:
    scene = Committing(client)
    before = scene.committed()
    appends.clear()
    assert set(scene.commit(list(range(MANY)), generation=3, member="nobody")) == {ErrorCode.UNKNOWN_MEMBER_ID}
    assert (scene.committed(), appends) == (before, [])


def test_a_commit_too_large_for_a_batch_is_refused_before_it_is_made(
    client: WireClient, appends: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Committing(client)
    before = scene.committed()
    appends.clear()
    prepared: list[int] = []
    original = GroupShard.prepare

    def counted(shard: GroupShard, request: Message, topics: Any, now: Any) -> Any:
        prepared.append(1)
        return original(shard, request, topics, now)

    monkeypatch.setattr(GroupShard, "prepare", counted)
    assert set(scene.commit(list(range(40_000)))) == {ErrorCode.UNKNOWN_SERVER_ERROR}
    assert (scene.committed(), appends) == (before, [])
    assert 0 < len(prepared) < 300, "a megabyte of records at most"


def test_a_topic_deleted_while_its_commit_is_prepared_gets_no_offsets(
    broker: Broker, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Committing(client)
    original = groups.GroupCoordinator.prepare

    async def prepare(coordinator: Any, *args: Any) -> Any:
        made = await original(coordinator, *args)
        if scene.topic in broker.node.broker.image.topics:
            request = m.DeleteTopicsRequest([m.DeleteTopicsRequest.DeleteTopicState(scene.topic)], [], 10_000)
            with WireClient(broker.bootstrap_servers) as other:
                await asyncio.to_thread(other.ask, request)
        return made

    monkeypatch.setattr(groups.GroupCoordinator, "prepare", prepare)
    assert set(scene.commit(list(range(MANY)))) == {NO_SUCH}
    index = on_loop(broker, lambda: broker.node.broker.groups.partition_for(scene.group))
    states = on_loop(broker, lambda: [s for s in broker.node.broker.groups.states if scene.group in s.groups])
    assert not any(state.offsets.topics_of(scene.group) for state in states), index


def test_a_long_commit_in_a_transaction(client: WireClient, appends: list[int]) -> None:
    scene, producer = Committing(client), Transactional(client)
    appends.clear()
    kind, place = m.TxnOffsetCommitRequest, m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
    topic = kind.TxnOffsetCommitRequestTopic(scene.topic, [place(n % 3, n) for n in range(MANY)])
    answer = client.ask(kind(producer.name, scene.group, producer.id, producer.epoch, topics=[topic]))
    assert {each.error_code for told in answer.topics for each in told.partitions} == {NONE}
    assert appends == [MANY]
    assert scene.committed() == [0, -1, -1]
    assert client.ask(m.EndTxnRequest(producer.name, producer.id, producer.epoch, True)).error_code == NONE
    wait_for(lambda: max(scene.committed()) == MANY - 1, "the end of the transaction")


def test_offsets_are_deleted_piece_by_piece(client: WireClient, appends: list[int]) -> None:
    scene = Committing(client)
    scene.commit([7, 7, 7])
    appends.clear()
    kind = m.OffsetDeleteRequest
    topic = kind.OffsetDeleteRequestTopic(scene.topic, [kind.OffsetDeleteRequestPartition(n % 4) for n in range(MANY)])
    (told,) = client.ask(kind(scene.group, [topic])).topics
    codes = [each.error_code for each in told.partitions]
    assert (codes.count(NONE), codes.count(NO_SUCH)) == (MANY * 3 // 4, MANY // 4)
    assert scene.committed() == [-1, -1, -1]
    assert max(appends) <= 200


def test_a_partition_named_often_joins_a_transaction_once(client: WireClient) -> None:
    topic, producer = client.new_topic(2), Transactional(client)
    kind = m.AddPartitionsToTxnRequest

    def add(*indexes: int) -> list[int]:
        request = kind(
            v3_and_below_transactional_id=producer.name,
            v3_and_below_producer_id=producer.id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[kind.AddPartitionsToTxnTopic(topic, list(indexes))],
        )
        (told,) = client.ask(request, 3).results_by_topic_v3_and_below
        assert [each.partition_index for each in told.results_by_partition] == list(indexes)
        return [each.partition_error_code for each in told.results_by_partition]

    assert set(add(*[0] * MANY, 2)) == {ErrorCode.OPERATION_NOT_ATTEMPTED, NO_SUCH}
    assert set(add(*[0, 1] * MANY)) == {NONE}
    (state,) = client.ask(m.DescribeTransactionsRequest([producer.name])).transaction_states
    assert [(each.topic, each.partitions) for each in state.topics] == [(topic, [0, 1])]


def test_records_of_a_partition_named_often_are_deleted_once(client: WireClient) -> None:
    topic = client.new_topic()
    client.produce(topic, [b"one", b"two", b"three"])
    kind = m.DeleteRecordsRequest
    places = [kind.DeleteRecordsPartition(0, n % 3) for n in range(MANY)]
    (told,) = client.ask(kind([kind.DeleteRecordsTopic(topic, places)], 10_000)).topics
    assert {each.error_code for each in told.partitions} == {NONE}
    assert told.partitions[-1].low_watermark == 2


def test_a_long_produce_with_senseless_acks_is_refused_by_a_thread(
    client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    original = produce._all_refused

    def noted(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return original(*args)

    monkeypatch.setattr(produce, "_all_refused", noted)
    kind = m.ProduceRequest

    def codes(count: int) -> list[int]:
        entries = [kind.PartitionProduceData(number, None) for number in range(count)]
        answer = client.ask(kind(None, 7, 1_000, [kind.TopicProduceData(name="none", partition_data=entries)]), 9)
        return [each.error_code for each in answer.responses[0].partition_responses]

    assert codes(3) == [ErrorCode.INVALID_REQUIRED_ACKS] * 3
    assert codes(6_000) == [ErrorCode.INVALID_REQUIRED_ACKS] * 6_000
    loop_thread, other_thread = threads
    assert loop_thread != other_thread


def test_whether_very_many_topics_may_be_written_is_asked_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    denied: list[str] = []

    class NoneWritable(dict[str, bool]):
        def __missing__(self, _: str) -> bool:
            return False

        def name_of(self, topic: str) -> str:
            return topic

    monkeypatch.setattr(produce, "topic_access", lambda *_: SimpleNamespace(writable=NoneWritable()))
    broker: Any = SimpleNamespace(authorizer=True, denied=lambda *args: denied.append(args[-1]))
    call: Any = SimpleNamespace(session=None)
    request = ProduceFrame(None, 1, 1_000, [(f"none-{number}", [(0, None)]) for number in range(MANY)])
    assert sum(1 for _ in produce._unwritable(broker, call, request)) >= MANY // 200
    assert len(denied) == MANY


def test_settings_told_often_are_made_once_and_are_bounded(client: WireClient, monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[str] = []
    original = describe_configs._describe

    def noted(broker: Any, resource_type: int, name: str, keys: Any) -> Any:
        described.append(name)
        return original(broker, resource_type, name, keys)

    monkeypatch.setattr(describe_configs, "_describe", noted)
    topic, kind = client.new_topic(), m.DescribeConfigsRequest
    request = kind([kind.DescribeConfigsResource(2, topic, None)] * 100)
    results = client.ask(request).results
    assert [each.error_code for each in results] == [NONE] * 100
    assert {len(each.configs) for each in results} == {len(results[0].configs)} != {0}
    assert described == [topic]
    monkeypatch.setattr(
        describe_configs, "_ANSWER_BYTES_MAX", 50 * sum(map(describe_configs._size, results[0].configs))
    )
    codes = [each.error_code for each in client.ask(request).results]
    assert codes == [NONE] * 50 + [ErrorCode.INVALID_REQUEST] * 50


def test_the_markers_of_a_wide_transaction_are_written_in_turns(client: WireClient, steps: list[int]) -> None:
    count = 100
    topic, producer = client.new_topic(count), Transactional(client)
    written = producer.produce(topic, {index: producer.batch() for index in range(count)})
    assert set(written.values()) == {NONE}
    steps.clear()
    assert client.ask(m.EndTxnRequest(producer.name, producer.id, producer.epoch, True), 3).error_code == NONE

    def state() -> str:
        (found,) = client.ask(m.DescribeTransactionsRequest([producer.name])).transaction_states
        return str(found.transaction_state)

    wait_for(lambda: state() == "CompleteCommit", "all markers")
    assert len(steps) >= count // 20


def test_very_many_filters_of_groups_come_to_what_there_is(client: WireClient, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Committing(client)
    lengths: list[int] = []
    original = GroupShard.handle

    def noted(shard: GroupShard, request: Any, *others: Any) -> Any:
        if isinstance(request, m.ListGroupsRequest):
            lengths.append(len(request.states_filter) + len(request.types_filter))
        return original(shard, request, *others)

    monkeypatch.setattr(GroupShard, "handle", noted)

    def listed(states: list[str], types: list[str]) -> bool:
        groups = client.ask(m.ListGroupsRequest(states, types)).groups
        return scene.group in [each.group_id for each in groups]

    nonsense = [f"none-{number}" for number in range(MANY)]
    assert listed([*nonsense, " eMpty "], [])
    assert listed([*nonsense, "Empty"], [*nonsense, "Classic"])
    assert not listed(nonsense, [])
    assert not listed([], nonsense)
    assert not listed([*nonsense, "Stable"], ["classic"])
    assert max(lengths) <= 3


def test_very_many_filters_of_transactions_are_looked_through_in_turns(client: WireClient, steps: list[int]) -> None:
    producer = Transactional(client)
    steps.clear()
    request = m.ListTransactionsRequest(["Empty", *(f"none-{number}" for number in range(MANY))], [], -1)
    answer = client.ask(request)
    assert producer.name in [each.transactional_id for each in answer.transaction_states]
    assert len(answer.unknown_state_filters) == MANY
    assert steps
