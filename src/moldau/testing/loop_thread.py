"""An event loop on a thread of its own: what runs brokers beside a test that does not."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """`start`, then `run` whatever should happen there, then `end`. Ending twice is fine; starting twice is not."""

    def __init__(self, what: str) -> None:
        """`what` runs there, for messages and for the thread's name."""
        self._what = what
        self._thread = threading.Thread(target=self._main, name=f"moldau-{what}", daemon=True)
        self._is_ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._over: asyncio.Event

    def start(self) -> None:
        if self.is_started:
            raise RuntimeError(f"this {self._what} was started before; make a new one")
        self._thread.start()
        self._is_ready.wait()

    @property
    def is_started(self) -> bool:
        return self._is_ready.is_set()

    @property
    def is_running(self) -> bool:
        return self.is_started and self._thread.is_alive()

    def check_is_running(self) -> None:
        """RuntimeError if nothing can happen there, yet or any more."""
        if not self.is_started:
            raise RuntimeError(f"this {self._what} is not started: use it as a context manager, or call start()")
        if not self.is_running:
            raise RuntimeError(f"this {self._what} is stopped")

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
        """Do it over there, and wait for what comes of it; TimeoutError, and it is cancelled, if that takes longer.
        RuntimeError if there is nowhere to do it."""
        try:
            self.check_is_running()
        except RuntimeError:
            work.close()  # else Python warns that nobody awaited it
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.cancel():
                raise TimeoutError(f"not done within {timeout_s} seconds") from None
            raise  # its own

    def end(self) -> None:
        """Cancel what still runs, and wait for the thread."""
        if self.is_started:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()

    def _main(self) -> None:
        from moldau.net import new_event_loop

        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._is_ready.set()
        await self._over.wait()
