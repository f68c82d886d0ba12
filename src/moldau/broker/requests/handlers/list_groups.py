"""ListGroups (key 16), versions 0-5. All groups this broker coordinates; by state from version 4 on, by type from 5.

Who may not describe the cluster sees the groups it may describe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.requests.access import GROUP, may, may_on_cluster
from moldau.controller.acls import Operation
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups
    from moldau.broker.parts import HasAuthorizer

    class Needs(HasAuthorizer, HasGroups, Protocol):
        """What this file may touch."""


def handle(broker: Needs, call: Call, request: m.ListGroupsRequest) -> m.ListGroupsResponse | None:
    shards = broker.groups.shard_indexes()
    if not shards:
        return m.ListGroupsResponse()
    groups: list[m.ListGroupsResponse.ListedGroup] = []
    left = len(shards)
    error = ErrorCode.NONE

    sees_all = may_on_cluster(broker, call, Operation.DESCRIBE, is_filter=True)
    may_describe = may(broker, call, Operation.DESCRIBE, GROUP, is_filter=True)

    def answer(message: Message) -> None:
        nonlocal left, error
        part = cast("m.ListGroupsResponse", message)
        groups.extend(each for each in part.groups if sees_all or may_describe(each.group_id))
        if part.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # a list with holes would mislead
        left -= 1
        if left == 0:
            call.respond(m.ListGroupsResponse(error_code=error, groups=[] if error else groups))

    for index in shards:
        broker.groups.handle_in(index, call, request, answer)
    return None
