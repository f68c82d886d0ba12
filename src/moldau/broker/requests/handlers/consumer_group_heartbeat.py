"""ConsumerGroupHeartbeat (key 68), versions 0-1. Join, stay in, and leave a group of the new protocol (KIP-848)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.access import TOPIC, may
from moldau.controller.acls import Operation
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups
    from moldau.broker.parts import HasAuthorizer

    class Needs(HasAuthorizer, HasGroups, Protocol):
        """What this file may touch."""


def handle(
    broker: Needs, call: Call, request: m.ConsumerGroupHeartbeatRequest
) -> m.ConsumerGroupHeartbeatResponse | None:
    if request.subscribed_topic_names:
        may_describe = may(broker, call, Operation.DESCRIBE, TOPIC)
        if not all(may_describe(name) for name in request.subscribed_topic_names):
            return m.ConsumerGroupHeartbeatResponse(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    broker.groups.handle(call, request.group_id, request, call.respond)
    return None
