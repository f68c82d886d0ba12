"""ConsumerGroupHeartbeat (API 68), versions 0-1: join, stay, leave, and receive partitions, all in one request
(KIP-848).

v1: the client chooses its member id, and may subscribe with a regular expression. Epoch 0 joins, -1 leaves, -2 is a
static member leaving for a while: it keeps its partitions until its session ends or it comes back.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Set
from dataclasses import replace

from moldau.groups import migration
from moldau.groups.classic import ClassicGroup, ClassicState
from moldau.groups.consumer import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from moldau.groups.consumer_fence import fence_members
from moldau.groups.consumer_steps import (
    check_regex_of,
    reconcile_member,
    refresh_metadata,
    replace_static_member,
    restart_session,
    update_subscription,
    update_target,
    write_current,
)
from moldau.groups.delivery import Delivery
from moldau.groups.effects import GroupFailure, RequestContext
from moldau.groups.records import Epochs, TopicPartition, by_topic
from moldau.groups.state import ShardState
from moldau.groups.undo import save
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode

_MEMBER_ID_FROM_CLIENT_VERSION = 1


def consumer_group_heartbeat(
    state: ShardState, request: m.ConsumerGroupHeartbeatRequest, context: RequestContext
) -> None:
    _check_request(state, request, context.api_version)
    if request.member_epoch in {LEAVE_EPOCH, STATIC_LEAVE_EPOCH}:
        _leave(state, request, context)
    else:
        _heartbeat(state, request, context)


def new_member_id(state: ShardState) -> str:
    """Kafka's form for ids it gives to members of consumer groups."""
    return urlsafe_b64encode(state.random.uuid()).decode().rstrip("=")


def check_room(state: ShardState, group: ConsumerGroup, member_id: str) -> None:
    limit = state.config.consumer_max_size
    if len(group.members) >= limit and member_id not in group.members:
        raise GroupFailure(
            ErrorCode.GROUP_MAX_SIZE_REACHED, f"Group {group.group_id} is full: group.consumer.max.size is {limit}."
        )


def check_static_owner(member: ConsumerMember | None, instance_id: str, member_id: str) -> ConsumerMember:
    """The static member, if this member id is the one that holds its instance id."""
    if member is None:
        raise GroupFailure(ErrorCode.UNKNOWN_MEMBER_ID, f"No member has the instance id {instance_id}.")
    if member.member_id != member_id:
        raise GroupFailure(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Instance id {instance_id} belongs to member {member.member_id} now, not to {member_id}.",
        )
    return member


def find_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    if instance_id is not None:
        return check_static_owner(group.static_member(instance_id), instance_id, member_id)
    member = group.members.get(member_id)
    if member is None:
        raise GroupFailure(ErrorCode.UNKNOWN_MEMBER_ID, f"Group {group.group_id} has no member {member_id}.")
    return member


def _check_request(state: ShardState, request: m.ConsumerGroupHeartbeatRequest, version: int) -> None:
    epoch = request.member_epoch
    needs_member_id = version >= _MEMBER_ID_FROM_CLIENT_VERSION or epoch > 0 or epoch == LEAVE_EPOCH
    problem = None
    if needs_member_id and not request.member_id.strip():
        problem = "The member id is missing."
    elif not request.group_id.strip():
        problem = "The group id is missing."
    elif request.instance_id is not None and not request.instance_id.strip():
        problem = "The instance id is blank: give one, or null."
    elif request.rack_id is not None and not request.rack_id.strip():
        problem = "The rack id is blank: give one, or null."
    elif epoch == 0:
        if request.rebalance_timeout_ms == -1:
            problem = "A joining member must say its rebalance timeout."
        elif request.topic_partitions is None or request.topic_partitions:
            problem = "A joining member must send an empty list of owned partitions."
        elif request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            problem = "A joining member must subscribe to topic names or to a regular expression."
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        problem = "Member epoch -2 is for static members: the instance id is missing."
    elif epoch < STATIC_LEAVE_EPOCH:
        problem = "The member epoch must be -2 or more."
    if problem is not None:
        raise GroupFailure(ErrorCode.INVALID_REQUEST, problem)
    if request.server_assignor is not None and request.server_assignor not in state.config.consumer_assignors:
        supported = ", ".join(state.config.consumer_assignors)
        raise GroupFailure(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"There is no assignor {request.server_assignor} here; choose one of: {supported}.",
        )


def _heartbeat(state: ShardState, request: m.ConsumerGroupHeartbeatRequest, context: RequestContext) -> None:
    joining = request.member_epoch == 0
    owned = _owned_partitions(request)
    member_id = request.member_id or new_member_id(state)
    seen = _group_to_check(state, request.group_id, joining=joining)
    check_room(state, seen, request.member_id)
    check_regex_of(seen, request.subscribed_topic_regex)
    former = _member_to_check(seen, request, owned, joining=joining)
    if former is not None and owned is None:
        _ask_what_it_owns(state, seen, former)

    # Nothing has changed so far, and nothing can fail from here on.
    group = _enter_group(state, request.group_id, seen)
    if former is not None and joining and request.instance_id is not None:
        replace_static_member(state, group, former, member_id)
    known = group.members.get(member_id)
    subscription_changed, must_bump = update_subscription(
        state, group, known, _updated_member(known or ConsumerMember(member_id), request, context), context
    )
    refresh_metadata(state, group, must_bump=must_bump)
    update_target(state, group)
    updated = reconcile_member(
        state, group, group.members[member_id], subscription_changed=subscription_changed, owned=owned
    )
    restart_session(state, group, updated)
    interval_ms = _heartbeat_interval_ms(state, group.group_id)
    response = m.ConsumerGroupHeartbeatResponse(
        member_id=member_id, member_epoch=updated.member_epoch, heartbeat_interval_ms=interval_ms
    )
    delivery = group.deliveries.setdefault(member_id, Delivery())
    delivery.used_epoch = request.member_epoch
    if owned is not None:
        delivery.reported = owned
    former_assigned: Epochs = known.assigned if known is not None else {}
    is_news = joining or _is_full(request) or updated.assigned != former_assigned
    if is_news or delivery.is_due(updated.assigned.keys(), interval_ms, state.now.monotonic_ms):
        response.assignment = assignment_for_response(updated.assigned)
        delivery.told_ms = state.now.monotonic_ms
    state.respond(context.request_id, response)


def _heartbeat_interval_ms(state: ShardState, group_id: str) -> int:
    override = state.overrides(group_id).consumer_heartbeat_interval_ms
    return state.config.consumer_heartbeat_interval_ms if override is None else override


def _ask_what_it_owns(state: ShardState, group: ConsumerGroup, member: ConsumerMember) -> None:
    """A member that is to give up what it may never have heard of has nothing to do, and so confirms nothing."""
    delivery = group.deliveries.get(member.member_id)
    if member.state is not MemberState.UNREVOKED_PARTITIONS or delivery is None:
        return
    interval_ms = _heartbeat_interval_ms(state, group.group_id)
    if delivery.must_ask(member.assigned.keys(), interval_ms, state.now.monotonic_ms):
        delivery.told_ms = state.now.monotonic_ms
        restart_session(state, group, member)
        raise _tell_me_all()


def _tell_me_all() -> GroupFailure:
    """The one error that makes every client say everything in its next heartbeat, and keep what it has."""
    return GroupFailure(ErrorCode.COORDINATOR_NOT_AVAILABLE, "Say again which partitions you own.")


def _leave(state: ShardState, request: m.ConsumerGroupHeartbeatRequest, context: RequestContext) -> None:
    group = state.consumer_group(request.group_id)
    member = find_member(group, request.member_id, request.instance_id)
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        write_current(
            state,
            group,
            replace(
                member,
                member_epoch=STATIC_LEAVE_EPOCH,
                assigned=dict.fromkeys(member.assigned, 0),
                pending_revocation={},
            ),
        )
    else:
        fence_members(state, group, [member])
    state.respond(
        context.request_id,
        m.ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch),
    )


def assignment_for_response(partitions: Epochs) -> m.ConsumerGroupHeartbeatResponse.Assignment:
    response = m.ConsumerGroupHeartbeatResponse
    return response.Assignment(
        topic_partitions=[
            response.TopicPartitions(topic_id=topic_id, partitions=indexes)
            for topic_id, indexes in by_topic(partitions).items()
        ]
    )


def _owned_partitions(request: m.ConsumerGroupHeartbeatRequest) -> Set[TopicPartition] | None:
    if request.topic_partitions is None:
        return None
    return frozenset((topic.topic_id, index) for topic in request.topic_partitions for index in topic.partitions)


def _is_full(request: m.ConsumerGroupHeartbeatRequest) -> bool:
    """The client repeats everything, after an error or a lost answer: it gets everything back."""
    subscribed = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.rebalance_timeout_ms != -1 and subscribed and request.topic_partitions is not None


def _group_to_check(state: ShardState, group_id: str, *, joining: bool) -> ConsumerGroup:
    """The group as it will be for this request: itself, a new one, or what a classic one would become."""
    group = state.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        return group
    if not joining:
        what = f"Group {group_id} not found." if group is None else f"Group {group_id} uses another protocol."
        raise GroupFailure(ErrorCode.GROUP_ID_NOT_FOUND, what)
    if isinstance(group, ClassicGroup) and group.state is not ClassicState.EMPTY:
        return migration.upgraded(state, group)
    return ConsumerGroup(group_id)


def _enter_group(state: ShardState, group_id: str, seen: ConsumerGroup) -> ConsumerGroup:
    """Make what `_group_to_check` saw real."""
    group = state.groups.get(group_id)
    if isinstance(group, ClassicGroup):
        if group.state is ClassicState.EMPTY:
            migration.erase_group(state, group)
        else:
            migration.upgrade(state, group, seen)
        group = state.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        save(state, group_id)
        group = seen
        state.groups[group_id] = group
    return group


def _member_to_check(
    group: ConsumerGroup,
    request: m.ConsumerGroupHeartbeatRequest,
    owned: Set[TopicPartition] | None,
    *,
    joining: bool,
) -> ConsumerMember | None:
    """The member this heartbeat is from; None: a new one. GroupFailure if it may not speak for that member."""
    instance_id = request.instance_id
    if not joining:
        member = find_member(group, request.member_id, instance_id)
        _check_epoch(group, member, request.member_epoch, owned)
    elif instance_id is None:
        found = group.members.get(request.member_id)
        if found is None:
            return None
        member = found
    else:
        static = group.static_member(instance_id)
        if static is None:
            return None
        # A live process keeps its instance id; a classic one is on its way out of an upgrade and hands it over.
        if static.classic is None and static.member_epoch != STATIC_LEAVE_EPOCH:
            raise GroupFailure(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Instance id {instance_id} is in use by member {static.member_id}; stop that one first.",
            )
        member = static
    if member.state is MemberState.UNKNOWN and owned != frozenset():
        raise GroupFailure(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "A newer broker left this member in a state unknown here: give up all partitions and join again.",
        )
    return member


def _check_epoch(group: ConsumerGroup, member: ConsumerMember, epoch: int, owned: Set[TopicPartition] | None) -> None:
    """A member may be one epoch behind, if it missed the last answer and claims nothing that was taken from it."""
    if epoch == member.member_epoch:
        return
    if epoch < member.member_epoch and epoch == member.previous_member_epoch:
        if owned is not None and owned <= member.assigned.keys():
            return
        delivery = group.deliveries.get(member.member_id)
        if owned is None and delivery is not None and delivery.used_epoch == epoch:
            # It has never used the newer epoch. Kafka fences it here too; but it may just have missed the answer.
            raise _tell_me_all()
    relation = "greater" if epoch > member.member_epoch else "smaller"
    raise GroupFailure(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"Member epoch {epoch} is {relation} than the current one, {member.member_epoch}: "
        "give up all partitions and join again.",
    )


def _updated_member(
    member: ConsumerMember, request: m.ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerMember:
    """The member with what the request says; a field left out keeps its value."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        server_assignor=member.server_assignor if request.server_assignor is None else request.server_assignor,
        subscribed_topic_names=member.subscribed_topic_names if names is None else frozenset(names),
        subscribed_topic_regex=member.subscribed_topic_regex if regex is None else regex,
        client_id=context.client_id,
        client_host=context.client_host,
        classic=None,
    )
