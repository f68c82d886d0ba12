"""The log room's jobs (flushing, checkpoints, retention, cleaning, removal), run in threads beside the traffic."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor

from moldau.broker.supervision import begin, keep_going
from moldau.log.dirs.log_manager import LogManager
from moldau.log.errors import LogError
from moldau.log.jobs import Job

_log = logging.getLogger(__name__)
_TICK_SECONDS = 0.25


class Housekeeping:
    """Belongs to the event loop."""

    def __init__(self, logs: LogManager, executor: Executor) -> None:
        self._logs = logs
        self._executor = executor
        self._ticking: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._ticking = keep_going(asyncio.get_running_loop(), "housekeeping of logs", self._tick)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            for job in self._logs.tick():
                task = begin(loop, "a job of housekeeping", self._run(job))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    async def _run(self, job: Job) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, job.run)
            job.finish()
        except LogError as error:
            _log.error("%s failed: %s", type(job).__name__, error)
        except Exception:  # a job keeps its own errors for `finish`: what comes out nobody thought of
            _log.exception("%s failed", type(job).__name__)

    async def stop(self) -> None:
        """Let running jobs end: they hold files of logs that are about to be closed."""
        if self._ticking is not None:
            self._ticking.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
