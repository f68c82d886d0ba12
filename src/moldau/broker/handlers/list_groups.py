"""ListGroups (key 16), versions 0-5. All groups this broker coordinates; by state from version 4 on, by type from 5."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from moldau.wire import Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.calls import Call


def handle(broker: Broker, call: Call, request: m.ListGroupsRequest) -> m.ListGroupsResponse | None:
    shards = broker.groups.shard_indexes()
    if not shards:
        return m.ListGroupsResponse()
    groups: list[m.ListGroupsResponse.ListedGroup] = []
    left = len(shards)

    def answer(message: Message) -> None:
        nonlocal left
        groups.extend(cast("m.ListGroupsResponse", message).groups)
        left -= 1
        if left == 0:
            call.respond(m.ListGroupsResponse(groups=groups))

    for index in shards:
        broker.groups.handle_in(index, call, request, answer)
    return None
