"""DescribeGroups (API 15), ConsumerGroupDescribe (69), ListGroups (16) and DeleteGroups (42).

A shard answers for its own groups; the broker splits requests by partition and joins the answers. DescribeGroups v6+
says GROUP_ID_NOT_FOUND for a group that is not there; before, such a group is Dead. ListGroups v4+ filters by state,
v5+ by type.
"""

from __future__ import annotations

from collections.abc import Iterable

from moldau.groups import migration
from moldau.groups.classic import ClassicGroup, ClassicState
from moldau.groups.consumer import ConsumerGroup, ConsumerMember, ConsumerState
from moldau.groups.effects import RequestContext
from moldau.groups.metadata import MetadataImage
from moldau.groups.offset_requests import delete_all_offsets
from moldau.groups.records import TopicPartition, by_topic
from moldau.groups.state import Group, ShardState
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode

STATES = frozenset(each.value.lower() for kind in (ClassicState, ConsumerState) for each in kind)
TYPES = frozenset({"classic", "consumer"})
"""What a filter of ListGroups can let pass, in small letters."""
_NOT_FOUND_VERSION = 6
_MEMBER_TYPE_CLASSIC, _MEMBER_TYPE_CONSUMER = 0, 1


def describe_groups(state: ShardState, request: m.DescribeGroupsRequest, context: RequestContext) -> None:
    described = []
    for group_id in request.groups:
        group = state.groups.get(group_id)
        if isinstance(group, ClassicGroup):
            described.append(_describe_classic(group))
            continue
        missing = m.DescribeGroupsResponse.DescribedGroup(group_id=group_id, group_state=ClassicState.DEAD.value)
        if context.api_version >= _NOT_FOUND_VERSION:
            missing.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            missing.error_message = _absence(group_id, group, "classic")
        described.append(missing)
    state.respond(context.request_id, m.DescribeGroupsResponse(groups=described))


def describe_consumer_groups(
    state: ShardState, request: m.ConsumerGroupDescribeRequest, context: RequestContext
) -> None:
    described = []
    for group_id in request.group_ids:
        group = state.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            described.append(_describe_consumer(group, state))
            continue
        error = ErrorCode.GROUP_ID_NOT_FOUND if group_id else ErrorCode.INVALID_GROUP_ID
        message = _absence(group_id, group, "consumer") if group_id else None
        described.append(
            m.ConsumerGroupDescribeResponse.DescribedGroup(group_id=group_id, error_code=error, error_message=message)
        )
    state.respond(context.request_id, m.ConsumerGroupDescribeResponse(groups=described))


def list_groups(state: ShardState, request: m.ListGroupsRequest, context: RequestContext) -> None:
    states = {name.strip().lower() for name in request.states_filter}
    types = {name.lower() for name in request.types_filter}
    listed = [
        m.ListGroupsResponse.ListedGroup(
            group_id=group.group_id,
            protocol_type=_protocol_type(group),
            group_state=group.state.value,
            group_type=_group_type(group),
        )
        for group in state.groups.values()
        if (not states or group.state.value.lower() in states) and (not types or _group_type(group) in types)
    ]
    state.respond(context.request_id, m.ListGroupsResponse(groups=listed))


def delete_groups(state: ShardState, request: m.DeleteGroupsRequest, context: RequestContext) -> None:
    results = []
    for group_id in request.groups_names:
        group = state.groups.get(group_id)
        error = ErrorCode.NONE
        if group is None:
            error = ErrorCode.GROUP_ID_NOT_FOUND
        elif not group.is_empty:
            error = ErrorCode.NON_EMPTY_GROUP
        else:
            delete_all_offsets(state, group_id)
            migration.erase_group(state, group)
        results.append(m.DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=error))
    state.respond(context.request_id, m.DeleteGroupsResponse(results=results))


def _absence(group_id: str, group: Group | None, wanted: str) -> str:
    return f"Group {group_id} not found." if group is None else f"Group {group_id} is not a {wanted} group."


def _group_type(group: Group) -> str:
    return "classic" if isinstance(group, ClassicGroup) else "consumer"


def _protocol_type(group: Group) -> str:
    return (group.protocol_type or "") if isinstance(group, ClassicGroup) else "consumer"


def _describe_classic(group: ClassicGroup) -> m.DescribeGroupsResponse.DescribedGroup:
    response = m.DescribeGroupsResponse
    stable = group.state is ClassicState.STABLE
    return response.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        # While a group rebalances, its protocol and its members' metadata are about to change: they are not shown.
        protocol_data=(group.protocol_name or "") if stable else "",
        members=[
            response.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol_name) if stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )


def _describe_consumer(group: ConsumerGroup, state: ShardState) -> m.ConsumerGroupDescribeResponse.DescribedGroup:
    return m.ConsumerGroupDescribeResponse.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor() or state.config.consumer_assignors[0],
        members=[_describe_member(group, member, state.image) for member in group.members.values()],
    )


def _describe_member(
    group: ConsumerGroup, member: ConsumerMember, image: MetadataImage
) -> m.ConsumerGroupDescribeResponse.Member:
    return m.ConsumerGroupDescribeResponse.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=_described_assignment((*member.assigned, *member.pending_revocation), image),
        target_assignment=_described_assignment(group.target.get(member.member_id, ()), image),
        member_type=_MEMBER_TYPE_CONSUMER if member.classic is None else _MEMBER_TYPE_CLASSIC,
    )


def _described_assignment(
    partitions: Iterable[TopicPartition], image: MetadataImage
) -> m.ConsumerGroupDescribeResponse.Assignment:
    response = m.ConsumerGroupDescribeResponse
    topics = []
    for topic_id, indexes in by_topic(partitions).items():
        topic = image.topic_by_id(topic_id)
        if topic is not None:
            topics.append(response.TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=indexes))
    return response.Assignment(topic_partitions=topics)
