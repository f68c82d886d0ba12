"""DescribeGroups (key 15), versions 0-6. Classic groups with their members, each told by its own coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.requests.access import GROUP, authorized_operations, may
from moldau.broker.requests.gather import gather_groups
from moldau.controller.acls import Operation
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups
    from moldau.broker.parts import HasAuthorizer

    class Needs(HasAuthorizer, HasGroups, Protocol):
        """What this file may touch."""


def handle(broker: Needs, call: Call, request: m.DescribeGroupsRequest) -> None:
    def join(groups: list[m.DescribeGroupsResponse.DescribedGroup]) -> m.DescribeGroupsResponse:
        if request.include_authorized_operations:
            for group in groups:
                if group.error_code == ErrorCode.NONE:
                    group.authorized_operations = authorized_operations(broker, call, GROUP, group.group_id)
        return m.DescribeGroupsResponse(groups=groups)

    may_describe = may(broker, call, Operation.DESCRIBE, GROUP)

    def refuse(group_id: str) -> m.DescribeGroupsResponse.DescribedGroup | None:
        if may_describe(group_id):
            return None
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return m.DescribeGroupsResponse.DescribedGroup(code, group_id=group_id)

    gather_groups(
        broker,
        call,
        request.groups,
        lambda ids: m.DescribeGroupsRequest(ids, request.include_authorized_operations),
        lambda message: cast("m.DescribeGroupsResponse", message).groups,
        join,
        refuse,
    )
