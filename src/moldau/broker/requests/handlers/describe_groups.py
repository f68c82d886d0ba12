"""DescribeGroups (key 15), versions 0-6. Classic groups with their members, each told by its own coordinator."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.requests.access import GROUP, authorized_operations, may
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


Group = m.DescribeGroupsResponse.DescribedGroup


def handle(broker: Needs, call: Call, request: m.DescribeGroupsRequest) -> Awaitable[m.DescribeGroupsResponse] | None:
    may_describe = may(broker, call, Operation.DESCRIBE, GROUP)

    def refuse(group_id: str) -> Group | None:
        return None if may_describe(group_id) else Group(ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id=group_id)

    def finish(group: Group) -> Group:
        if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = authorized_operations(broker, call, GROUP, group.group_id)
        return group

    question = Question(
        ask=lambda ids: m.DescribeGroupsRequest(ids, request.include_authorized_operations),
        parts_of=lambda message: cast("m.DescribeGroupsResponse", message).groups,
        refuse=refuse,
        finish=finish,
        whole=lambda groups: m.DescribeGroupsResponse(groups=groups),
    )
    return gather_groups(broker, call, request.groups, question)
