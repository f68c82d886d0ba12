"""How a classic group rebalances: the join phase, the sync phase, and what their timeouts do.

Join phase (PreparingRebalance): JoinGroup requests wait until every member has joined or the rebalance timeout is
over; the first rebalance of an empty group waits for `group.initial.rebalance.delay.ms` instead, longer while members
keep coming. Sync phase (CompletingRebalance): everybody waits for the assignment the leader sends with its SyncGroup.
"""

from __future__ import annotations

from moldau.groups.classic import ClassicGroup, ClassicMember, ClassicState
from moldau.groups.records import encode_entry
from moldau.groups.state import ShardState
from moldau.groups.timers import Timer, TimerKind
from moldau.groups.undo import save
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode


def prepare_rebalance(state: ShardState, group: ClassicGroup) -> None:
    if group.state is ClassicState.COMPLETING_REBALANCE:
        for member in group.members.values():
            member.assignment = b""
        answer_syncs(state, group, ErrorCode.REBALANCE_IN_PROGRESS)
    group.pending_sync.clear()
    state.cancel(TimerKind.CLASSIC_SYNC, group.group_id)
    is_first = group.state is ClassicState.EMPTY
    group.transition_to(ClassicState.PREPARING_REBALANCE, state.now.wall_ms)
    if is_first:
        delay_ms = state.config.initial_rebalance_delay_ms
        _wait_for_more_members(state, group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
    elif group.all_members_joined:
        complete_join(state, group)
    else:
        _wait_for_members(state, group)


def rebalance_or_complete_join(state: ShardState, group: ClassicGroup) -> None:
    """After a change of membership or metadata."""
    if group.state is ClassicState.PREPARING_REBALANCE:
        maybe_complete_join(state, group)
    else:
        prepare_rebalance(state, group)


def maybe_complete_join(state: ShardState, group: ClassicGroup) -> None:
    preparing = group.state is ClassicState.PREPARING_REBALANCE
    if preparing and not group.came_from_empty and group.all_members_joined:
        complete_join(state, group)


def complete_join(state: ShardState, group: ClassicGroup) -> None:
    """The join phase is over: drop dynamic members that did not join, start the next generation."""
    state.cancel(TimerKind.CLASSIC_JOIN, group.group_id)
    state.cancel(TimerKind.CLASSIC_INITIAL_JOIN, group.group_id)
    for member in tuple(group.members.values()):
        if member.member_id not in group.awaiting_join and member.group_instance_id is None:
            remove_member(state, group, member.member_id)
    if group.members and not group.elect_joined_leader():
        _wait_for_members(state, group)  # only static members, none of them back yet
        return
    group.start_next_generation(state.now.wall_ms)
    if not group.members:
        write_metadata(state, group)
        return
    for member in group.members.values():
        answer_join(state, group, member)
        restart_session(state, group, member)
        member.is_new = False
        group.pending_sync.add(member.member_id)
    state.schedule(TimerKind.CLASSIC_SYNC, group.group_id, "", group.rebalance_timeout_ms, group.generation_id)


def finish_sync(state: ShardState, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
    """The leader's assignment arrived: make it durable, then (with its commit) tell everybody who waits."""
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
    group.transition_to(ClassicState.STABLE, state.now.wall_ms)
    write_metadata(state, group)
    answer_syncs(state, group, ErrorCode.NONE)


def write_metadata(state: ShardState, group: ClassicGroup) -> None:
    """Not applied like other records: the group in memory is already what the record says."""
    assert group.group_id in state.savepoints, "what is written must have been saved"
    state.records.append(encode_entry(*group.to_record()))


def answer_join(state: ShardState, group: ClassicGroup, member: ClassicMember) -> None:
    request_id = group.awaiting_join.pop(member.member_id, None)
    if request_id is not None:
        state.respond(request_id, join_response(group, member.member_id, with_members=True))


def answer_syncs(state: ShardState, group: ClassicGroup, error: ErrorCode) -> None:
    for member_id, request_id in tuple(group.awaiting_sync.items()):
        member = group.members[member_id]
        succeeded = error is ErrorCode.NONE
        state.respond(
            request_id,
            m.SyncGroupResponse(
                error_code=error,
                protocol_type=group.protocol_type if succeeded else None,
                protocol_name=group.protocol_name if succeeded else None,
                assignment=member.assignment,
            ),
        )
        restart_session(state, group, member)
    group.awaiting_sync.clear()


def join_response(group: ClassicGroup, member_id: str, *, with_members: bool) -> m.JoinGroupResponse:
    """The leader also learns who the members are."""
    listed = group.members.values() if with_members and group.leader_id == member_id else ()
    return m.JoinGroupResponse(
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id or "",
        member_id=member_id,
        members=[
            m.JoinGroupResponse.JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(group.protocol_name),
            )
            for member in listed
        ],
    )


def join_failure(error: ErrorCode, member_id: str = "") -> m.JoinGroupResponse:
    return m.JoinGroupResponse(error_code=error, member_id=member_id)


def remove_member(
    state: ShardState, group: ClassicGroup, member_id: str, error: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID
) -> None:
    """Forget a member, its session, and answer what it waits for."""
    fail_waiting(state, group, member_id, error)
    state.cancel(TimerKind.CLASSIC_SESSION, group.group_id, member_id)
    group.remove(member_id)


def fail_waiting(state: ShardState, group: ClassicGroup, member_id: str, error: ErrorCode) -> None:
    join_id = group.awaiting_join.pop(member_id, None)
    if join_id is not None:
        # Kafka names the member only when it was fenced; a removed one has to ask for a new id.
        named = member_id if error is not ErrorCode.UNKNOWN_MEMBER_ID else ""
        state.respond(join_id, join_failure(error, named))
    sync_id = group.awaiting_sync.pop(member_id, None)
    if sync_id is not None:
        state.respond(sync_id, m.SyncGroupResponse(error_code=error))


def restart_session(
    state: ShardState, group: ClassicGroup, member: ClassicMember, timeout_ms: int | None = None
) -> None:
    timeout_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
    state.schedule(TimerKind.CLASSIC_SESSION, group.group_id, member.member_id, timeout_ms)


def on_timer(state: ShardState, timer: Timer) -> None:
    group = state.classic_group(timer.key.group_id)
    if group is None:
        return
    # A session that ends writes only if nobody is left; the others may empty the group at once.
    if timer.key.kind is not TimerKind.CLASSIC_SESSION or len(group.members) <= 1:
        save(state, group.group_id)
    if timer.key.kind is TimerKind.CLASSIC_SESSION:
        _on_session_end(state, group, timer.key.member_id)
    elif timer.key.kind is TimerKind.CLASSIC_INITIAL_JOIN:
        delay_ms, remaining_ms = timer.detail
        _on_initial_delay_end(state, group, delay_ms, remaining_ms)
    elif timer.key.kind is TimerKind.CLASSIC_JOIN:
        if group.state is ClassicState.PREPARING_REBALANCE:
            complete_join(state, group)
    elif timer.key.kind is TimerKind.CLASSIC_SYNC:
        _on_sync_timeout(state, group, timer.detail[0])


def _wait_for_members(state: ShardState, group: ClassicGroup) -> None:
    state.schedule(TimerKind.CLASSIC_JOIN, group.group_id, "", group.rebalance_timeout_ms)


def _wait_for_more_members(state: ShardState, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
    state.schedule(TimerKind.CLASSIC_INITIAL_JOIN, group.group_id, "", delay_ms, delay_ms, remaining_ms)


def _on_initial_delay_end(state: ShardState, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
    if group.state is not ClassicState.PREPARING_REBALANCE:
        return
    if group.new_member_added and remaining_ms:
        group.new_member_added = False
        next_delay_ms = min(state.config.initial_rebalance_delay_ms, remaining_ms)
        _wait_for_more_members(state, group, next_delay_ms, max(remaining_ms - delay_ms, 0))
    else:
        complete_join(state, group)


def _on_session_end(state: ShardState, group: ClassicGroup, member_id: str) -> None:
    member = group.members.get(member_id)
    if member is None:
        group.pending_members.discard(member_id)
        maybe_complete_pending(state, group)
        return
    waiting = member_id in group.awaiting_join or member_id in group.awaiting_sync
    if waiting and not member.is_new:
        return  # it is there, and the coordinator owes it an answer: that answer starts a new session
    remove_member(state, group, member_id)
    after_removal(state, group)


def after_removal(state: ShardState, group: ClassicGroup) -> None:
    """A member is gone: the others rebalance, or the join phase no longer waits for it."""
    if group.state in {ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE}:
        prepare_rebalance(state, group)
    else:
        maybe_complete_pending(state, group)


def maybe_complete_pending(state: ShardState, group: ClassicGroup) -> None:
    """Like `maybe_complete_join`, but also in the first rebalance: whom it waited for will not come."""
    if group.state is ClassicState.PREPARING_REBALANCE and group.all_members_joined:
        complete_join(state, group)


def _on_sync_timeout(state: ShardState, group: ClassicGroup, generation_id: int) -> None:
    rebalancing = group.state in {ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE}
    if generation_id != group.generation_id or not rebalancing or not group.pending_sync:
        return
    for member_id in tuple(group.pending_sync):
        remove_member(state, group, member_id)
    prepare_rebalance(state, group)
