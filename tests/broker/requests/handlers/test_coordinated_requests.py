"""Requests that coordinators answer, byte by byte: transactional writes (KIP-890), offsets, descriptions of groups."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.broker.coordinators import txn_verification
from moldau.records import BatchOptions, build_batch
from moldau.timers.turns import Turns
from moldau.transactions.verification import Question
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.broker.requests.handlers.wire_client import FIRST_TIMESTAMP_MS, WireClient
from tests.support.clients import fresh, wait_for

GROUP, TRANSACTION = 0, 1
READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = 3, 6, 8, 10, 11
GROUP_OPERATIONS = sum(1 << each for each in (READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS))


def find_coordinator(client: WireClient, kind: int, name: str) -> None:
    wait_for(lambda: client.ask(m.FindCoordinatorRequest(name, kind), 3).error_code == 0, "a coordinator")


class Transactional:
    """A producer with a transactional id."""

    def __init__(self, client: WireClient) -> None:
        self.client = client
        self.name = fresh("tx")
        find_coordinator(client, TRANSACTION, self.name)
        request = m.InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000)
        given: list[Any] = []

        def has_id() -> bool:
            given.append(client.ask(request))
            return bool(given[-1].error_code == 0)

        wait_for(has_id, "a producer id")
        self.id: int = given[-1].producer_id
        self.epoch: int = given[-1].producer_epoch

    def batch(self, *, producer_id: int | None = None, epoch: int | None = None) -> bytes:
        options = BatchOptions(
            producer_id=self.id if producer_id is None else producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=0,
            transactional=True,
        )
        return bytes(build_batch([(0, FIRST_TIMESTAMP_MS, None, b"v", ())], options))

    def produce(self, topic: str, batches: dict[int, bytes], version: int = 12) -> dict[int, ErrorCode]:
        kind = m.ProduceRequest
        parts = [kind.PartitionProduceData(index=index, records=batch) for index, batch in batches.items()]
        data = kind.TopicProduceData(name=topic, partition_data=parts)
        request = kind(transactional_id=self.name, acks=-1, timeout_ms=5_000, topic_data=[data])
        (told,) = self.client.ask(request, version).responses
        return {each.index: ErrorCode(each.error_code) for each in told.partition_responses}

    def end(self) -> None:
        answer = self.client.ask(m.EndTxnRequest(self.name, self.id, self.epoch, True), 5)
        assert answer.error_code == 0
        self.id, self.epoch = answer.producer_id, answer.producer_epoch

    def commit_offsets(self, group: str, offsets: dict[tuple[str, int], int]) -> dict[tuple[str, int], ErrorCode]:
        kind = m.TxnOffsetCommitRequest
        topics: dict[str, Any] = {}
        for (topic, index), offset in offsets.items():
            part = kind.TxnOffsetCommitRequestPartition(index, offset)
            topics.setdefault(topic, kind.TxnOffsetCommitRequestTopic(topic, [])).partitions.append(part)
        request = kind(self.name, group, self.id, self.epoch, topics=list(topics.values()))
        told = self.client.ask(request, 5).topics
        return {
            (topic.name, each.partition_index): ErrorCode(each.error_code)
            for topic in told
            for each in topic.partitions
        }


@pytest.fixture(params=[False, True], ids=["at once", "at length"])
def slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How transactional writes are verified: as those of few partitions are, or of very many; and where it ended."""
    ended: list[int] = []
    if request.param:
        monkeypatch.setattr(txn_verification, "_AT_ONCE_MAX", 1)
        monkeypatch.setattr(txn_verification, "_PER_SLICE", 2)
        run = Turns.run

        def noted(turns: Turns, work: Any) -> Any:
            def counting() -> Any:
                while True:
                    try:
                        next(work)
                    except StopIteration as done:
                        return done.value
                    ended.append(1)
                    yield

            return run(turns, counting())

        monkeypatch.setattr(Turns, "run", noted)
    return ended


def test_all_partitions_of_a_request_join_the_transaction_at_once(
    client: WireClient, slices: list[int], request: pytest.FixtureRequest
) -> None:
    """Asked one by one, the second would find the transaction busy with the first."""
    topic = client.new_topic(6)
    producer = Transactional(client)
    for _ in range(3):
        answers = producer.produce(topic, {index: producer.batch() for index in range(6)})
        assert answers == dict.fromkeys(range(6), ErrorCode.NONE)
        producer.end()  # the next request finds markers still on their way
    is_long = "at length" in request.node.name
    assert len(slices) >= 3 * (3 + 3) if is_long else not slices


@pytest.mark.usefixtures("slices")
def test_an_end_that_is_under_way_is_waited_for(client: WireClient, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Question] = []
    ask = txn_verification._ask

    def busy(broker: Any, question: Question, answer: Any) -> None:
        asked.append(question)
        if len(asked) < 3:
            answer(dict.fromkeys(question.partitions, ErrorCode.CONCURRENT_TRANSACTIONS))
        else:
            ask(broker, question, answer)

    monkeypatch.setattr(txn_verification, "_ask", busy)
    topic = client.new_topic(3)
    producer = Transactional(client)
    answers = producer.produce(topic, {index: producer.batch() for index in range(3)})
    assert answers == dict.fromkeys(range(3), ErrorCode.NONE)
    assert [len(each.partitions) for each in asked] == [3, 3, 3]
    producer.end()


@pytest.mark.usefixtures("slices")
def test_what_needs_no_question_is_told_without(client: WireClient) -> None:
    """Of batches that cannot be read, and partitions that are not there, the append says what is wrong."""
    topic = client.new_topic(2)
    producer = Transactional(client)
    answers = producer.produce(topic, {0: b"no batch at all", 1: producer.batch()[:40], 2: producer.batch()})
    assert set(answers) == {0, 1, 2}
    assert answers[2] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ErrorCode.NONE not in answers.values()
    assert producer.produce(topic, {index: producer.batch() for index in range(2)}) == dict.fromkeys(
        range(2), ErrorCode.NONE
    )
    producer.end()


@pytest.mark.usefixtures("slices")
def test_a_request_of_two_producers_is_refused(client: WireClient) -> None:
    topic = client.new_topic(2)
    producer = Transactional(client)
    answers = producer.produce(topic, {0: producer.batch(), 1: producer.batch(producer_id=producer.id + 1)})
    assert answers == dict.fromkeys(range(2), ErrorCode.INVALID_PRODUCER_ID_MAPPING)


def test_an_epoch_that_is_over_is_refused_without_a_question(client: WireClient) -> None:
    topic = client.new_topic(1)
    producer = Transactional(client)
    first = producer.batch()
    assert producer.produce(topic, {0: first}) == {0: ErrorCode.NONE}
    producer.end()
    assert producer.produce(topic, {0: producer.batch()}) == {0: ErrorCode.NONE}
    assert producer.produce(topic, {0: first}) == {0: ErrorCode.INVALID_PRODUCER_EPOCH}
    producer.end()


def test_offsets_of_partitions_that_do_not_exist_are_not_committed(client: WireClient) -> None:
    topic, group = client.new_topic(2), fresh("group")
    find_coordinator(client, GROUP, group)
    producer = Transactional(client)
    told = producer.commit_offsets(group, {(topic, 0): 5, (topic, 2): 6, (topic, -1): 7, ("nowhere", 0): 8})
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert told == {(topic, 0): ErrorCode.NONE, (topic, 2): unknown, (topic, -1): unknown, ("nowhere", 0): unknown}
    producer.end()
    wanted = m.OffsetFetchRequest.OffsetFetchRequestGroup(group, topics=None)

    def fetched() -> dict[tuple[str, int], int]:
        (found,) = client.ask(m.OffsetFetchRequest(groups=[wanted]), 8).groups
        return {
            (each.name, one.partition_index): one.committed_offset for each in found.topics for one in each.partitions
        }

    wait_for(lambda: bool(fetched()), "the markers")
    assert fetched() == {(topic, 0): 5}


def test_offset_fetch_1_does_not_write_no_op_when_it_is_refused(own_client: WireClient) -> None:
    """It has no place for an error of the group. Here: nobody coordinates it yet."""
    topic = m.OffsetFetchRequest.OffsetFetchRequestTopic("t", [0, 3])
    answer = own_client.ask(m.OffsetFetchRequest("nobody's", [topic]), 1)
    (told,) = answer.topics
    refused = ErrorCode.NOT_COORDINATOR
    assert [(each.partition_index, each.committed_offset, each.error_code) for each in told.partitions] == [
        (0, -1, refused),
        (3, -1, refused),
    ]


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_before_12_takes_no_ids_and_no_null_names(client: WireClient, version: int) -> None:
    name = client.new_topic()
    (known,) = client.ask(m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name=name)]), version).topics
    by_id = m.MetadataRequest.MetadataRequestTopic(known.topic_id, None)
    by_name = m.MetadataRequest.MetadataRequestTopic(name=name)
    answer = client.ask(m.MetadataRequest([by_id, by_name]), version)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("", ErrorCode.INVALID_REQUEST),
        (name, ErrorCode.INVALID_REQUEST),
    ]


def test_metadata_by_id_leaves_out_the_zero_id(client: WireClient) -> None:
    name = client.new_topic()
    kind = m.MetadataRequest.MetadataRequestTopic
    (known,) = client.ask(m.MetadataRequest([kind(name=name)]), 12).topics
    answer = client.ask(m.MetadataRequest([kind(known.topic_id, None), kind(name="other"), kind(known.topic_id, None)]))
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [(name, ErrorCode.NONE)]


@pytest.mark.parametrize("version", [8, 9, 10])
def test_what_may_be_done_with_the_cluster(client: WireClient, version: int) -> None:
    request = m.MetadataRequest([], include_cluster_authorized_operations=True)
    described = client.ask(m.DescribeClusterRequest(include_cluster_authorized_operations=True))
    write = 4
    assert not described.cluster_authorized_operations & 1 << write
    assert client.ask(request, version).cluster_authorized_operations == described.cluster_authorized_operations


def test_what_may_be_done_with_a_group(client: WireClient) -> None:
    topic, classic, consumer = client.new_topic(), fresh("classic"), fresh("consumer")
    unasked = -(2**31)
    for group in (classic, consumer):
        find_coordinator(client, GROUP, group)
    commit = m.OffsetCommitRequest
    part = commit.OffsetCommitRequestPartition(0, 1)
    answers: list[Any] = []

    def has_committed() -> bool:
        answers.append(
            client.ask(commit(classic, topics=[commit.OffsetCommitRequestTopic(topic, partitions=[part])]), 8)
        )
        return bool(answers[-1].topics[0].partitions[0].error_code == 0)

    wait_for(has_committed, "a classic group")
    beat = m.ConsumerGroupHeartbeatRequest(
        consumer, "member", 0, rebalance_timeout_ms=5_000, subscribed_topic_names=[topic], topic_partitions=[]
    )
    wait_for(lambda: client.ask(beat).error_code == 0, "a consumer group")
    for asked in (True, False):
        (one, missing) = client.ask(m.DescribeGroupsRequest([classic, "none"], asked)).groups
        (two,) = client.ask(m.ConsumerGroupDescribeRequest([consumer], asked)).groups
        assert (one.error_code, two.error_code) == (0, 0)
        expected = GROUP_OPERATIONS if asked else unasked
        assert (one.authorized_operations, two.authorized_operations) == (expected, expected)
        assert (missing.error_code, missing.authorized_operations) == (ErrorCode.GROUP_ID_NOT_FOUND, unasked)
