"""What a broker relies on at the door of a shard: loading, unloading, bounded steps, and errors in their places."""

from __future__ import annotations

import pytest

from moldau.groups import (
    GroupConfig,
    GroupOverrides,
    GroupShard,
    Now,
    RequestContext,
    TopicImage,
    TopicsImage,
    error_after_failed_append,
    refusal,
)
from moldau.groups.classic import ClassicGroup, ClassicState
from moldau.groups.consumer import ConsumerGroup
from moldau.seams.randomness import SeededRandom
from moldau.wire import messages as m
from moldau.wire.codec import encode
from moldau.wire.errors import ErrorCode
from moldau.wire.internal import encode_key, encode_value
from moldau.wire.message import Message
from tests.groups.driver import Driver, topic_id

NOW = Now(1_000, 5_000)
CONTEXT = RequestContext(1, 9, "client", "/127.0.0.1")


def shard(config: GroupConfig | None = None, **topics: int) -> GroupShard:
    image = TopicsImage.of([TopicImage(name, topic_id(name), count) for name, count in topics.items()], 1)
    return GroupShard(config or GroupConfig(), SeededRandom(1), image)


def offset_record(group: str, partition: int, version: int = 4) -> tuple[bytes, bytes]:
    value = m.OffsetCommitValue(offset=partition, metadata="", commit_timestamp=1)
    return encode_key(m.OffsetCommitKey(group, "orders", partition)), encode_value(value, version)


def test_kafkas_older_records_load() -> None:
    loaded = shard()
    for version in range(5):
        loaded.replay(*offset_record("g", version, version))
    legacy = m.LegacyOffsetCommitValue(offset=7, metadata="old", commit_timestamp=2)
    loaded.replay(encode_key(m.LegacyOffsetCommitKey("g", "orders", 9)), encode_value(legacy, 0))
    member = m.GroupMetadataValue.MemberMetadata("m1", None, "c", "/h", -1, 9_000, b"\0\0\0\0\0\0", b"")
    group = m.GroupMetadataValue("consumer", 3, "range", "m1", -1, [member])
    loaded.replay(encode_key(m.GroupMetadataKey("old")), encode_value(group, 0))
    offsets = loaded.state.offsets.topics_of("g")["orders"]
    assert [offsets[index].offset for index in range(5)] == [0, 1, 2, 3, 4]
    assert (offsets[9].offset, offsets[9].metadata) == (7, "old")
    old = loaded.state.groups["old"]
    assert isinstance(old, ClassicGroup)
    assert old.state is ClassicState.STABLE
    assert old.members["m1"].rebalance_timeout_ms == 9_000, (
        "version 0 has no rebalance timeout: the session's stands in"
    )


def test_a_transactional_commit_changes_nothing_until_it_is_in_the_log() -> None:
    """A fenced producer's append fails; the broker answers with an error and the shard goes on."""
    loaded = shard(orders=1)
    request = m.TxnOffsetCommitRequest(transactional_id="t", group_id="g", producer_id=5, producer_epoch=2)
    entry = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=3)
    request.topics = [m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic("orders", [entry])]
    effects = loaded.handle(request, CONTEXT, NOW)
    assert effects.producer == ("t", 5, 2)
    assert not loaded.state.offsets.is_pending("g", "orders", 0)
    loaded.on_appended(effects.entries, effects.producer)
    assert loaded.state.offsets.is_pending("g", "orders", 0)
    loaded.on_transaction_end(5, committed=True)
    found = loaded.state.offsets.get("g", "orders", 0)
    assert found is not None
    assert found.offset == 3


def test_expiry_takes_bounded_steps() -> None:
    """2,000 offsets expire at once: in several batches, none much larger than 500 records, and then the groups go."""
    config = GroupConfig(offsets_retention_ms=1_000, offsets_retention_check_interval_ms=1_000)
    driver = Driver(config, checks_reload=False)
    request = m.OffsetCommitRequest
    for group in range(4):
        partitions = [request.OffsetCommitRequestPartition(index, 1) for index in range(500)]
        topics = [request.OffsetCommitRequestTopic(name="orders", partitions=partitions)]
        driver.send(request(group_id=f"g{group}", topics=topics), version=9)
    steps = [effects for effects in driver.advance(1_000) if effects.records]
    assert max(len(effects.records) for effects in steps) <= 501
    assert sum(len(effects.records) for effects in steps) == 2_004
    assert not driver.shard.state.groups
    assert driver.deadline_ms == 5_000 + 2_000, "the next round comes after the interval"


def test_a_group_above_a_lowered_limit_rebalances_after_loading() -> None:
    loaded = shard(GroupConfig(max_size=1))
    member = m.GroupMetadataValue.MemberMetadata
    members = [member(name, None, "c", "/h", 9_000, 9_000, b"\0\0\0\0\0\0", b"") for name in ("m1", "m2")]
    value = m.GroupMetadataValue("consumer", 3, "range", "m1", 1, members)
    loaded.replay(encode_key(m.GroupMetadataKey("g")), encode_value(value, 3))
    loaded.on_loaded(NOW)
    assert loaded.state.groups["g"].state is ClassicState.PREPARING_REBALANCE


def test_members_loaded_from_the_log_have_a_whole_session() -> None:
    loaded = shard()
    value = m.ConsumerGroupMemberMetadataValue(client_id="c", client_host="/h", rebalance_timeout_ms=1_000)
    loaded.replay(encode_key(m.ConsumerGroupMemberMetadataKey("g", "m1")), encode_value(value, 0))
    current = m.ConsumerGroupCurrentMemberAssignmentValue
    giving_up = current(4, 3, 1, [], [current.TopicPartitions(topic_id("orders"), [0])])
    loaded.replay(encode_key(m.ConsumerGroupCurrentMemberAssignmentKey("g", "m1")), encode_value(giving_up, 0))
    effects = loaded.on_loaded(NOW)
    assert effects.next_deadline_ms == 1_000 + 1_000, "first its time to give up partitions"
    loaded.tick(Now(2_000, 6_000))
    group = loaded.state.groups["g"]
    assert isinstance(group, ConsumerGroup)
    assert not group.members


def test_settings_of_a_single_group() -> None:
    overrides = {"vip": GroupOverrides(60_000, 1_500, 0)}
    image = TopicsImage.of([TopicImage("orders", topic_id("orders"), 1)], 1)
    loaded = GroupShard(
        GroupConfig(), SeededRandom(1), image, lambda group_id: overrides.get(group_id, GroupOverrides())
    )
    for group_id, interval_ms, session_ms in (("vip", 1_500, 60_000), ("other", 5_000, 45_000)):
        request = m.ConsumerGroupHeartbeatRequest(group_id, "m1", 0, rebalance_timeout_ms=1_000)
        request.subscribed_topic_names, request.topic_partitions = ["orders"], []
        (answer,) = loaded.handle(request, CONTEXT, NOW).responses
        assert isinstance(answer.message, m.ConsumerGroupHeartbeatResponse)
        assert answer.message.heartbeat_interval_ms == interval_ms
        loaded.tick(Now(1_000 + session_ms - 1, 5_000))
        group = loaded.state.groups[group_id]
        assert isinstance(group, ConsumerGroup)
        assert group.members
        loaded.tick(Now(1_000 + session_ms, 5_000))
        assert not group.members


def test_a_member_in_a_state_to_come_must_start_over() -> None:
    loaded = shard(orders=1)
    value = m.ConsumerGroupMemberMetadataValue(client_id="c", client_host="/h", subscribed_topic_names=["orders"])
    loaded.replay(encode_key(m.ConsumerGroupMemberMetadataKey("g", "m1")), encode_value(value, 0))
    current = m.ConsumerGroupCurrentMemberAssignmentValue(4, 3, 99, [], [])
    loaded.replay(encode_key(m.ConsumerGroupCurrentMemberAssignmentKey("g", "m1")), encode_value(current, 0))
    beat = m.ConsumerGroupHeartbeatRequest("g", "m1", 4)
    assert error_of(loaded, beat) is ErrorCode.FENCED_MEMBER_EPOCH
    beat.member_epoch, beat.rebalance_timeout_ms = 0, 1_000
    beat.subscribed_topic_names, beat.topic_partitions = ["orders"], []
    assert error_of(loaded, beat) is ErrorCode.NONE


def error_of(loaded: GroupShard, request: Message) -> ErrorCode:
    (answer,) = loaded.handle(request, CONTEXT._replace(api_version=1), NOW).responses
    return ErrorCode(answer.message.error_code)  # type: ignore[attr-defined]  # heartbeats have one


@pytest.mark.parametrize(
    ("protocol_type", "metadata", "assignment", "reason"),
    [
        ("connect", b"", b"", "no consumers"),
        ("consumer", b"?", b"", "cannot be read"),
        ("consumer", bytes(10), encode_value(m.ConsumerProtocolAssignment(user_data=b"x"), 1), "data of its own"),
    ],
)
def test_groups_that_cannot_be_upgraded(protocol_type: str, metadata: bytes, assignment: bytes, reason: str) -> None:
    loaded = shard(orders=1)
    member = m.GroupMetadataValue.MemberMetadata("m1", None, "c", "/h", 9_000, 9_000, metadata, assignment)
    value = m.GroupMetadataValue(protocol_type, 3, "range", "m1", 1, [member])
    loaded.replay(encode_key(m.GroupMetadataKey("g")), encode_value(value, 3))
    request = m.ConsumerGroupHeartbeatRequest("g", "new", 0, rebalance_timeout_ms=1_000)
    request.subscribed_topic_names, request.topic_partitions = ["orders"], []
    effects = loaded.handle(request, CONTEXT, NOW)
    (answer,) = effects.responses
    assert isinstance(answer.message, m.ConsumerGroupHeartbeatResponse)
    assert answer.message.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert reason in (answer.message.error_message or "")
    assert not effects.records


def test_a_regex_resolution_may_fail_or_come_too_late() -> None:
    driver = Driver(resolves_regexes=False)
    driver.set_topics({"orders": 1})
    request = m.ConsumerGroupHeartbeatRequest("g", "m1", 0, rebalance_timeout_ms=1_000)
    request.subscribed_topic_names, request.topic_partitions, request.subscribed_topic_regex = [], [], "o.*"
    (wanted,) = driver.send(request, version=1).regex_resolutions
    assert wanted.regexes == ("o.*",)
    assert not driver.send(request, version=1).regex_resolutions, "one at a time"
    driver.shard.on_regexes_resolved("g", None, 1, driver.now)
    assert driver.send(request, version=1).regex_resolutions, "after a failure the next heartbeat tries again"
    request.member_epoch = -1
    driver.send(request, version=1)
    late = driver.shard.on_regexes_resolved("g", {"o.*": frozenset({"orders"})}, 1, driver.now)
    assert not late.records, "nobody wants to know any more"
    assert not driver.shard.on_regexes_resolved("gone", {}, 1, driver.now).records


PARTITION = m.OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=3)
REFUSED: list[tuple[Message, str]] = [
    (m.JoinGroupRequest(group_id="g", member_id="m"), "error_code"),
    (m.SyncGroupRequest(group_id="g"), "error_code"),
    (m.HeartbeatRequest(group_id="g"), "error_code"),
    (m.LeaveGroupRequest(group_id="g"), "error_code"),
    (
        m.OffsetCommitRequest(topics=[m.OffsetCommitRequest.OffsetCommitRequestTopic("t", partitions=[PARTITION])]),
        "topics.0.partitions.0.error_code",
    ),
    (
        m.TxnOffsetCommitRequest(
            topics=[
                m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    "t", [m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(3)]
                )
            ]
        ),
        "topics.0.partitions.0.error_code",
    ),
    (
        m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g")]),
        "groups.0.error_code",
    ),
    (m.OffsetDeleteRequest(group_id="g"), "error_code"),
    (m.ConsumerGroupHeartbeatRequest(group_id="g"), "error_code"),
    (m.ListGroupsRequest(), "error_code"),
    (m.DescribeGroupsRequest(groups=["g"]), "groups.0.error_code"),
    (m.ConsumerGroupDescribeRequest(group_ids=["g"]), "groups.0.error_code"),
    (m.DeleteGroupsRequest(groups_names=["g"]), "results.0.error_code"),
]


@pytest.mark.parametrize(("request_", "place"), REFUSED, ids=lambda value: type(value).__name__)
def test_a_refusal_says_its_error_where_the_api_has_it(request_: Message, place: str) -> None:
    answer = refusal(request_, ErrorCode.NOT_COORDINATOR)
    found: object = answer
    for step in place.split("."):
        found = found[int(step)] if step.isdigit() else getattr(found, step)  # type: ignore[index]  # a list, by the path
    assert found == ErrorCode.NOT_COORDINATOR
    assert encode(answer, type(answer).last_version)


def test_a_heartbeat_to_a_loading_coordinator_counts() -> None:
    answer = refusal(m.HeartbeatRequest(), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert isinstance(answer, m.HeartbeatResponse)
    assert answer.error_code == ErrorCode.NONE


def test_errors_of_the_log_are_translated() -> None:
    assert error_after_failed_append(ErrorCode.NOT_ENOUGH_REPLICAS) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert error_after_failed_append(ErrorCode.NOT_LEADER_OR_FOLLOWER) is ErrorCode.NOT_COORDINATOR
    assert error_after_failed_append(ErrorCode.MESSAGE_TOO_LARGE) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert error_after_failed_append(ErrorCode.INVALID_PRODUCER_EPOCH) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_request_for_somebody_else_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="MetadataRequest"):
        shard().handle(m.MetadataRequest(), CONTEXT, NOW)
    with pytest.raises(TypeError, match="MetadataRequest"):
        refusal(m.MetadataRequest(), ErrorCode.NONE)


@pytest.mark.parametrize(
    "request_",
    [
        m.JoinGroupRequest(session_timeout_ms=10_000),
        m.SyncGroupRequest(),
        m.HeartbeatRequest(),
        m.LeaveGroupRequest(),
        m.OffsetDeleteRequest(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_group_needs_a_name(request_: Message) -> None:
    assert error_of(shard(), request_) is ErrorCode.INVALID_GROUP_ID
