"""An event loop on virtual time: nothing waits, time jumps to the next thing that is due.

The order of everything is decided by the program and the seed alone: no sockets, no threads, no clock of the machine.
Work "off the loop" runs on the loop too, after a delay the world may choose, in between other events.

Every callback belongs to the process that scheduled it (a context variable, inherited by tasks). When a process is
killed, none of its callbacks runs any more: it stops between two events, as a machine that loses power does.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import traceback
from collections.abc import Callable
from typing import Any


class Process:
    """One run of a node or client, from its start to its end."""

    __slots__ = ("is_alive", "name", "off_loop_delay")

    def __init__(self, name: str, off_loop_delay: Callable[[], float] | None = None) -> None:
        self.name = name
        self.is_alive = True
        # Virtual seconds that work off the loop takes.
        self.off_loop_delay = off_loop_delay or (lambda: 0.0)

    def __repr__(self) -> str:
        return self.name


OF_THE_WORLD = Process("world")
current_process: contextvars.ContextVar[Process] = contextvars.ContextVar("process", default=OF_THE_WORLD)


class Deadlock(AssertionError):
    """Nothing is due, ever, and what was awaited has not come."""


class _Time:
    """Stands where the loop expects its selector."""

    def __init__(self) -> None:
        self.now = 0.0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock("nothing is scheduled any more")
        self.now += timeout
        return []

    def close(self) -> None:
        """There is nothing to close."""


class VirtualLoop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._selector = _Time()
        self._clock_resolution = 1e-9
        self.tasks: list[asyncio.Task[Any]] = []
        self.events = 0
        self.failures: list[str] = []
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._note)

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        where = "" if error is None else "".join(traceback.format_exception(error)[-4:]).strip()
        self.failures.append(f"{context.get('message')}: {where}")

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **kwargs)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # those of killed processes stay pending
        self.tasks.append(task)  # so that no `finally` of a dead process runs before the world has ended
        return task

    def time(self) -> float:
        return self._selector.now

    def call_soon(  # type: ignore[override]  # typeshed spells the variadic arguments differently
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon(self._guarded(callback, context), *args, context=context)

    def call_soon_threadsafe(  # type: ignore[override]  # as above
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]  # as above
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return super().call_at(when, self._guarded(callback, context), *args, context=context)

    def _guarded(self, callback: Callable[..., object], context: contextvars.Context | None) -> Callable[..., object]:
        process = current_process.get() if context is None else context.get(current_process, OF_THE_WORLD)
        return functools.partial(self._run_if_alive, process, callback)

    def _run_if_alive(self, process: Process, callback: Callable[..., object], *args: Any) -> None:
        if process.is_alive:
            self.events += 1
            callback(*args)

    def run_in_executor(  # type: ignore[override]  # as above
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_later(current_process.get().off_loop_delay(), work)
        return future

    def _check_closed(self) -> None:
        """Whatever a dead process's `finally` still schedules after the end, never runs."""

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no sockets."""

    def _write_to_self(self) -> None:
        """Nobody else could wake us."""

    def spawn(self, process: Process, make: Callable[[], Any]) -> asyncio.Task[Any]:
        """Run a coroutine as `process`; so runs whatever it schedules."""
        context = contextvars.copy_context()
        context.run(current_process.set, process)
        task: asyncio.Task[Any] = context.run(self.create_task, make())
        task.add_done_callback(functools.partial(self._ended, process))
        return task

    def _ended(self, process: Process, task: asyncio.Task[Any]) -> None:
        if process.is_alive and not task.cancelled() and (error := task.exception()) is not None:
            where = "".join(traceback.format_exception(error)[-3:]).strip()
            self.failures.append(f"{process} failed: {where}")

    def close(self) -> None:
        super().close()
        for task in self.tasks:
            if not task.done():
                with contextlib.suppress(BaseException):  # a dead process's `finally` has nothing to say any more
                    task.get_coro().close()
        self.tasks.clear()


class VirtualClock:
    """A node's own clock: it may run fast or slow, and its wall clock may be wrong."""

    def __init__(self, loop: VirtualLoop, *, skew_ms: int = 0, rate: float = 1.0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms
        self.rate = rate

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.skew_ms + int(self._loop.time() * 1000)

    def monotonic_ms(self) -> float:
        return self._loop.time() * 1000 * self.rate
