"""LeaveGroup (key 13), versions 0-5. Members leave a classic group: one up to version 2, several from 3 on."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.requests.gather import answer_of
from moldau.broker.requests.pieces import AT_ONCE, PER_PIECE, chunks
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups
    from moldau.broker.parts import HasTurns

    class Needs(HasGroups, HasTurns, Protocol):
        """What this file may touch."""


_MANY_MEMBERS = 3


def handle(broker: Needs, call: Call, request: m.LeaveGroupRequest) -> Awaitable[m.LeaveGroupResponse] | None:
    if len(request.members) > AT_ONCE:
        return _in_turns(broker, call, request)
    if call.version >= _MANY_MEMBERS:
        broker.groups.handle(call, request.group_id, request, call.respond)
        return None

    def answer(response: Message) -> None:
        # The one member's error is the error of the whole.
        told = cast("m.LeaveGroupResponse", response)
        code = told.members[0].error_code if told.members and not told.error_code else told.error_code
        call.respond(m.LeaveGroupResponse(error_code=ErrorCode(code)))

    member = m.LeaveGroupRequest.MemberIdentity(member_id=request.member_id)
    broker.groups.handle(call, request.group_id, m.LeaveGroupRequest(request.group_id, members=[member]), answer)
    return None


async def _in_turns(broker: Needs, call: Call, request: m.LeaveGroupRequest) -> m.LeaveGroupResponse:
    """Some after the others: each leaves for itself. An error of the group is that of the whole."""
    whole = m.LeaveGroupResponse()
    for members in chunks(request.members, PER_PIECE):
        await broker.turns.next_turn()
        piece = m.LeaveGroupRequest(request.group_id, members=members)
        told = await answer_of(partial(broker.groups.handle, call, request.group_id, piece))
        response = cast("m.LeaveGroupResponse", told)
        if response.error_code:
            return response
        whole.members += response.members
    return whole
