"""Random lives of groups: members of both protocols come, go, crash, lose answers, while the coordinator moves.

Checked after every event (`driver`, `clients`): one answer per request; a shard loaded from the log equals the live
one; no partition has two owners. Checked here: the group comes to rest once the faults stop, and offsets are what was
committed.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moldau.groups import GroupConfig
from moldau.groups.consumer import ConsumerGroup
from moldau.wire import messages as m
from moldau.wire.message import Message
from tests.groups.clients import ClassicClient, Client, ConsumerClient, Simulation
from tests.groups.driver import Driver, check_reload_is_equal, offsets_of

SLOW = settings(
    max_examples=int(os.environ.get("MOLDAU_GROUP_EXAMPLES", "120")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
EVENTS = st.lists(st.tuples(st.integers(0, 13), st.integers(0, 7), st.integers(0, 3)), min_size=10, max_size=80)
TOPICS = {"orders": 3, "bills": 2}
SUBSCRIPTIONS = (["orders"], ["orders"], ["bills", "orders"], ["bills"])


def make_client(kind: str, simulation: Simulation, choice: int, flavour: int) -> Client:
    name = f"c{simulation.started}"
    instance = f"host-{flavour}" if choice >= 6 else None
    # A static member comes back with what it read before: in a Stable classic group nobody would notice a change.
    topics = SUBSCRIPTIONS[choice % 4 if instance is None else flavour]
    if kind == "classic" or (kind == "mixed" and flavour % 2):
        # One group is either eager or cooperative: clients of one application agree on that.
        return ClassicClient(name, topics, instance=instance)
    if kind == "cooperative":
        return ClassicClient(name, topics, cooperative=True, instance=instance)
    return ConsumerClient(name, topics, regex="b.*s" if flavour == 3 else None, instance=instance)


def happen(simulation: Simulation, kind: str, event: tuple[int, int, int]) -> None:
    action, choice, flavour = event
    driver = simulation.driver
    alive = simulation.alive
    client = alive[choice % len(alive)] if alive else None
    if action <= 1 or client is None:
        if len(alive) < 5:
            simulation.start(make_client(kind, simulation, choice, flavour))
    elif action <= 6:
        client.act(driver)
    elif action == 7:
        if isinstance(client, ConsumerClient):
            client.take_assigned()
        client.act(driver)
        simulation.deliver(lose=True)
    elif action == 8:
        client.dead = True  # crashed: its session will end
    elif action == 9:
        client.leave(driver)
    elif action == 10:
        driver.advance((100, 1_000, 5_000, 12_000)[flavour])
    elif action == 11:
        driver.set_topics(TOPICS | {"orders": 3 + flavour})
    elif action == 12:
        driver.reload()
    elif isinstance(client, ConsumerClient):
        client.take_assigned()
    simulation.deliver()


def assert_at_rest(simulation: Simulation) -> None:
    """Every partition somebody reads has exactly one owner, who reads it."""
    wanted = set()
    for client in simulation.alive:
        matched = {"bills"} if isinstance(client, ConsumerClient) and client.regex else set()
        for topic in {*client.topics, *matched}:
            count = simulation.driver.image.by_name[topic].partition_count
            wanted |= {(topic, index) for index in range(count)}
    owned = simulation.owned()
    assert {partition: len(owners) for partition, owners in owned.items()} == dict.fromkeys(wanted, 1)
    if simulation.alive:
        group = simulation.driver.shard.state.groups["g"]
        assert group.state.value == "Stable"


@pytest.mark.parametrize("kind", ["classic", "cooperative", "consumer", "mixed"])
@SLOW
@given(events=EVENTS)
def test_groups_come_to_rest(kind: str, events: list[tuple[int, int, int]]) -> None:
    config = GroupConfig(
        initial_rebalance_delay_ms=500, consumer_session_timeout_ms=10_000, consumer_assignment_interval_ms=200
    )
    simulation = Simulation(Driver(config))
    simulation.driver.set_topics(TOPICS)
    for event in events:
        happen(simulation, kind, event)
    check_compaction(simulation.driver)
    simulation.settle_down(rounds=40)
    assert_at_rest(simulation)


LOSSES = st.lists(
    st.tuples(st.sampled_from(["start", "beat", "beat", "lose", "lose", "take", "leave", "time"]), st.integers(0, 5)),
    min_size=10,
    max_size=80,
)


@SLOW
@given(events=LOSSES)
def test_members_that_miss_answers_are_told_again(events: list[tuple[str, int]]) -> None:
    """Nobody asks for all after a loss, and nobody is fenced for it: the coordinator makes up for what was missed."""
    simulation = Simulation(Driver(GroupConfig(consumer_session_timeout_ms=10_000, consumer_assignment_interval_ms=0)))
    simulation.driver.set_topics({"orders": 6})
    for what, number in events:
        if what == "start" or not simulation.alive:
            if len(simulation.alive) < 4:
                simulation.start(ConsumerClient(f"c{simulation.started}", ["orders"], impatient=True))
            continue
        client = simulation.alive[number % len(simulation.alive)]
        assert isinstance(client, ConsumerClient)
        if what == "take":
            client.take_assigned()
        elif what == "leave":
            client.leave(simulation.driver)
        elif what == "time":
            simulation.driver.advance(number * 500)
        else:
            client.act(simulation.driver)
        simulation.deliver(lose=what == "lose")
    simulation.settle_down(rounds=20)
    assert_at_rest(simulation)


def check_compaction(driver: Driver) -> None:
    """A compacted log loads to the same state as the whole one."""
    whole, compacted = driver.loaded_shard(), driver.loaded_shard(driver.compacted_log())
    check_reload_is_equal(whole.state, compacted.state)
    check_reload_is_equal(compacted.state, whole.state)


OFFSET_EVENTS = st.lists(
    st.tuples(st.sampled_from(["commit", "txn", "end", "abort", "delete", "reload", "time"]), st.integers(0, 3)),
    max_size=60,
)


@SLOW
@given(events=OFFSET_EVENTS)
def test_offsets_are_what_was_committed(events: list[tuple[str, int]]) -> None:
    """A model: a register per partition, and per producer the commits that wait, in the order they were made."""
    driver = Driver()
    driver.set_topics(TOPICS)
    committed: dict[int, tuple[int, int]] = {}  # partition to (order, offset)
    pending: dict[int, dict[int, tuple[int, int]]] = {}
    for order, (what, number) in enumerate(events):
        partition, producer = number % 2, number
        if what == "commit":
            driver.send(commit_request(partition, order), version=9)
            committed[partition] = (order, order)
        elif what == "txn":
            driver.send(transactional_request(producer, partition, order), version=5)
            pending.setdefault(producer, {})[partition] = (order, order)
        elif what in {"end", "abort"}:
            driver.end_transaction(producer, committed=what == "end")
            for index, entry in pending.pop(producer, {}).items():
                if what == "end" and entry > committed.get(index, (-1, -1)):
                    committed[index] = entry
        elif what == "delete":
            request = m.OffsetDeleteRequest
            topic = request.OffsetDeleteRequestTopic("orders", [request.OffsetDeleteRequestPartition(partition)])
            if "g" in driver.shard.state.groups:
                driver.send(request("g", [topic]), version=0)
                committed.pop(partition, None)
                for waiting in pending.values():
                    waiting.pop(partition, None)
        elif what == "reload":
            driver.reload()
        else:
            driver.advance(60_000)
        found = offsets_of(driver.shard.state)["committed"]
        assert {key[2]: offset.offset for key, offset in found.items()} == {
            index: offset for index, (_, offset) in committed.items()
        }


def commit_request(partition: int, offset: int) -> m.OffsetCommitRequest:
    request = m.OffsetCommitRequest
    entry = request.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
    return request(group_id="g", topics=[request.OffsetCommitRequestTopic(name="orders", partitions=[entry])])


def transactional_request(producer_id: int, partition: int, offset: int) -> m.TxnOffsetCommitRequest:
    request = m.TxnOffsetCommitRequest
    entry = request.TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
    return request(
        transactional_id=f"p{producer_id}",
        group_id="g",
        producer_id=producer_id,
        topics=[request.TxnOffsetCommitRequestTopic(name="orders", partitions=[entry])],
    )


REQUEST_IDS = st.sampled_from(["", "m1", "m2", "ghost"])


@SLOW
@given(
    data=st.lists(
        st.tuples(
            st.integers(0, 8), REQUEST_IDS, st.integers(-3, 3), st.sampled_from([None, "i1", "i2"]), st.integers(0, 9)
        ),
        max_size=50,
    )
)
def test_no_request_breaks_a_shard(data: list[tuple[int, str, int, str | None, int]]) -> None:
    """Requests without sense: every one is answered (now, or when the coordinator moves), and the log stays true."""
    driver = Driver(GroupConfig(initial_rebalance_delay_ms=0, consumer_assignment_interval_ms=0))
    driver.set_topics(TOPICS)
    for what, member_id, number, instance, version in data:
        request = senseless_request(what, member_id, number, instance)
        if request is None:
            driver.advance(7_000)
        else:
            driver.send(request, version=version)
    driver.reload()
    group = driver.shard.state.groups.get("g")
    if isinstance(group, ConsumerGroup):
        driver.advance(100_000)
        assert not group.members or group.group_epoch >= group.assignment_epoch


def senseless_request(what: int, member_id: str, number: int, instance: str | None) -> Message | None:
    subscription = bytes((0, 1, 0, 0, 0, 1, 0, 6)) + b"orders" + bytes(8)
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol("range", subscription if number else b"?")
    beat = m.ConsumerGroupHeartbeatRequest("g", member_id, number, instance)
    if number <= 0:
        beat.rebalance_timeout_ms, beat.subscribed_topic_names, beat.topic_partitions = 1_000, ["orders"], []
    commit = commit_request(0, 1)
    commit.member_id, commit.generation_id_or_member_epoch, commit.group_instance_id = member_id, number, instance
    return (
        m.JoinGroupRequest("g", 6_000, 6_000, member_id, instance, "consumer", [protocol]),
        m.SyncGroupRequest("g", number, member_id, instance, *(("consumer", "range") if number else (None, None))),
        m.HeartbeatRequest("g", number, member_id, instance),
        m.LeaveGroupRequest(group_id="g", members=[m.LeaveGroupRequest.MemberIdentity(member_id, instance)]),
        beat,
        commit,
        m.DeleteGroupsRequest(["g"]),
        m.DescribeGroupsRequest(["g"]),
        None,
    )[what]
