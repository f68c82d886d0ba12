"""DeleteGroups (key 42), versions 0-2. Groups without members are forgotten, with their offsets."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.requests.access import GROUP, may
from moldau.broker.requests.changes import noted
from moldau.broker.requests.gather import PER_TURN, Question, gather_groups
from moldau.controller.acls import Operation
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups
    from moldau.broker.parts import HasAudit, HasAuthorizer, HasTurns

    class Needs(HasAudit, HasAuthorizer, HasGroups, HasTurns, Protocol):
        """What this file may touch."""


Result = m.DeleteGroupsResponse.DeletableGroupResult


def handle(broker: Needs, call: Call, request: m.DeleteGroupsRequest) -> Awaitable[m.DeleteGroupsResponse] | None:
    may_delete = may(broker, call, Operation.DELETE, GROUP)

    def refuse(group_id: str) -> Result | None:
        return None if may_delete(group_id) else Result(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)

    def whole(results: list[Result]) -> m.DeleteGroupsResponse:
        response = m.DeleteGroupsResponse(results=results)
        if len(results) <= PER_TURN:  # else whoever called notes it
            noted(broker, call, request, response)
        return response

    question = Question(
        ask=m.DeleteGroupsRequest,
        parts_of=lambda message: cast("m.DeleteGroupsResponse", message).results,
        refuse=refuse,
        finish=lambda result: result,
        whole=whole,
    )
    return gather_groups(broker, call, request.groups_names, question)
