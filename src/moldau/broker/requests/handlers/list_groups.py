"""ListGroups (key 16), versions 0-5. All groups this broker coordinates; by state from version 4 on, by type from 5."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups


def handle(broker: HasGroups, call: Call, request: m.ListGroupsRequest) -> m.ListGroupsResponse | None:
    shards = broker.groups.shard_indexes()
    if not shards:
        return m.ListGroupsResponse()
    groups: list[m.ListGroupsResponse.ListedGroup] = []
    left = len(shards)
    error = ErrorCode.NONE

    def answer(message: Message) -> None:
        nonlocal left, error
        part = cast("m.ListGroupsResponse", message)
        groups.extend(part.groups)
        if part.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # a list with holes would mislead
        left -= 1
        if left == 0:
            call.respond(m.ListGroupsResponse(error_code=error, groups=[] if error else groups))

    for index in shards:
        broker.groups.handle_in(index, call, request, answer)
    return None
