"""Appends that fail (too few replicas, too large, a disk that fails) cost nobody anything but the request at hand.

After each failed request the whole shard is what it was (`driver.whole_view`), and at any time a shard loaded from the
log equals the live one (`driver.check`): bystanders see nothing, and nothing is promised that is not in the log.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

from moldau.groups import Effects, GroupConfig, RequestContext, consumer_fence
from moldau.groups.classic import ClassicState
from moldau.groups.consumer import ConsumerGroup, ConsumerMember
from moldau.groups.state import ShardState
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.internal import encode_value
from tests.groups.clients import SESSION_MS, Simulation
from tests.groups.driver import Driver
from tests.groups.test_properties import TOPICS, assert_at_rest, commit_request, happen, transactional_request

FAILURES = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.KAFKA_STORAGE_ERROR)
SEEDS = range(int(os.environ.get("MOLDAU_UNDO_SEEDS", "12")))


@pytest.mark.parametrize("kind", ["classic", "cooperative", "consumer", "mixed"])
def test_random_lives_while_appends_fail(kind: str) -> None:
    failed = 0
    for seed in SEEDS:
        chance = random.Random(f"{kind} {seed}")
        rate = chance.choice((0.05, 0.3, 0.7))

        def fails(_: Effects, chance: random.Random = chance, rate: float = rate) -> ErrorCode | None:
            nonlocal failed
            if chance.random() >= rate:
                return None
            failed += 1
            return chance.choice(FAILURES)

        config = GroupConfig(
            initial_rebalance_delay_ms=500, consumer_session_timeout_ms=10_000, consumer_assignment_interval_ms=200
        )
        simulation = Simulation(Driver(config, seed=seed, checks_undo=True))
        driver = simulation.driver
        driver.set_topics(TOPICS)
        bystand(driver)
        driver.fails = fails
        for number in range(60):
            happen(simulation, kind, (chance.randrange(14), chance.randrange(8), chance.randrange(4)))
            if number % 5 == 0:
                offsets_of_somebody(driver, chance)
        driver.fails, driver.checks_undo = (lambda _: None), False
        driver.advance(1_000)
        simulation.settle_down(rounds=40)
        assert_at_rest(simulation)
    assert failed > 2 * len(SEEDS)


def bystand(driver: Driver) -> None:
    """A group that only stores offsets, and one with a pending transaction: nothing below touches them."""
    driver.send(commit_request(0, 17).replace(group_id="bystander"), version=8)
    driver.send(transactional_request(99, 0, 18).replace(group_id="bystander"), version=5)
    driver.take_answers()


def offsets_of_somebody(driver: Driver, chance: random.Random) -> None:
    """Commits, deletions and the end of offsets, beside what the members do."""
    what = chance.randrange(4)
    if what == 0:
        driver.send(commit_request(chance.randrange(2), 5).replace(group_id="simple"), version=8)
    elif what == 1:
        driver.send(transactional_request(1, chance.randrange(2), 6).replace(group_id="simple"), version=5)
        driver.end_transaction(1, committed=True)
    elif what == 2:
        driver.send(m.DeleteGroupsRequest(["simple"]), version=2)
    else:
        driver.delete_topic_offsets(["bills"])
    driver.answers = [each for each in driver.answers if each[0] is not None]


@pytest.mark.parametrize("error", FAILURES)
def test_a_commit_that_fails_is_refused_and_leaves_no_group(error: ErrorCode) -> None:
    driver = Driver(checks_undo=True)
    driver.set_topics(TOPICS)
    driver.fails = lambda _: error
    driver.send(commit_request(0, 5), version=8)
    ((_, answer),) = driver.take_answers()
    assert isinstance(answer, m.OffsetCommitResponse)
    told = {
        ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    }
    assert answer.topics[0].partitions[0].error_code == told[error]
    assert not driver.shard.state.groups


def join(member_id: str, subscription: bytes = b"anything") -> m.JoinGroupRequest:
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol("range", subscription)
    return m.JoinGroupRequest("g", SESSION_MS, 20_000, member_id, None, "consumer", [protocol])


def test_who_waits_for_a_sync_waits_on_when_the_leaders_cannot_be_written() -> None:
    driver = Driver(GroupConfig(initial_rebalance_delay_ms=100), checks_undo=True)
    for name in ("one", "two"):
        driver.send(join(""), tag=name, version=0)
    driver.advance(300)
    members: dict[Any, Any] = dict(driver.take_answers())
    leader = next(tag for tag, answer in members.items() if answer.leader == answer.member_id)
    (follower,) = members.keys() - {leader}
    generation = members[leader].generation_id

    def sync(who: str) -> None:
        given = [m.SyncGroupRequest.SyncGroupRequestAssignment(each.member_id, b"x") for each in members.values()]
        request = m.SyncGroupRequest("g", generation, members[who].member_id, assignments=given)
        driver.send(request, tag=who, version=0)

    sync(follower)
    driver.fails = lambda _: ErrorCode.MESSAGE_TOO_LARGE
    sync(leader)
    refused: Any
    ((who, refused),) = driver.take_answers()
    assert (who, refused.error_code) == (leader, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert driver.shard.state.groups["g"].state is ClassicState.COMPLETING_REBALANCE
    driver.fails = lambda _: None
    sync(leader)
    answers: dict[Any, Any] = dict(driver.take_answers())
    assert {who: answer.assignment for who, answer in answers.items()} == {leader: b"x", follower: b"x"}


def test_a_session_that_ends_when_nothing_can_be_written_ends_later() -> None:
    driver = Driver(GroupConfig(consumer_session_timeout_ms=10_000))
    driver.set_topics(TOPICS)
    beat = m.ConsumerGroupHeartbeatRequest(
        "g", "member", 0, rebalance_timeout_ms=5_000, subscribed_topic_names=["orders"], topic_partitions=[]
    )
    driver.send(beat, version=1)
    driver.fails = lambda _: ErrorCode.NOT_ENOUGH_REPLICAS
    ticks = driver.advance(12_000)
    assert "member" in driver.shard.state.groups["g"].members
    assert 4 <= len(ticks) <= 10, "tried again every half second, not all the time"
    driver.fails = lambda _: None
    driver.advance(1_000)
    assert not driver.shard.state.groups["g"].members


def test_a_retention_beyond_all_time_is_for_ever() -> None:
    driver = Driver()
    driver.set_topics(TOPICS)
    driver.send(commit_request(0, 5).replace(retention_time_ms=2**63 - 1), version=4)
    ((_, answer),) = driver.take_answers()
    assert isinstance(answer, m.OffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    found = driver.shard.state.offsets.get("g", "orders", 0)
    assert found is not None
    assert found.expire_timestamp_ms == 2**63 - 1


def test_a_mistake_of_ours_costs_the_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(checks_undo=True)
    driver.set_topics(TOPICS)
    driver.send(commit_request(0, 5), version=8)
    driver.take_answers()

    def fail(*_: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr("moldau.groups.offset_requests._topic_id", fail)
    context = RequestContext(7, 8, "client", "/127.0.0.1")
    effects = driver.shard.handle(commit_request(1, 6), context, driver.now)
    assert [str(each) for each in effects.failures] == ["a mistake"]
    ((request_id, answer),) = effects.responses
    assert isinstance(answer, m.OffsetCommitResponse)
    assert (request_id, answer.topics[0].partitions[0].error_code) == (7, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert not effects.records


def test_a_timer_that_fails_does_not_keep_others_from_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again, and the shard says when."""
    driver = Driver(GroupConfig(consumer_session_timeout_ms=10_000))
    driver.set_topics(TOPICS)
    for group in ("bad", "good"):
        beat = m.ConsumerGroupHeartbeatRequest(
            group, "member", 0, rebalance_timeout_ms=5_000, subscribed_topic_names=["orders"], topic_partitions=[]
        )
        driver.send(beat, version=1)
    fence = consumer_fence.fence_members

    def fence_and_fail(state: ShardState, group: ConsumerGroup, members: Sequence[ConsumerMember]) -> None:
        fence(state, group, members)
        if group.group_id == "bad":
            raise RuntimeError("a mistake")

    monkeypatch.setattr(consumer_fence, "fence_members", fence_and_fail)
    driver.now_ms = 10_000
    first = driver.shard.tick(driver.now)
    groups = driver.shard.state.groups
    assert [str(each) for each in first.failures] == ["a mistake"]
    assert (len(groups["bad"].members), len(groups["good"].members)) == (1, 0)
    assert first.next_deadline_ms == driver.now.monotonic_ms + 500
    monkeypatch.setattr(consumer_fence, "fence_members", fence)
    driver.now_ms = 10_500
    assert driver.shard.tick(driver.now).records
    assert not groups["bad"].members


def test_unreadable_subscriptions_do_not_keep_a_group_from_its_downgrade() -> None:
    """The group chose `range`; the member's favourite, which nobody else speaks, nobody has looked at."""
    driver = Driver(GroupConfig(initial_rebalance_delay_ms=100, consumer_session_timeout_ms=5_000))
    driver.set_topics(TOPICS)
    readable = encode_value(m.ConsumerProtocolSubscription(topics=["orders"]), 1)
    kind = m.JoinGroupRequest.JoinGroupRequestProtocol
    other = m.JoinGroupRequest("g", 30_000, 30_000, "", None, "consumer", [kind("range", readable)])
    odd = other.replace(protocols=[kind("own", b"\xff"), kind("range", readable)])
    for request in (odd, other):
        driver.send(request, version=0)
    driver.advance(300)
    assert [answer.protocol_name for _, answer in driver.take_answers()] == ["range", "range"]  # type: ignore[attr-defined]  # JoinGroup's
    beat = m.ConsumerGroupHeartbeatRequest(
        "g", "new", 0, rebalance_timeout_ms=5_000, subscribed_topic_names=["orders"], topic_partitions=[]
    )
    driver.send(beat, tag="new", version=1)
    ((_, answer),) = [each for each in driver.take_answers() if each[0] == "new"]
    assert isinstance(answer, m.ConsumerGroupHeartbeatResponse)
    assert answer.error_code == ErrorCode.NONE
    driver.advance(6_000)
    group = driver.shard.state.groups["g"]
    assert "new" not in group.members, "its session is over"
