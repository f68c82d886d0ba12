"""JoinGroup (key 11), versions 0-9. Join a classic group; a first join is told its member id (KIP-394).

The answer comes when the members of the next generation are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups

_NULLABLE_PROTOCOL = 7


def handle(broker: HasGroups, call: Call, request: m.JoinGroupRequest) -> None:
    def answer(message: Message) -> None:
        response = cast("m.JoinGroupResponse", message)
        # A refusal names no protocol: with null, where the version has one.
        if call.version < _NULLABLE_PROTOCOL:
            response.protocol_name = response.protocol_name or ""
        elif response.error_code != ErrorCode.NONE:
            response.protocol_name = None
        call.respond(response)

    broker.groups.handle(call, request.group_id, request, answer)
