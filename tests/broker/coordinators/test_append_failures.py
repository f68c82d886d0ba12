"""A live coordinator while appends to its own topics fail: too few replicas, too large, a disk that fails.

All groups share one shard, and all transactional ids another. What victims write fails at random; bystanders (groups of
both protocols, one that waits for its JoinGroup, an open transaction) must not see a single error, nor another view.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from moldau.broker.coordinators import groups, shards, transactions
from moldau.broker.replicas.manager import PartitionUnavailable
from moldau.log.errors import RecordTooLarge, StorageError
from moldau.testing import Broker
from moldau.wire import ErrorCode, decode
from moldau.wire import messages as m
from moldau.wire.internal import encode_value
from tests.broker.requests.handlers.wire_client import WireClient
from tests.e2e.raw import Raw, request_frame
from tests.support.clients import wait_for

ROUNDS = 120
VICTIM = "victim"
TOPIC = "orders"
REFUSED = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_SERVER_ERROR,
}
FAILURES: tuple[Callable[[], Exception], ...] = (
    lambda: PartitionUnavailable(ErrorCode.NOT_ENOUGH_REPLICAS),
    lambda: RecordTooLarge("injected"),
    lambda: StorageError("injected"),
    lambda: struct.error("injected: a mistake of ours"),
)


@pytest.fixture
def broker() -> Iterator[Broker]:
    settings = {
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "1500",
        "auto.create.topics.enable": "false",
    }
    with Broker(settings) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[WireClient]:
    with WireClient(broker.bootstrap_servers) as connected:
        connected.new_topic(400, TOPIC)
        yield connected


def inject(monkeypatch: pytest.MonkeyPatch, chance: random.Random, failed: Counter[str]) -> None:
    """From now on, half of what is written about a victim cannot be."""
    append = shards.append_records

    def may_fail(broker: Any, partition: Any, records: Sequence[Any], *others: Any, **named: Any) -> int:
        if any(VICTIM.encode() in record.key for record in records) and chance.random() < 0.5:
            failure = chance.choice(FAILURES)()
            failed[type(failure).__name__] += 1
            raise failure
        return append(broker, partition, records, *others, **named)

    for module in (groups, transactions):
        monkeypatch.setattr(module, "append_records", may_fail)


class Bystanders:
    """They do what they always do, and note what they are told."""

    def __init__(self, client: WireClient, waiting: Raw) -> None:
        self.client = client
        for kind in (0, 1):
            wait_for(lambda kind=kind: client.ask(m.FindCoordinatorRequest("a", kind), 3).error_code == 0, "a shard")  # type: ignore[misc]  # bound
        self.committed = 0
        self.commit()
        subscription = encode_value(m.ConsumerProtocolSubscription(topics=[TOPIC]), 1)
        protocol = m.JoinGroupRequest.JoinGroupRequestProtocol("range", subscription)
        join = m.JoinGroupRequest("classic", 60_000, 60_000, "", None, "consumer", [protocol])
        self.joined = client.ask(join, 3)
        assert self.joined.error_code == 0
        given = m.SyncGroupRequest.SyncGroupRequestAssignment(self.joined.member_id, b"mine")
        sync = m.SyncGroupRequest("classic", self.joined.generation_id, self.joined.member_id, assignments=[given])
        assert client.ask(sync, 3).assignment == b"mine"
        beat = m.ConsumerGroupHeartbeatRequest(
            "consumer", "me", 0, rebalance_timeout_ms=60_000, subscribed_topic_names=[TOPIC], topic_partitions=[]
        )
        self.consumer = client.ask(beat)
        assert self.consumer.error_code == 0
        self.producer = producer(client, "open")
        assert add_partitions(client, "open", self.producer) is ErrorCode.NONE
        # Beside the run, this one's group waits for more members.
        waiting.send(request_frame(join.replace(group_id="waits"), 3))
        self.waiting = waiting

    def commit(self) -> None:
        self.committed += 1
        assert commit(self.client, "simple", [(0, self.committed, "")]) == {0: ErrorCode.NONE}

    def look(self) -> None:
        client = self.client
        beat = m.HeartbeatRequest("classic", self.joined.generation_id, self.joined.member_id)
        assert ErrorCode(client.ask(beat, 4).error_code) is ErrorCode.NONE
        member = m.ConsumerGroupHeartbeatRequest("consumer", "me", self.consumer.member_epoch)
        answer = client.ask(member)
        assert ErrorCode(answer.error_code) is ErrorCode.NONE
        assert answer.member_epoch == self.consumer.member_epoch
        wanted = m.OffsetFetchRequest.OffsetFetchRequestGroup("simple", topics=None)
        (found,) = client.ask(m.OffsetFetchRequest(groups=[wanted]), 8).groups
        assert (found.error_code, found.topics[0].partitions[0].committed_offset) == (0, self.committed)
        (described,) = client.ask(m.DescribeTransactionsRequest(["open"])).transaction_states
        assert (described.error_code, described.transaction_state) == (0, "Ongoing")
        assert [(topic.topic, topic.partitions) for topic in described.topics] == [(TOPIC, [0])]

    def finish(self) -> None:
        answer = self.waiting.read_frame()
        joined = decode(m.JoinGroupResponse, 3, answer[4:])
        assert ErrorCode(joined.error_code) is ErrorCode.NONE
        assert end(self.client, "open", self.producer, committed=True) is ErrorCode.NONE


def producer(client: WireClient, name: str) -> Any:
    request = m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    given: list[Any] = []

    def has_id() -> bool:
        given.append(client.ask(request))
        return bool(given[-1].error_code == 0)

    wait_for(has_id, "a producer id")
    return given[-1]


def add_partitions(client: WireClient, name: str, who: Any) -> ErrorCode:
    topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(TOPIC, [0])
    request = m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=who.producer_id,
        v3_and_below_producer_epoch=who.producer_epoch,
        v3_and_below_topics=[topic],
    )
    (told,) = client.ask(request, 3).results_by_topic_v3_and_below
    return ErrorCode(told.results_by_partition[0].partition_error_code)


def end(client: WireClient, name: str, who: Any, *, committed: bool) -> ErrorCode:
    return ErrorCode(client.ask(m.EndTxnRequest(name, who.producer_id, who.producer_epoch, committed), 3).error_code)


def commit(client: WireClient, group: str, offsets: list[tuple[int, int, str]]) -> dict[int, ErrorCode]:
    kind = m.OffsetCommitRequest
    parts = [kind.OffsetCommitRequestPartition(index, offset, -1, text) for index, offset, text in offsets]
    (told,) = client.ask(kind(group, topics=[kind.OffsetCommitRequestTopic(TOPIC, partitions=parts)]), 8).topics
    return {each.partition_index: ErrorCode(each.error_code) for each in told.partitions}


def harm(client: WireClient, chance: random.Random, who: Any) -> set[ErrorCode]:
    """Something a victim does; what it is told."""
    group = f"{VICTIM}-{chance.randrange(3)}"
    match chance.randrange(8):
        case 0 | 1:  # a few, or so many that they are prepared ahead
            count = chance.choice([1, 2, 3, 4, 700])
            return set(commit(client, group, [(index % 400, 7, "x") for index in range(count)]).values())
        case 2:  # larger than a batch may be
            return set(commit(client, group, [(index, 7, "x" * 4_000) for index in range(300)]).values())
        case 3:
            protocol = m.JoinGroupRequest.JoinGroupRequestProtocol("range", b"?")
            join = m.JoinGroupRequest(f"{group}-j", 10_000, 10_000, "", None, "consumer", [protocol])
            return {ErrorCode(client.ask(join, 5).error_code)}
        case 4:
            name = f"{group}-c"
            beat = m.ConsumerGroupHeartbeatRequest(
                name, f"m{chance.randrange(3)}", 0, rebalance_timeout_ms=5_000, subscribed_topic_names=[TOPIC]
            )
            return {ErrorCode(client.ask(beat.replace(topic_partitions=[])).error_code)}
        case 5:
            (told,) = client.ask(m.DeleteGroupsRequest([group])).results
            return {ErrorCode(told.error_code)}
        case 6:
            return {add_partitions(client, f"{VICTIM}-tx", who), end(client, f"{VICTIM}-tx", who, committed=False)}
        case _:
            request = m.InitProducerIdRequest(transactional_id=f"{group}-t", transaction_timeout_ms=60_000)
            return {ErrorCode(client.ask(request).error_code)}


@pytest.mark.parametrize("seed", range(2))
def test_failing_appends_cost_bystanders_nothing(
    broker: Broker, client: WireClient, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    failed: Counter[str] = Counter()
    told: Counter[ErrorCode] = Counter()
    with Raw(broker.bootstrap_servers) as raw, WireClient(broker.bootstrap_servers, "victim") as attacker:
        bystanders = Bystanders(client, raw)
        victim = producer(attacker, f"{VICTIM}-tx")
        inject(monkeypatch, chance, failed)
        for number in range(ROUNDS):
            told.update(harm(attacker, chance, victim))
            if number % 4 == 0:
                bystanders.commit()
            bystanders.look()
        bystanders.finish()
    assert len(failed) == len(FAILURES), "each kind happened"
    assert told[ErrorCode.NONE]
    assert told.keys() >= REFUSED


def test_an_answer_that_cannot_be_encoded_is_an_error_to_its_client_alone(
    broker: Broker, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both answers belong to one event: the end of the join phase."""
    kind = m.JoinGroupRequest
    wait_for(lambda: client.ask(m.FindCoordinatorRequest("g", 0), 3).error_code == 0, "a coordinator")
    with Raw(broker.bootstrap_servers) as first, Raw(broker.bootstrap_servers) as second:
        join = kind("g", 10_000, 1_000, "", None, "consumer", [kind.JoinGroupRequestProtocol("range", b"?")])
        from moldau.groups import classic_rebalance

        make = classic_rebalance.join_response

        def spoil(group: Any, member_id: str, *, with_members: bool) -> m.JoinGroupResponse:
            answer = make(group, member_id, with_members=with_members)
            return answer.replace(generation_id=2**40) if answer.leader == member_id else answer

        monkeypatch.setattr(classic_rebalance, "join_response", spoil)
        for each in (first, second):
            each.send(request_frame(join, 3))
        answers = [decode(m.JoinGroupResponse, 3, each.read_frame()[4:]) for each in (first, second)]
    assert sorted(answer.error_code for answer in answers) == [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE]
    wait_for(lambda: client.ask(m.DescribeGroupsRequest(["g"])).groups[0].group_state != "CompletingRebalance", "time")
