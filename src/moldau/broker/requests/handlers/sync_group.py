"""SyncGroup (key 14), versions 0-5. Get the assignment of a classic group; the leader brings it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.access import GROUP, may
from moldau.controller.acls import Operation
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups
    from moldau.broker.parts import HasAuthorizer

    class Needs(HasAuthorizer, HasGroups, Protocol):
        """What this file may touch."""


_NAMES_PROTOCOL = 5


def handle(broker: Needs, call: Call, request: m.SyncGroupRequest) -> m.SyncGroupResponse | None:
    if call.version >= _NAMES_PROTOCOL and (request.protocol_type is None or request.protocol_name is None):
        return m.SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not may(broker, call, Operation.READ, GROUP)(request.group_id):
        return m.SyncGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    broker.groups.handle(call, request.group_id, request, call.respond)
    return None
