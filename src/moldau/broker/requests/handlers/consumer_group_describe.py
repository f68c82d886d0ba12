"""ConsumerGroupDescribe (key 69), versions 0-1. Groups of the new protocol (KIP-848) with members and assignments."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from moldau.broker.requests.gather import gather_groups
from moldau.broker.requests.handlers.common import ALL_GROUP_OPERATIONS
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups


def handle(broker: HasGroups, call: Call, request: m.ConsumerGroupDescribeRequest) -> None:
    def join(groups: list[m.ConsumerGroupDescribeResponse.DescribedGroup]) -> m.ConsumerGroupDescribeResponse:
        if request.include_authorized_operations:
            for group in groups:
                if group.error_code == ErrorCode.NONE:
                    group.authorized_operations = ALL_GROUP_OPERATIONS
        return m.ConsumerGroupDescribeResponse(groups=groups)

    gather_groups(
        broker,
        call,
        request.group_ids,
        lambda ids: m.ConsumerGroupDescribeRequest(ids, request.include_authorized_operations),
        lambda message: cast("m.ConsumerGroupDescribeResponse", message).groups,
        join,
    )
