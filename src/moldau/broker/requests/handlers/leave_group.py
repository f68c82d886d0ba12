"""LeaveGroup (key 13), versions 0-5. Members leave a classic group: one up to version 2, several from 3 on."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups

_MANY_MEMBERS = 3


def handle(broker: HasGroups, call: Call, request: m.LeaveGroupRequest) -> None:
    if call.version >= _MANY_MEMBERS:
        broker.groups.handle(call, request.group_id, request, call.respond)
        return

    def answer(response: Message) -> None:
        # The one member's error is the error of the whole.
        told = cast("m.LeaveGroupResponse", response)
        code = told.members[0].error_code if told.members and not told.error_code else told.error_code
        call.respond(m.LeaveGroupResponse(error_code=ErrorCode(code)))

    member = m.LeaveGroupRequest.MemberIdentity(member_id=request.member_id)
    broker.groups.handle(call, request.group_id, m.LeaveGroupRequest(request.group_id, members=[member]), answer)
