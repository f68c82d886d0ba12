"""Commands that take long to decide: a thread decides, encodes and applies them, and the loop only appends.

What is decided holds if nothing was appended meanwhile. If something was, it is decided again on what is there now; and
if that happens again and again, other commands wait until this one is through. Short ones come first otherwise: a
cluster that is asked for ten thousand topics goes on hearing heartbeats.

Invariants
- Records are appended only to the very end of the log they were decided on, in the epoch they were decided in.
- One at a time: a thread in Python takes its share of the interpreter from everybody.
- A client's quota is charged once, however often the command was decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from moldau.broker.quorum.prepared import Ground, PreparedAppend, prepare
from moldau.controller.context import ControllerContext, ControllerResult
from moldau.controller.effort import check_records
from moldau.controller.errors import NotController
from moldau.controller.image import ClusterImage

if TYPE_CHECKING:
    from moldau.broker.parts import HasLoop
    from moldau.broker.quorum.parts import HasQuorum

    class Needs(HasLoop, HasQuorum, Protocol):
        """What this file may touch."""


RequestT = TypeVar("RequestT")
R = TypeVar("R")
Command = Callable[[ClusterImage, RequestT, ControllerContext], ControllerResult[R]]
_TRIES_BESIDE_OTHERS = 2


class _Decided(NamedTuple, Generic[R]):
    """By a thread: the answer, and its records, ready to be appended, unless there are none."""

    result: ControllerResult[R]
    prepared: PreparedAppend | None


class Appended(NamedTuple, Generic[R]):
    """The answer, and when it may be given: once that is done."""

    result: ControllerResult[R]
    pending: asyncio.Future[None] | None


class LongCommands:
    """Belongs to the event loop."""

    def __init__(self, broker: Needs) -> None:
        self._broker = broker
        self._one_at_a_time = asyncio.Lock()
        self._held: asyncio.Future[None] | None = None

    @property
    def holds_others(self) -> bool:
        return self._held is not None

    async def wait(self) -> None:
        """For short commands: until none of these holds them."""
        while self._held is not None:
            await asyncio.shield(self._held)

    async def carry_out(
        self, command: Command[RequestT, R], request: RequestT, context: ControllerContext
    ) -> Appended[R]:
        """Decide and append. NotController if leadership was lost meanwhile, even if it came back."""
        async with self._one_at_a_time:
            tries = 0
            try:
                while (appended := await self._try(command, request, context)) is None:
                    tries += 1
                    if tries == _TRIES_BESIDE_OTHERS:
                        self._held = self._broker.loop.create_future()
                return appended
            finally:
                held, self._held = self._held, None
                if held is not None:
                    held.set_result(None)

    async def _try(
        self, command: Command[RequestT, R], request: RequestT, context: ControllerContext
    ) -> Appended[R] | None:
        """None if something else was appended while it was decided."""
        broker, log = self._broker, self._broker.metadata_log
        async with broker.long_look:
            ground = log.ground()
            charges = context.rehearse_charges()
            rehearsed = replace(context, next_offset=ground.next_offset, charge_partitions=charges.charge)
            decided = await broker.loop.run_in_executor(broker.executor, _decide, command, request, ground, rehearsed)
        if decided.prepared is not None:
            pending = log.append_prepared(decided.prepared)
            if pending is None:
                return None
        elif log.ground().epoch != ground.epoch:
            raise NotController("another controller led meanwhile")
        else:
            pending = log.commit_pending()
        charges.pay()
        return Appended(decided.result, pending)


def _decide(
    command: Command[RequestT, R], request: RequestT, ground: Ground, context: ControllerContext
) -> _Decided[R]:
    result = command(ground.image, request, context)
    check_records(request, result.records)
    return _Decided(result, prepare(ground, result.records, with_delta=True) if result.records else None)
