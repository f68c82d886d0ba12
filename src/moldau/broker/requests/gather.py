"""Requests that name several groups: each goes to its own coordinator, and the answers come together again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from moldau.wire import Message

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups
    from moldau.broker.parts import HasTurns

    class Needs(HasGroups, HasTurns, Protocol):
        """What this file may touch."""


T = TypeVar("T")
R = TypeVar("R", bound=Message)
_PER_SLICE = 50  # groups; then others get a turn


@dataclass(slots=True, frozen=True)
class Question(Generic[T, R]):
    """What is asked about each of the groups, and what becomes of the answers."""

    ask: Callable[[list[str]], Message]
    parts_of: Callable[[Message], list[T]]
    refuse: Callable[[str], T | None]
    """Of a group that is refused, no coordinator hears."""
    finish: Callable[[T], T]
    """What the coordinator does not know is added to its answer."""
    whole: Callable[[list[T]], R]


def gather_groups(broker: Needs, call: Call, group_ids: list[str], question: Question[T, R]) -> Awaitable[R] | None:
    """Answer `call` with what the coordinators of these groups say, in the order of the request; of very many, in
    slices, and whoever called answers."""
    gathered: _Gathered[T, R] = _Gathered(broker, call, group_ids, question)
    if len(group_ids) > _PER_SLICE:
        return gathered.in_turns()
    gathered.when_whole(call.respond)
    for number in range(len(group_ids)):
        gathered.ask(number)
    return None


class _Gathered(Generic[T, R]):
    def __init__(self, broker: Needs, call: Call, group_ids: list[str], question: Question[T, R]) -> None:
        self._broker = broker
        self._call = call
        self._group_ids = group_ids
        self._question = question
        self._found: list[list[T]] = [[] for _ in group_ids]
        self._left = len(group_ids)
        self._tell: Callable[[R], None] | None = None

    def when_whole(self, tell: Callable[[R], None]) -> None:
        self._tell = tell
        if not self._left:
            self._end()

    def ask(self, number: int) -> None:
        group_id, question = self._group_ids[number], self._question
        refused = question.refuse(group_id)
        if refused is not None:
            self._answered(number, [refused])
            return
        self._broker.groups.handle(
            self._call,
            group_id,
            question.ask([group_id]),
            lambda message: self._answered(number, [question.finish(part) for part in question.parts_of(message)]),
        )

    def _answered(self, number: int, parts: list[T]) -> None:
        self._found[number] = parts
        self._left -= 1
        if not self._left:
            self._end()

    def _end(self) -> None:
        if self._tell is not None:
            self._tell(self._question.whole([part for parts in self._found for part in parts]))

    async def in_turns(self) -> R:
        whole: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self.when_whole(lambda response: None if whole.done() else whole.set_result(response))
        for number in range(len(self._group_ids)):
            if number % _PER_SLICE == _PER_SLICE - 1:
                await self._broker.turns.next_turn()
            self.ask(number)
        return await whole
