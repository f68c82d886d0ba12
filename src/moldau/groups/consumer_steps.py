"""The steps a change in a consumer group goes through, shared by the members of both protocols.

subscription -> group epoch -> target assignment -> current assignment. Each step writes its records and lets them
take effect before the next one looks at the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

from moldau.groups.assignors import ASSIGNORS, GroupSpec, MemberSpec
from moldau.groups.consumer import ConsumerGroup, ConsumerMember, MemberState, current_value, member_value
from moldau.groups.effects import GroupFailure, RegexResolution, RequestContext
from moldau.groups.metadata import subscription_hash
from moldau.groups.reconcile import Goal, reconcile
from moldau.groups.records import TopicPartition, target_assignment_value
from moldau.groups.regex import check_regex
from moldau.groups.regex_syntax import InvalidRegex
from moldau.groups.replay import emit
from moldau.groups.state import ShardState
from moldau.groups.timers import TimerKey, TimerKind
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode

_REGEX_MIN_INTERVAL_MS = 10_000
"""A group resolves its regular expressions at most this often."""


def write_member(state: ShardState, group: ConsumerGroup, member: ConsumerMember) -> None:
    key = m.ConsumerGroupMemberMetadataKey(group_id=group.group_id, member_id=member.member_id)
    emit(state, key, member_value(member))


def write_current(state: ShardState, group: ConsumerGroup, member: ConsumerMember) -> None:
    key = m.ConsumerGroupCurrentMemberAssignmentKey(group_id=group.group_id, member_id=member.member_id)
    emit(state, key, current_value(member))


def write_target(state: ShardState, group: ConsumerGroup, member_id: str, target: Iterable[TopicPartition]) -> None:
    key = m.ConsumerGroupTargetAssignmentMemberKey(group_id=group.group_id, member_id=member_id)
    emit(state, key, target_assignment_value(target))


def erase_member(state: ShardState, group: ConsumerGroup, member_id: str) -> None:
    """Tombstones in Kafka's order: what the member owns goes before the member."""
    group_id = group.group_id
    emit(state, m.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None)
    emit(state, m.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None)
    emit(state, m.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None)


def cancel_member_timers(state: ShardState, group_id: str, member_id: str) -> None:
    for kind in (
        TimerKind.CONSUMER_SESSION,
        TimerKind.CONSUMER_REBALANCE,
        TimerKind.CONSUMER_JOIN,
        TimerKind.CONSUMER_SYNC,
    ):
        state.cancel(kind, group_id, member_id)


def session_timeout_ms(state: ShardState, group_id: str, member: ConsumerMember) -> int:
    if member.classic is not None:
        return member.classic.session_timeout_ms
    override = state.overrides(group_id).consumer_session_timeout_ms
    return state.config.consumer_session_timeout_ms if override is None else override


def restart_session(state: ShardState, group: ConsumerGroup, member: ConsumerMember) -> None:
    timeout_ms = session_timeout_ms(state, group.group_id, member)
    state.schedule(TimerKind.CONSUMER_SESSION, group.group_id, member.member_id, timeout_ms)


def replace_static_member(
    state: ShardState, group: ConsumerGroup, former: ConsumerMember, member_id: str
) -> ConsumerMember:
    """A static member came back under a new id: it inherits subscription, target and partitions, and starts at epoch
    0.
    """
    target = group.target.get(former.member_id, frozenset())
    member = replace(former, member_id=member_id, member_epoch=0, previous_member_epoch=0)
    erase_member(state, group, former.member_id)
    cancel_member_timers(state, group.group_id, former.member_id)
    write_member(state, group, member)
    write_target(state, group, member_id, target)
    write_current(state, group, member)
    return member


def check_regex_of(group: ConsumerGroup, regex: str | None) -> None:
    """GroupFailure if a member brings a regular expression that is none. One already in use was checked before."""
    if regex and regex not in group.regex_subscribers:
        try:
            check_regex(regex)
        except InvalidRegex as error:
            raise GroupFailure(
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                f"The subscription `{regex}` is no regular expression in RE2 syntax: {error}.",
            ) from None


def update_subscription(
    state: ShardState,
    group: ConsumerGroup,
    former: ConsumerMember | None,
    member: ConsumerMember,
    context: RequestContext,
) -> tuple[bool, bool]:
    """Write what changed about a member. Returns (subscription changed, group epoch must be bumped)."""
    former_names = former.subscribed_topic_names if former is not None else frozenset[str]()
    former_regex = former.subscribed_topic_regex if former is not None else ""
    regex = member.subscribed_topic_regex
    regex_in_use = group.regex_subscribers[regex] > 0 if regex else False
    if member != former:
        write_member(state, group, member)
    names_changed = member.subscribed_topic_names != former_names
    regex_changed = regex != former_regex
    resolved = False
    if regex_changed:
        if former_regex and former_regex not in group.regex_subscribers:
            key = m.ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=former_regex)
            emit(state, key, None)
        # A new expression waits for its resolution; one that is known, or none, counts at once.
        resolved = regex in group.resolved_regexes if regex else True
    _maybe_resolve_regexes(state, group, context, must=regex_changed and bool(regex) and not regex_in_use)
    return names_changed or regex_changed, names_changed or (regex_changed and resolved)


def _maybe_resolve_regexes(state: ShardState, group: ConsumerGroup, context: RequestContext, *, must: bool) -> None:
    if not group.regex_subscribers or group.regex_resolution_pending:
        return
    last = next(iter(group.resolved_regexes.values()), None)
    now_ms = state.now.wall_ms
    if last is not None:
        if 0 <= now_ms - last.timestamp_ms <= _REGEX_MIN_INTERVAL_MS:
            return
        must = must or last.version < state.new_topics_version
        must = must or not 0 <= now_ms - last.timestamp_ms <= state.config.consumer_regex_refresh_interval_ms
    if must or len(group.regex_subscribers) != len(group.resolved_regexes):
        group.regex_resolution_pending = True
        regexes = tuple(sorted(group.regex_subscribers))
        state.regex_resolutions.append(RegexResolution(group.group_id, regexes, context))


def bump_epoch(state: ShardState, group: ConsumerGroup) -> None:
    _write_epoch(state, group, group.group_epoch + 1, _hash_of(state, group))
    group.metadata_expired = False


def refresh_metadata(state: ShardState, group: ConsumerGroup, *, must_bump: bool) -> None:
    """Bump the group epoch if asked to, or if a topic the group reads has changed."""
    if not must_bump and not group.metadata_expired:
        return
    metadata_hash = _hash_of(state, group)
    if must_bump or metadata_hash != group.metadata_hash:
        _write_epoch(state, group, group.group_epoch + 1, metadata_hash)
    if group.has_partition_metadata_record:
        emit(state, m.ConsumerGroupPartitionMetadataKey(group_id=group.group_id), None)
    group.metadata_expired = False


def _hash_of(state: ShardState, group: ConsumerGroup) -> int:
    return subscription_hash(group.subscribed_topics, state.image, state.topic_hashes)


def _write_epoch(state: ShardState, group: ConsumerGroup, epoch: int, metadata_hash: int) -> None:
    value = m.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    emit(state, m.ConsumerGroupMetadataKey(group_id=group.group_id), value)


def update_target(state: ShardState, group: ConsumerGroup) -> None:
    """Compute the target assignment of the group epoch, unless the last one is too recent: a heartbeat will come back
    to it.
    """
    if group.assignment_epoch >= group.group_epoch:
        return
    override = state.overrides(group.group_id).consumer_assignment_interval_ms
    interval_ms = state.config.consumer_assignment_interval_ms if override is None else override
    # Outside [0, interval): long enough ago, or written by a clock ahead of ours, which must not stop assignments.
    if group.assignment_timestamp_ms and 0 <= state.now.wall_ms - group.assignment_timestamp_ms < interval_ms:
        return
    spec = group_spec(state, group)
    assign = ASSIGNORS[group.preferred_assignor() or state.config.consumer_assignors[0]]
    for member_id, target in sorted(assign(spec).items()):
        if target != group.target.get(member_id):
            write_target(state, group, member_id, target)
    value = m.ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=group.group_epoch, assignment_timestamp=state.now.wall_ms
    )
    emit(state, m.ConsumerGroupTargetAssignmentMetadataKey(group_id=group.group_id), value)


def group_spec(state: ShardState, group: ConsumerGroup) -> GroupSpec:
    topics = [topic for topic in map(state.image.topic_by_name, sorted(group.subscribed_topics)) if topic is not None]
    ids = {topic.name: topic.topic_id for topic in topics}
    cache: dict[frozenset[str], frozenset[bytes]] = {}
    members = {}
    for member_id, member in group.members.items():
        names = group.topics_of(member)
        if names not in cache:
            cache[names] = frozenset(ids[name] for name in names if name in ids)
        members[member_id] = MemberSpec(member.instance_id, cache[names], group.target.get(member_id, frozenset()))
    counts = {topic.topic_id: topic.partition_count for topic in topics}
    return GroupSpec(members, counts, group.subscription_type)


def reconcile_member(
    state: ShardState,
    group: ConsumerGroup,
    member: ConsumerMember,
    *,
    subscription_changed: bool,
    owned: Set[TopicPartition] | None,
) -> ConsumerMember:
    """Let a member take its next step towards the target, and watch over the time it has to give up partitions."""
    if not subscription_changed and member.is_reconciled_to(group.assignment_epoch):
        return member
    names = group.topics_of(member)
    topics = (state.image.topic_by_name(name) for name in names)
    goal = Goal(
        group.assignment_epoch,
        group.target.get(member.member_id, frozenset()),
        {topic.topic_id for topic in topics if topic is not None},
        subscription_changed,
        group.owners,
        owned,
    )
    updated = reconcile(member, goal)
    if updated == member:
        return member
    write_current(state, group, updated)
    if updated.classic is None:
        watch_revocation(state, group, updated)
    return group.members[member.member_id]


def watch_revocation(state: ShardState, group: ConsumerGroup, member: ConsumerMember) -> None:
    key = TimerKey(group.group_id, TimerKind.CONSUMER_REBALANCE, member.member_id)
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        deadline_ms = state.now.monotonic_ms + member.rebalance_timeout_ms
        state.timers.schedule(key, deadline_ms, member.member_epoch)
    else:
        state.timers.cancel(key)
