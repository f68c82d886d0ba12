"""OffsetCommit and TxnOffsetCommit of very many partitions: others have their turn while they are prepared.

Whether the group may commit is decided about all of it in one step, as of a short one. Before, and in pieces: what does
not exist is refused, and the records of the rest are made; after, the answer is put together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from moldau.broker.requests.gather import answer_of
from moldau.broker.requests.pieces import Shape, cut, join
from moldau.groups import refusal
from moldau.timers.turns import let_go
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.coordinators.groups import LongCommit
    from moldau.broker.coordinators.parts import HasGroups
    from moldau.broker.parts import HasImage, HasTurns
    from moldau.records import BatchOptions

    class Needs(HasGroups, HasImage, HasTurns, Protocol):
        """What this file may touch."""


Q = TypeVar("Q", m.OffsetCommitRequest, m.TxnOffsetCommitRequest)
Answer = Callable[[Message], None]
Ask = Callable[["LongCommit", Answer], None]
Split = Callable[[list[Any]], tuple[list[Any], list[Any]]]
"""Of some topics, what can be committed, and refusals for the rest."""


async def commit_in_turns(
    broker: Needs, request: Q, shape: Shape[Any], split: Split, ask: Ask, options: BatchOptions | None = None
) -> Message:
    """The answer to `request`. `ask` gives what was prepared to the coordinator; `options` are those of its batch."""
    response: Any = refusal(type(request)(), ErrorCode.NONE)  # an empty one
    refused: list[Any] = response.topics
    while True:
        given, request.topics = cast("list[Any]", request.topics), []
        for piece in cut(given, shape):
            known, unknown = split(piece)
            join(cast("list[Any]", request.topics), known)
            join(refused, unknown)
            await broker.turns.next_turn()
        await broker.in_turns(let_go(given))
        if not request.topics:
            return cast("Message", response)
        image = broker.image
        made = await broker.groups.prepare(request.group_id, request, cut(request.topics, shape), options)
        if image is broker.image or _are_there_still(broker, image, request.topics):
            break
    if isinstance(made, ErrorCode):
        for piece in cut(cast("list[Any]", request.topics), shape):
            join(refused, cast("Any", refusal(type(request)(topics=piece), made)).topics)
            await broker.turns.next_turn()
        return cast("Message", response)
    told: Any = await answer_of(partial(ask, made))
    told.topics += refused
    return cast("Message", told)


def _are_there_still(broker: Needs, image: Any, topics: list[Any]) -> bool:
    """A topic that was deleted meanwhile must not get offsets that nobody removes."""
    return all(broker.image.topics.get(each.name) is image.topics.get(each.name) for each in topics)
