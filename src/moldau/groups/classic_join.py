"""JoinGroup (API 11) to a classic group, versions 0-9.

v4+: a dynamic member first gets an id (MEMBER_ID_REQUIRED) and joins again with it (KIP-394). v5+: static members
(KIP-345): a new process with the same instance id replaces the old one, and in a Stable group without a rebalance.
v9+: such a leader is told to skip the assignment (KIP-814).
"""

from __future__ import annotations

from moldau.groups import migration
from moldau.groups.classic import ClassicGroup, ClassicMember, ClassicState, protocols_of
from moldau.groups.classic_in_consumer import join_consumer_group
from moldau.groups.classic_rebalance import (
    fail_waiting,
    join_failure,
    join_response,
    maybe_complete_join,
    prepare_rebalance,
    rebalance_or_complete_join,
    restart_session,
    write_metadata,
)
from moldau.groups.consumer import ConsumerGroup
from moldau.groups.effects import GroupFailure, RequestContext
from moldau.groups.state import ShardState
from moldau.groups.timers import TimerKind
from moldau.groups.undo import save
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode

_MEMBER_ID_ROUND_VERSION = 4
_SKIP_ASSIGNMENT_VERSION = 9


def join_group(state: ShardState, request: m.JoinGroupRequest, context: RequestContext) -> None:
    if not request.group_id:
        raise GroupFailure(ErrorCode.INVALID_GROUP_ID)
    if not state.config.min_session_timeout_ms <= request.session_timeout_ms <= state.config.max_session_timeout_ms:
        raise GroupFailure(ErrorCode.INVALID_SESSION_TIMEOUT)
    if context.api_version == 0:
        request = request.replace(rebalance_timeout_ms=request.session_timeout_ms)
    group = state.groups.get(request.group_id)
    if isinstance(group, ConsumerGroup):
        if group.members:
            join_consumer_group(state, group, request, context)
            return
        if not request.member_id:
            migration.erase_group(state, group)
        group = None
    if group is None:
        if request.member_id:
            raise GroupFailure(ErrorCode.UNKNOWN_MEMBER_ID)
        save(state, request.group_id)
        group = ClassicGroup(request.group_id, state_timestamp_ms=state.now.wall_ms)
        state.groups[request.group_id] = group
        write_metadata(state, group)  # a group that exists survives a reload, even while its first members still join
    _join_classic_group(state, group, request, context)


def _join_classic_group(
    state: ShardState, group: ClassicGroup, request: m.JoinGroupRequest, context: RequestContext
) -> None:
    if not _has_room(state, group, request.member_id):
        group.pending_members.discard(request.member_id)
        state.respond(context.request_id, join_failure(ErrorCode.GROUP_MAX_SIZE_REACHED))
    elif not group.supports(request.protocol_type, {protocol.name for protocol in request.protocols}):
        error = join_failure(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        state.respond(context.request_id, error)
    elif request.member_id:
        _join_with_member_id(state, group, request, context)
    elif request.group_instance_id is not None:
        _join_new_static(state, group, request, context, request.group_instance_id)
    else:
        _join_new_dynamic(state, group, request, context)


def _has_room(state: ShardState, group: ClassicGroup, member_id: str) -> bool:
    limit = state.config.max_size
    if group.state is ClassicState.EMPTY:
        return True
    if group.state is ClassicState.PREPARING_REBALANCE:
        # Members who are not back yet may never be: only those waiting count.
        return member_id in group.awaiting_join or len(group.awaiting_join) < limit
    return member_id in group.members or len(group.members) < limit


def _join_new_dynamic(
    state: ShardState, group: ClassicGroup, request: m.JoinGroupRequest, context: RequestContext
) -> None:
    member_id = state.new_member_id(context, None)
    if context.api_version < _MEMBER_ID_ROUND_VERSION:
        _add_member(state, group, request, context, member_id)
        return
    group.pending_members.add(member_id)
    state.schedule(TimerKind.CLASSIC_SESSION, group.group_id, member_id, request.session_timeout_ms)
    state.respond(context.request_id, join_failure(ErrorCode.MEMBER_ID_REQUIRED, member_id))


def _join_new_static(
    state: ShardState, group: ClassicGroup, request: m.JoinGroupRequest, context: RequestContext, instance_id: str
) -> None:
    member_id = state.new_member_id(context, instance_id)
    former_id = group.static_members.get(instance_id)
    if former_id is None:
        _add_member(state, group, request, context, member_id)
    else:
        _replace_static(state, group, request, context, former_id=former_id, member_id=member_id)


def _join_with_member_id(
    state: ShardState, group: ClassicGroup, request: m.JoinGroupRequest, context: RequestContext
) -> None:
    if request.member_id in group.pending_members and request.group_instance_id is None:
        _add_member(state, group, request, context, request.member_id)
        return
    try:
        member = group.check_member(request.member_id, request.group_instance_id)
    except GroupFailure as failure:
        state.respond(context.request_id, join_failure(failure.error, request.member_id))
        return
    unchanged = member.protocols == protocols_of(request)
    if group.state is ClassicState.COMPLETING_REBALANCE and unchanged:
        # It missed the answer to its JoinGroup: repeat it.
        state.respond(context.request_id, join_response(group, member.member_id, with_members=True))
    elif group.state is ClassicState.STABLE and unchanged and member.member_id != group.leader_id:
        state.respond(context.request_id, join_response(group, member.member_id, with_members=False))
    else:
        # In Stable, the leader may ask for a rebalance just by joining: it saw a change in the topics it reads.
        _update_member(state, group, member, request, context)
        rebalance_or_complete_join(state, group)


def _add_member(
    state: ShardState, group: ClassicGroup, request: m.JoinGroupRequest, context: RequestContext, member_id: str
) -> None:
    member = ClassicMember(
        member_id,
        request.group_instance_id,
        context.client_id,
        context.client_host,
        request.rebalance_timeout_ms,
        request.session_timeout_ms,
        protocols_of(request),
        is_new=True,
    )
    if group.state is ClassicState.PREPARING_REBALANCE and group.came_from_empty:
        group.new_member_added = True
    group.add(member, request.protocol_type)
    group.awaiting_join[member_id] = context.request_id
    restart_session(state, group, member, state.config.new_member_join_timeout_ms)
    rebalance_or_complete_join(state, group)


def _update_member(
    state: ShardState,
    group: ClassicGroup,
    member: ClassicMember,
    request: m.JoinGroupRequest,
    context: RequestContext,
) -> None:
    # A client that gave up waiting and asks again: the first request must not hang for ever.
    fail_waiting(state, group, member.member_id, ErrorCode.REBALANCE_IN_PROGRESS)
    group.update(member, protocols_of(request))
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.session_timeout_ms = request.session_timeout_ms
    group.awaiting_join[member.member_id] = context.request_id


def _replace_static(
    state: ShardState,
    group: ClassicGroup,
    request: m.JoinGroupRequest,
    context: RequestContext,
    *,
    former_id: str,
    member_id: str,
) -> None:
    """A static member came back as a new process. In a Stable group nothing needs to move."""
    if group.state is ClassicState.STABLE:
        save(state, group.group_id)
    former_leader_id = group.leader_id or ""
    fail_waiting(state, group, former_id, ErrorCode.FENCED_INSTANCE_ID)
    state.cancel(TimerKind.CLASSIC_SESSION, group.group_id, former_id)
    member = group.replace_static(former_id, member_id)
    _update_member(state, group, member, request, context)
    restart_session(state, group, member)
    if group.state is ClassicState.STABLE:
        if group.select_protocol() != group.protocol_name:
            prepare_rebalance(state, group)
            return
        del group.awaiting_join[member_id]
        # As in Kafka, other topics alone are no reason to rebalance; but their offsets are in use from now on.
        group.subscribed_topics = group.read_subscriptions()
        write_metadata(state, group)
        if context.api_version >= _SKIP_ASSIGNMENT_VERSION:
            response = join_response(group, member_id, with_members=True)
            response.skip_assignment = group.leader_id == member_id
        else:
            # Older clients would run the assignor if they were told they lead: they are told of their former self.
            response = join_response(group, member_id, with_members=False)
            response.leader = former_leader_id
        state.respond(context.request_id, response)
    elif group.state is ClassicState.COMPLETING_REBALANCE:
        prepare_rebalance(state, group)
    else:
        maybe_complete_join(state, group)
