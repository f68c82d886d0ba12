"""Work that is a function of its input, done by a thread: reading and writing long messages, looking at a whole image.

One at a time, of all requests: a thread in Python takes its share of the interpreter from everybody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from moldau.broker.parts import HasLoop

T = TypeVar("T")


async def in_thread(broker: HasLoop, work: Callable[[], T]) -> T:
    async with broker.long_look:
        return await broker.loop.run_in_executor(broker.executor, work)
