"""Classic members of a consumer group, during an upgrade or downgrade: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

To the client nothing is unusual: it joins, syncs and heartbeats, and never leads. To the group it is a member like
the others: its generation is its member epoch, its JoinGroup says what it owns and moves it towards the target, and
its SyncGroup fetches the partitions. When it has to give some up or may get more, a heartbeat answers
REBALANCE_IN_PROGRESS and it joins again.
"""

from __future__ import annotations

from dataclasses import replace

from moldau.groups import embedded, migration
from moldau.groups.classic import Protocols, protocols_of
from moldau.groups.config import MigrationPolicy
from moldau.groups.consumer import ClassicMemberData, ConsumerGroup, ConsumerMember, MemberState
from moldau.groups.consumer_fence import fence_members
from moldau.groups.consumer_heartbeat import check_room, check_static_owner, find_member, new_member_id
from moldau.groups.consumer_steps import (
    reconcile_member,
    refresh_metadata,
    replace_static_member,
    restart_session,
    update_subscription,
    update_target,
)
from moldau.groups.effects import GroupFailure, RequestContext
from moldau.groups.state import ShardState
from moldau.groups.timers import TimerKey, TimerKind
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.primitives import MalformedFrame

_MEMBER_ID_ROUND_VERSION = 4


def join_consumer_group(
    state: ShardState, group: ConsumerGroup, request: m.JoinGroupRequest, context: RequestContext
) -> None:
    group_id = group.group_id
    protocols = protocols_of(request)
    _check_join(state, group, request, protocols)
    subscription = _read_subscription(protocols)
    instance_id = request.group_instance_id
    member_id = request.member_id or new_member_id(state)
    if not request.member_id and instance_id is None and context.api_version >= _MEMBER_ID_ROUND_VERSION:
        state.respond(
            context.request_id,
            m.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id),
        )
        return
    former = group.members.get(member_id)
    if instance_id is not None:
        former = group.static_member(instance_id)
        if request.member_id:
            former = check_static_owner(former, instance_id, member_id)
    is_last_of_new_protocol = former is not None and former.classic is None
    downgrades = is_last_of_new_protocol and _would_downgrade(state, group)
    if former is not None and former.member_id != member_id:
        former = replace_static_member(state, group, former, member_id)
    member = replace(
        former or ConsumerMember(member_id),
        instance_id=instance_id,
        rack_id=subscription.rack_id or None,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscribed_topic_names=frozenset(subscription.topics),
        subscribed_topic_regex="",  # the classic protocol has none: its clients resolve them
        client_id=context.client_id,
        client_host=context.client_host,
        classic=ClassicMemberData(request.session_timeout_ms, protocols),
    )
    changed, _ = update_subscription(state, group, former, member, context)
    refresh_metadata(state, group, must_bump=changed)
    stale = group.assignment_epoch < group.group_epoch
    if not downgrades:
        update_target(state, group)
    if not (downgrades and stale):
        owned = embedded.partitions_by_id(subscription.owned_partitions, state.image)
        reconcile_member(state, group, group.members[member_id], subscription_changed=changed, owned=owned)
    generation_id = group.members[member_id].member_epoch
    if downgrades:
        migration.downgrade(state, group, (), rebalance=stale)
    else:
        state.cancel(TimerKind.CONSUMER_JOIN, group_id, member_id)
        restart_session(state, group, group.members[member_id])
        state.schedule(TimerKind.CONSUMER_SYNC, group_id, member_id, request.rebalance_timeout_ms)
    state.respond(
        context.request_id,
        m.JoinGroupResponse(
            member_id=member_id,
            generation_id=generation_id,
            protocol_type=embedded.PROTOCOL_TYPE,
            protocol_name=protocols[0][0],
        ),
    )


def sync(state: ShardState, group: ConsumerGroup, request: m.SyncGroupRequest, context: RequestContext) -> None:
    member, classic = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    protocol_name = classic.protocols[0][0]
    if request.protocol_type not in {None, embedded.PROTOCOL_TYPE} or request.protocol_name not in {
        None,
        protocol_name,
    }:
        raise GroupFailure(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.assignment_epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        _expect_join(state, group, member)
        raise GroupFailure(ErrorCode.REBALANCE_IN_PROGRESS)
    state.cancel(TimerKind.CONSUMER_SYNC, group.group_id, member.member_id)
    restart_session(state, group, member)
    version = embedded.assignment_version(metadata for _, metadata in classic.protocols)
    state.respond(
        context.request_id,
        m.SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=embedded.encode_assignment(member.assigned, state.image, version),
        ),
    )


def heartbeat(state: ShardState, group: ConsumerGroup, request: m.HeartbeatRequest, context: RequestContext) -> None:
    member, _ = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    restart_session(state, group, member)
    error = ErrorCode.NONE
    may_get_more = member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member)
    must_give_up = member.state is MemberState.UNREVOKED_PARTITIONS
    if member.member_epoch < group.assignment_epoch or must_give_up or may_get_more:
        error = ErrorCode.REBALANCE_IN_PROGRESS
        _expect_join(state, group, member)
    state.respond(context.request_id, m.HeartbeatResponse(error_code=error))


def leave(state: ShardState, group: ConsumerGroup, request: m.LeaveGroupRequest, context: RequestContext) -> None:
    leaving: dict[str, ConsumerMember] = {}
    results = []
    for identity in request.members:
        error = ErrorCode.NONE
        try:
            member = _leaving_member(group, identity)
            leaving[member.member_id] = member
        except GroupFailure as failure:
            error = failure.error
        results.append(
            m.LeaveGroupResponse.MemberResponse(
                member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=error
            )
        )
    fence_members(state, group, list(leaving.values()))
    state.respond(context.request_id, m.LeaveGroupResponse(members=results))


def _check_join(state: ShardState, group: ConsumerGroup, request: m.JoinGroupRequest, protocols: Protocols) -> None:
    if state.config.consumer_migration_policy is MigrationPolicy.DISABLED:
        raise GroupFailure(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    check_room(state, group, request.member_id)
    if not protocols or not group.supports_classic(request.protocol_type, {name for name, _ in protocols}):
        raise GroupFailure(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _read_subscription(protocols: Protocols) -> m.ConsumerProtocolSubscription:
    try:
        return embedded.decode_subscription(protocols[0][1])
    except MalformedFrame as error:
        raise GroupFailure(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"The subscription cannot be read: {error}") from None


def _would_downgrade(state: ShardState, group: ConsumerGroup) -> bool:
    """A classic process takes over the instance id of the last member of the new protocol."""
    return (
        group.classic_count == len(group.members) - 1
        and len(group.members) <= state.config.max_size
        and state.config.consumer_migration_policy.allows_downgrade
    )


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int
) -> tuple[ConsumerMember, ClassicMemberData]:
    member = find_member(group, member_id, instance_id)
    if member.classic is None:
        raise GroupFailure(ErrorCode.UNKNOWN_MEMBER_ID)
    if generation_id != member.member_epoch:
        raise GroupFailure(ErrorCode.ILLEGAL_GENERATION)
    return member, member.classic


def _expect_join(state: ShardState, group: ConsumerGroup, member: ConsumerMember) -> None:
    """From now on the member has its rebalance timeout to join again."""
    key = TimerKey(group.group_id, TimerKind.CONSUMER_JOIN, member.member_id)
    if key not in state.timers:
        state.timers.schedule(key, state.now.monotonic_ms + member.rebalance_timeout_ms)


def _leaving_member(group: ConsumerGroup, identity: m.LeaveGroupRequest.MemberIdentity) -> ConsumerMember:
    if identity.group_instance_id is not None and not identity.member_id:
        # An administrator removes whoever holds the instance id.
        member = group.static_member(identity.group_instance_id)
        if member is None:
            raise GroupFailure(ErrorCode.UNKNOWN_MEMBER_ID)
        return member
    return find_member(group, identity.member_id, identity.group_instance_id)
