"""DescribeGroups (key 15), versions 0-6. Classic groups with their members, each told by its own coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from moldau.broker.gather import gather_groups
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.calls import Call


def handle(broker: Broker, call: Call, request: m.DescribeGroupsRequest) -> None:
    gather_groups(
        broker,
        call,
        request.groups,
        lambda ids: m.DescribeGroupsRequest(ids, request.include_authorized_operations),
        lambda message: cast("m.DescribeGroupsResponse", message).groups,
        lambda groups: m.DescribeGroupsResponse(groups=groups),
    )
