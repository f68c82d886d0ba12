"""Heartbeat (key 12), versions 0-4. A classic member is alive; the answer says whether the group rebalances."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups


def handle(broker: HasGroups, call: Call, request: m.HeartbeatRequest) -> None:
    broker.groups.handle(call, request.group_id, request, call.respond)
