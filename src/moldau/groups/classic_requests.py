"""SyncGroup (API 14), Heartbeat (12) and LeaveGroup (13), to classic groups and to classic members of consumer groups.

LeaveGroup v0-2 has one member and no list: the broker's handler makes a list of one. v3+ removes several at once,
also static members by instance id alone; v5+ gives reasons, which are for the log only.
"""

from __future__ import annotations

from moldau.groups import classic_in_consumer
from moldau.groups.classic import ClassicGroup, ClassicState
from moldau.groups.classic_rebalance import (
    fail_waiting,
    finish_sync,
    maybe_complete_join,
    prepare_rebalance,
    remove_member,
    restart_session,
)
from moldau.groups.consumer import ConsumerGroup
from moldau.groups.effects import GroupFailure, RequestContext
from moldau.groups.state import ShardState
from moldau.groups.timers import TimerKind
from moldau.groups.undo import save
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode

_PROTOCOL_REQUIRED_VERSION = 5


def sync_group(state: ShardState, request: m.SyncGroupRequest, context: RequestContext) -> None:
    _check_group_id(request.group_id)
    if context.api_version >= _PROTOCOL_REQUIRED_VERSION and None in {request.protocol_type, request.protocol_name}:
        raise GroupFailure(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    group = state.groups.get(request.group_id)
    if isinstance(group, ConsumerGroup) and group.members:
        classic_in_consumer.sync(state, group, request, context)
        return
    if not isinstance(group, ClassicGroup) or group.state is ClassicState.EMPTY:
        raise GroupFailure(ErrorCode.UNKNOWN_MEMBER_ID)
    member = group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation_id:
        raise GroupFailure(ErrorCode.ILLEGAL_GENERATION)
    if _differ(request.protocol_type, group.protocol_type) or _differ(request.protocol_name, group.protocol_name):
        raise GroupFailure(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.state is ClassicState.PREPARING_REBALANCE:
        raise GroupFailure(ErrorCode.REBALANCE_IN_PROGRESS)
    if group.state is ClassicState.COMPLETING_REBALANCE and member.member_id == group.leader_id:
        save(state, group.group_id)
    group.pending_sync.discard(member.member_id)
    if not group.pending_sync:
        state.cancel(TimerKind.CLASSIC_SYNC, group.group_id)
    if group.state is ClassicState.STABLE:
        state.respond(
            context.request_id,
            m.SyncGroupResponse(
                protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
            ),
        )
        return
    fail_waiting(state, group, member.member_id, ErrorCode.REBALANCE_IN_PROGRESS)
    group.awaiting_sync[member.member_id] = context.request_id
    if member.member_id == group.leader_id:
        finish_sync(state, group, {given.member_id: given.assignment for given in request.assignments})


def heartbeat(state: ShardState, request: m.HeartbeatRequest, context: RequestContext) -> None:
    _check_group_id(request.group_id)
    group = state.groups.get(request.group_id)
    if isinstance(group, ConsumerGroup):
        classic_in_consumer.heartbeat(state, group, request, context)
        return
    if group is None:
        raise GroupFailure(ErrorCode.UNKNOWN_MEMBER_ID)
    member = group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation_id:
        raise GroupFailure(ErrorCode.ILLEGAL_GENERATION)
    restart_session(state, group, member)
    rebalancing = group.state is ClassicState.PREPARING_REBALANCE
    error = ErrorCode.REBALANCE_IN_PROGRESS if rebalancing else ErrorCode.NONE
    state.respond(context.request_id, m.HeartbeatResponse(error_code=error))


def leave_group(state: ShardState, request: m.LeaveGroupRequest, context: RequestContext) -> None:
    _check_group_id(request.group_id)
    group = state.groups.get(request.group_id)
    if isinstance(group, ConsumerGroup):
        classic_in_consumer.leave(state, group, request, context)
        return
    results = []
    size_before = 0 if group is None else len(group.members)
    if size_before <= len(request.members):
        save(state, request.group_id)
    for identity in request.members:
        error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else _leave(state, group, identity)
        results.append(
            m.LeaveGroupResponse.MemberResponse(
                member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=error
            )
        )
    if group is not None:
        if group.state is ClassicState.PREPARING_REBALANCE:
            maybe_complete_join(state, group)
        elif len(group.members) < size_before:
            prepare_rebalance(state, group)
    state.respond(context.request_id, m.LeaveGroupResponse(members=results))


def _leave(state: ShardState, group: ClassicGroup, identity: m.LeaveGroupRequest.MemberIdentity) -> ErrorCode:
    member_id = identity.member_id
    instance_id = identity.group_instance_id
    if not member_id:
        owner = None if instance_id is None else group.static_members.get(instance_id)
        if owner is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = owner
    elif member_id not in group.pending_members:
        try:
            group.check_member(member_id, instance_id)
        except GroupFailure as failure:
            return failure.error
    remove_member(state, group, member_id)
    return ErrorCode.NONE


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise GroupFailure(ErrorCode.INVALID_GROUP_ID)


def _differ(given: str | None, expected: str | None) -> bool:
    return given is not None and expected is not None and given != expected
