"""ListGroups (key 16), versions 0-5. All groups this broker coordinates; by state from version 4 on, by type from 5.

Who may not describe the cluster sees the groups it may describe.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.requests.access import GROUP, may, may_on_cluster
from moldau.broker.requests.gather import answer_of
from moldau.broker.requests.pieces import AT_ONCE
from moldau.broker.requests.threads import in_thread
from moldau.controller.acls import Operation
from moldau.groups.describe import STATES, TYPES
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups
    from moldau.broker.parts import HasAuthorizer, HasLoop

    class Needs(HasAuthorizer, HasGroups, HasLoop, Protocol):
        """What this file may touch."""


def handle(
    broker: Needs, call: Call, request: m.ListGroupsRequest
) -> m.ListGroupsResponse | Awaitable[m.ListGroupsResponse] | None:
    if not broker.groups.shard_indexes():
        return m.ListGroupsResponse()
    if len(request.states_filter) + len(request.types_filter) > AT_ONCE:
        return _list_at_length(broker, call, request)
    _list(broker, call, request, call.respond)
    return None


async def _list_at_length(broker: Needs, call: Call, request: m.ListGroupsRequest) -> m.ListGroupsResponse:
    """Every shard looks through the filters: of very many, through what they come to."""
    reduced = await in_thread(broker, partial(_reduced, request))
    return await answer_of(partial(_list, broker, call, reduced))


def _reduced(request: m.ListGroupsRequest) -> m.ListGroupsRequest:
    states = STATES.intersection(name.strip().lower() for name in request.states_filter)
    types = TYPES.intersection(name.lower() for name in request.types_filter)
    # A filter of nothing that there is lets nothing pass; an empty one would be no filter.
    return m.ListGroupsRequest(
        sorted(states) or (["?"] if request.states_filter else []),
        sorted(types) or (["?"] if request.types_filter else []),
    )


def _list(
    broker: Needs, call: Call, request: m.ListGroupsRequest, respond: Callable[[m.ListGroupsResponse], None]
) -> None:
    groups: list[m.ListGroupsResponse.ListedGroup] = []
    shards = broker.groups.shard_indexes()
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
            respond(m.ListGroupsResponse(error_code=error, groups=[] if error else groups))

    if not shards:
        respond(m.ListGroupsResponse())
    for index in shards:
        broker.groups.handle_in(index, call, request, answer)
