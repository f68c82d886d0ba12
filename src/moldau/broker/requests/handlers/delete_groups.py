"""DeleteGroups (key 42), versions 0-2. Groups without members are forgotten, with their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from moldau.broker.requests.gather import gather_groups
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups


def handle(broker: HasGroups, call: Call, request: m.DeleteGroupsRequest) -> None:
    gather_groups(
        broker,
        call,
        request.groups_names,
        m.DeleteGroupsRequest,
        lambda message: cast("m.DeleteGroupsResponse", message).results,
        lambda results: m.DeleteGroupsResponse(results=results),
    )
