"""Threads for plain (not async) handlers. They are daemons: one that never returns does not keep the process alive."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class DaemonThreads:
    """At most `count` threads, started as they are needed."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)

    def submit(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        context = contextvars.copy_context()
        self._jobs.put((future, lambda: context.run(call, *arguments, **named)))
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._count:
            thread = threading.Thread(target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def close(self) -> None:
        """Idle threads end; busy ones when they are done."""
        for _ in self._threads:
            self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # the waiter gets it, whatever it is
                    future.set_exception(error)
            del job, future, call
            self._idle.release()
