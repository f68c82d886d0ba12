"""ConsumerGroupHeartbeat (key 68), versions 0-1. Join, stay in, and leave a group of the new protocol (KIP-848)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups


def handle(broker: HasGroups, call: Call, request: m.ConsumerGroupHeartbeatRequest) -> None:
    broker.groups.handle(call, request.group_id, request, call.respond)
