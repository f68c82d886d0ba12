"""Every test of this room runs on uvloop and on plain asyncio."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from moldau.net import LoopKind, new_event_loop

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    kind: LoopKind = request.param
    loop = new_event_loop(kind)
    errors: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))

    def run_until_complete(main: Coroutine[Any, Any, None]) -> None:
        loop.run_until_complete(asyncio.wait_for(main, 50))

    try:
        yield run_until_complete
        assert not errors, errors
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
