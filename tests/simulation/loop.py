"""An event loop on virtual time: nothing waits, time jumps to the next thing that is due.

The order of everything is decided by the program and the seed alone: no sockets, no clock of the machine, one thing at
a time. Work "off the loop" runs after a delay the world may choose, in one piece or cut into steps (see `steps`), in
between other events.

Every callback belongs to the process that scheduled it (a context variable, inherited by tasks). When a process is
killed, none of its callbacks runs any more: it stops between two events, as a machine that loses power does.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import itertools
import traceback
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from tests.simulation.steps import Died, Steps


class Process:
    """One run of a node or client, from its start to its end."""

    __slots__ = ("context", "is_alive", "name", "off_loop_delay", "steps")

    def __init__(
        self, name: str, off_loop_delay: Callable[[], float] | None = None, steps: Steps | None = None
    ) -> None:
        """`steps` cuts this process's work off the loop; without, such work is done in one piece."""
        self.name = name
        self.is_alive = True
        # Virtual seconds that work off the loop takes.
        self.off_loop_delay = off_loop_delay or (lambda: 0.0)
        self.steps = steps
        self.context = contextvars.Context()
        self.context.run(current_process.set, self)

    def __repr__(self) -> str:
        return self.name


current_process: contextvars.ContextVar[Process] = contextvars.ContextVar("process")
OF_THE_WORLD = Process("world")


class Deadlock(AssertionError):
    """Nothing is due, ever, and what was awaited has not come."""


class SimHandle(list[Any]):
    """Something to be called, as a process: [process, callback, arguments, context, when]. See `asyncio.Handle`.

    A list, because tens of thousands are made in every world, and nothing is made more quickly."""

    __slots__ = ()

    def cancel(self) -> None:
        self[1] = None
        self[2] = ()

    def cancelled(self) -> bool:
        return self[1] is None

    def when(self) -> float:
        when: float = self[4]
        return when


# What is due: a handle, or the same as a tuple where nobody will cancel it.
Event = SimHandle | tuple[Process, Callable[..., object], tuple[Any, ...], contextvars.Context]


class VirtualLoop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._is_over = False
        self.now = 0.0  # what `time` says
        self._ready: deque[Event] = deque()
        self._timers: list[tuple[float, int, Event]] = []
        self._turn = itertools.count()
        self._current = OF_THE_WORLD
        self.tasks: dict[asyncio.Task[Any], Process] = {}
        self.events = 0
        self.failures: list[str] = []
        self.create_future = functools.partial(asyncio.Future, loop=self)  # type: ignore[method-assign]  # made in C

    # -- what asyncio asks of a loop

    get_debug = bool  # False: asked whenever a future is made, so let C answer

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return self._is_over

    def time(self) -> float:
        return self.now

    def create_task(self, coro: Any, *, name: object = None, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(
            coro, loop=self, name=None if name is None else str(name), context=context
        )
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # those of killed processes stay pending
        self.tasks[task] = self._current  # so that no `finally` of a dead process runs before the world has ended
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        where = "" if error is None else "".join(traceback.format_exception(error)[-4:]).strip()
        self.failures.append(f"{context.get('message')}: {where}")

    def call_soon(  # type: ignore[override]  # typeshed spells the variadic arguments differently
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        if context is None:
            process = self._current
            context = process.context
        else:
            process = context.get(current_process, OF_THE_WORLD)
        handle = SimHandle((process, callback, args, context, self.now))
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # as above

    def call_later(  # type: ignore[override]  # as above
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        process = self._current if context is None else context.get(current_process, OF_THE_WORLD)
        when = self.now + delay
        handle = SimHandle((process, callback, args, context or process.context, when))
        heappush(self._timers, (when, next(self._turn), handle))
        return handle

    def call_at(  # type: ignore[override]  # as above
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        process = self._current if context is None else context.get(current_process, OF_THE_WORLD)
        handle = SimHandle((process, callback, args, context or process.context, when))
        heappush(self._timers, (when, next(self._turn), handle))
        return handle

    def call_as(self, process: Process, when: float, callback: Callable[..., object], *args: Any) -> None:
        """At that time, call it as `process`."""
        heappush(self._timers, (when, next(self._turn), (process, callback, args, process.context)))

    def run_in_executor(  # type: ignore[override]  # as above
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.create_future()
        process = self._current

        def done(result: Any, error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def work() -> None:
            if process.steps is not None and process.steps.cuts(func):
                process.steps.begin(lambda: func(*args), self._later(process), done)
                return
            try:
                result = func(*args)
            except Exception as error:
                done(None, error)
            else:
                done(result, None)

        self.call_later(process.off_loop_delay(), work)
        return future

    def _later(self, process: Process) -> Callable[[float, Callable[[], None]], None]:
        return lambda delay_s, work: self.call_as(process, self.now + delay_s, work)

    # -- running

    @property
    def current_name(self) -> str:
        """Of the process that runs."""
        return self._current.name

    def run_until_complete(self, main: Any) -> Any:
        assert asyncio._get_running_loop() is None
        asyncio._set_running_loop(self)
        try:
            context = OF_THE_WORLD.context.copy()
            task = context.run(self.create_task, main)
            self._run_until(task)
            return task.result()
        finally:
            asyncio._set_running_loop(None)

    def _run_until(self, task: asyncio.Task[Any]) -> None:
        ready, timers, is_over = self._ready, self._timers, task.done
        while not is_over():
            if ready:
                event: Event = ready.popleft()
            elif timers:
                when, _, event = heappop(timers)
                if event[1] is None:
                    continue
                if when > self.now:
                    self.now = when
            else:
                raise Deadlock("nothing is scheduled any more")
            process, callback = event[0], event[1]
            if callback is None or not process.is_alive:
                continue
            self._current = process
            self.events += 1
            try:
                event[3].run(callback, *event[2])
            except Died:
                continue  # it went on for a moment after its own end
            except Exception as error:
                self.call_exception_handler({"message": f"{process}: {callback} failed", "exception": error})

    def stand_still(self, seconds: float) -> None:
        """Time goes on, and nothing happens. Then all timers are due, before anything they lead to."""
        self.now += seconds
        while self._timers and self._timers[0][0] <= self.now:
            self._ready.append(heappop(self._timers)[2])

    def spawn(self, process: Process, make: Callable[[], Any]) -> asyncio.Task[Any]:
        """Run a coroutine as `process`; so runs whatever it schedules."""
        spawning, self._current = self._current, process
        try:
            task: asyncio.Task[Any] = process.context.copy().run(lambda: self.create_task(make()))
        finally:
            self._current = spawning
        task.add_done_callback(functools.partial(self._ended, process), context=process.context)
        return task

    def silent_deaths(self) -> list[str]:
        """Tasks of running processes that ended with an error nobody took note of."""
        found = []
        for task, process in self.tasks.items():
            if not process.is_alive:
                continue
            if task.done() and not task.cancelled() and task._log_traceback:
                error = task.exception()
                assert error is not None
                where = "".join(traceback.format_exception(error)[-3:]).strip()
                found.append(f"{task.get_coro()} ended silently: {where}")
        return found

    def _ended(self, process: Process, task: asyncio.Task[Any]) -> None:
        if process.is_alive and not task.cancelled() and (error := task.exception()) is not None:
            where = "".join(traceback.format_exception(error)[-3:]).strip()
            self.failures.append(f"{process} failed: {where}")

    def close(self) -> None:
        self._is_over = True
        self._ready.clear()
        self._timers.clear()
        for task in self.tasks:
            if not task.done():
                with contextlib.suppress(BaseException):  # a dead process's `finally` has nothing to say any more
                    task.get_coro().close()
        self.tasks.clear()
        self._ready.clear()
        self._timers.clear()


EPOCH_MS = 1_700_000_000_000  # when every world begins


class VirtualClock:
    """A node's own clock: it may run fast or slow, and its wall clock may be wrong."""

    def __init__(self, loop: VirtualLoop, *, skew_ms: int = 0, rate: float = 1.0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms
        self.rate = rate

    def wall_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + int(self._loop.now * 1000)

    def monotonic_ms(self) -> float:
        return self._loop.now * 1000 * self.rate
