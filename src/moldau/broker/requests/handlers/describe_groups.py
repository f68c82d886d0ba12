"""DescribeGroups (key 15), versions 0-6. Classic groups with their members, each told by its own coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from moldau.broker.requests.gather import gather_groups
from moldau.broker.requests.handlers.common import ALL_GROUP_OPERATIONS
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups


def handle(broker: HasGroups, call: Call, request: m.DescribeGroupsRequest) -> None:
    def join(groups: list[m.DescribeGroupsResponse.DescribedGroup]) -> m.DescribeGroupsResponse:
        if request.include_authorized_operations:
            for group in groups:
                if group.error_code == ErrorCode.NONE:
                    group.authorized_operations = ALL_GROUP_OPERATIONS
        return m.DescribeGroupsResponse(groups=groups)

    gather_groups(
        broker,
        call,
        request.groups,
        lambda ids: m.DescribeGroupsRequest(ids, request.include_authorized_operations),
        lambda message: cast("m.DescribeGroupsResponse", message).groups,
        join,
    )
