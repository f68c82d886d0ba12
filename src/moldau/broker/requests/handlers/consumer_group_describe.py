"""ConsumerGroupDescribe (key 69), versions 0-1. Groups of the new protocol (KIP-848) with members and assignments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.requests.access import GROUP, TOPIC, authorized_operations, may
from moldau.broker.requests.gather import Question, gather_groups
from moldau.controller.acls import Operation
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups
    from moldau.broker.parts import HasAuthorizer, HasTurns

    class Needs(HasAuthorizer, HasGroups, HasTurns, Protocol):
        """What this file may touch."""


Group = m.ConsumerGroupDescribeResponse.DescribedGroup
_HIDDEN = "The group has described topic(s) that the client is not authorized to describe."


def handle(
    broker: Needs, call: Call, request: m.ConsumerGroupDescribeRequest
) -> Awaitable[m.ConsumerGroupDescribeResponse] | None:
    may_describe = may(broker, call, Operation.DESCRIBE, GROUP)
    may_describe_topic = may(broker, call, Operation.DESCRIBE, TOPIC)

    def refuse(group_id: str) -> Group | None:
        return None if may_describe(group_id) else Group(ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id=group_id)

    def finish(group: Group) -> Group:
        group = _seen(group, may_describe_topic)
        if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = authorized_operations(broker, call, GROUP, group.group_id)
        return group

    question = Question(
        ask=lambda ids: m.ConsumerGroupDescribeRequest(ids, request.include_authorized_operations),
        parts_of=lambda message: cast("m.ConsumerGroupDescribeResponse", message).groups,
        refuse=refuse,
        finish=finish,
        whole=lambda groups: m.ConsumerGroupDescribeResponse(groups=groups),
    )
    return gather_groups(broker, call, request.group_ids, question)


def _seen(group: Group, may_describe: Callable[[str], bool]) -> Group:
    """A group that reads what the client must not see is not described at all."""
    topics = {
        topic.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }
    topics.update(name for member in group.members for name in member.subscribed_topic_names)
    if all(may_describe(name) for name in sorted(topics)):
        return group
    return Group(ErrorCode.TOPIC_AUTHORIZATION_FAILED, _HIDDEN, group.group_id)
