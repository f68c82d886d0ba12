"""SyncGroup (key 14), versions 0-5. Get the assignment of a classic group; the leader brings it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups


def handle(broker: HasGroups, call: Call, request: m.SyncGroupRequest) -> None:
    broker.groups.handle(call, request.group_id, request, call.respond)
