"""JoinGroup (key 11), versions 0-9. Join a classic group; a first join is told its member id (KIP-394).

The answer comes when the members of the next generation are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from moldau.wire import Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.calls import Call

_NULLABLE_PROTOCOL = 7


def handle(broker: Broker, call: Call, request: m.JoinGroupRequest) -> None:
    def answer(message: Message) -> None:
        response = cast("m.JoinGroupResponse", message)
        if response.protocol_name is None and call.version < _NULLABLE_PROTOCOL:
            response.protocol_name = ""
        call.respond(response)

    broker.groups.handle(call, request.group_id, request, answer)
