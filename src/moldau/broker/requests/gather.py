"""Requests that name several things, each asked for somewhere: the answers come together again, in the request's order.

Of a few everything is asked at once. Of many, others have their turn between some and some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

from moldau.wire import Message

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups
    from moldau.broker.parts import HasTurns

    class Needs(HasGroups, HasTurns, Protocol):
        """What this file may touch."""


I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")
R = TypeVar("R", bound=Message)
PER_TURN = 50
"""Questions, unless they say that they weigh more."""
Ask = Callable[[I, Callable[[T], None]], None]
"""Ask about an item; the answer is given to the second, once, now or later."""


def gather(call: Call, items: Iterable[I], ask: Ask[I, T], whole: Callable[[list[T]], R]) -> None:
    """Answer `call` with what becomes of all answers together."""
    gathered: _Gathered[I, T] = _Gathered(ask, lambda found: call.respond(whole(found)))
    for item in items:
        gathered.ask(item)
    gathered.all_asked()


async def gather_in_turns(
    broker: HasTurns,
    items: Iterable[I],
    ask: Ask[I, T],
    whole: Callable[[list[T]], R],
    weigh: Callable[[I], int] = lambda _: 1,
) -> R:
    """The same of very many, which may be made as they are asked for; whoever called answers."""
    found: asyncio.Future[list[T]] = asyncio.get_running_loop().create_future()
    gathered: _Gathered[I, T] = _Gathered(ask, lambda all_of_it: None if found.done() else found.set_result(all_of_it))
    room = PER_TURN
    for item in items:
        if room <= 0:
            room = PER_TURN
            await broker.turns.next_turn()
        room -= weigh(item)
        gathered.ask(item)
    gathered.all_asked()
    return whole(await found)


async def answer_of(ask: Callable[[Callable[[T], None]], None]) -> T:
    """What `ask` gives to the function it is called with, now or later."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    ask(lambda given: None if answer.done() else answer.set_result(given))
    return await answer


class _Gathered(Generic[I, T]):
    def __init__(self, ask: Ask[I, T], tell: Callable[[list[T]], None]) -> None:
        self._ask = ask
        self._tell = tell
        self._found: list[T | None] = []
        self._left = 1  # that all have been asked for

    def ask(self, item: I) -> None:
        number = len(self._found)
        self._found.append(None)
        self._left += 1
        self._ask(item, partial(self._answered, number))

    def all_asked(self) -> None:
        self._one_less()

    def _answered(self, number: int, answer: T) -> None:
        self._found[number] = answer
        self._one_less()

    def _one_less(self) -> None:
        self._left -= 1
        if not self._left:
            self._tell(cast("list[T]", self._found))


@dataclass(slots=True, frozen=True)
class Question(Generic[T, R]):
    """What is asked about each of several groups, and what becomes of the answers."""

    ask: Callable[[list[str]], Message]
    parts_of: Callable[[Message], list[T]]
    refuse: Callable[[str], T | None]
    """Of a group that is refused, no coordinator hears."""
    finish: Callable[[T], T]
    """What the coordinator does not know is added to its answer."""
    whole: Callable[[list[T]], R]


def gather_groups(broker: Needs, call: Call, group_ids: list[str], question: Question[T, R]) -> Awaitable[R] | None:
    """Answer `call` with what the coordinators of these groups say; of very many, in slices, and whoever called
    answers."""

    def ask(group_id: str, answered: Callable[[T], None]) -> None:
        refused = question.refuse(group_id)
        if refused is not None:
            answered(refused)
            return

        def finish(message: Message) -> None:
            (part,) = question.parts_of(message)
            answered(question.finish(part))

        broker.groups.handle(call, group_id, question.ask([group_id]), finish)

    if len(group_ids) > PER_TURN:
        return gather_in_turns(broker, group_ids, ask, question.whole)
    gather(call, group_ids, ask, question.whole)
    return None
