"""Requests that name several groups: each goes to its own coordinator, and the answers come together again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from moldau.wire import Message

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups

T = TypeVar("T")


def gather_groups(
    broker: HasGroups,
    call: Call,
    group_ids: list[str],
    ask: Callable[[list[str]], Message],
    parts_of: Callable[[Message], list[T]],
    join: Callable[[list[T]], Message],
    refuse: Callable[[str], T | None] = lambda _: None,
) -> None:
    """Answer `call` with what the coordinators of these groups say, in the order of the request. Of a group that is
    refused, no coordinator hears."""
    if not group_ids:
        call.respond(join([]))
        return
    found: dict[int, list[T]] = {}

    def answer_for(number: int) -> Callable[[Message], None]:
        def answer(message: Message) -> None:
            found[number] = parts_of(message)
            if len(found) == len(group_ids):
                call.respond(join([part for each in range(len(group_ids)) for part in found[each]]))

        return answer

    refused = {number: part for number, each in enumerate(group_ids) if (part := refuse(each)) is not None}
    found.update((number, [part]) for number, part in refused.items())
    if len(found) == len(group_ids):
        call.respond(join([part for each in range(len(group_ids)) for part in found[each]]))
    for number, group_id in enumerate(group_ids):
        if number not in refused:
            broker.groups.handle(call, group_id, ask([group_id]), answer_for(number))
