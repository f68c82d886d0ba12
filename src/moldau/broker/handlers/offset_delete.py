"""OffsetDelete (key 47), versions 0. Forget committed offsets of topics the group does not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.calls import Call


def handle(broker: Broker, call: Call, request: m.OffsetDeleteRequest) -> None:
    broker.groups.handle(call, request.group_id, request, call.respond)
