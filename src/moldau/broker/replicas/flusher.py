"""Flushes on behalf of topics with `flush.messages`: in a thread, one flush for all appends that came before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from moldau.broker.replicas.partition import Partition
from moldau.broker.supervision import begin
from moldau.log.errors import LogError
from moldau.log.flush import FlushJob


class Flusher:
    """Belongs to the event loop."""

    def __init__(self, executor: Executor, on_flushed: Callable[[Partition], None]) -> None:
        self._executor = executor
        self._on_flushed = on_flushed
        self._waiting: dict[tuple[bytes, int], Partition] = {}
        self._running: asyncio.Task[None] | None = None

    def add(self, partition: Partition) -> None:
        self._waiting[partition.key] = partition
        if self._running is None:
            self._running = begin(asyncio.get_running_loop(), "flushing records", self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch, self._waiting = list(self._waiting.values()), {}
                jobs = [(partition, FlushJob(partition.log)) for partition in batch if not partition.log.is_offline]
                await asyncio.gather(*(loop.run_in_executor(self._executor, job.run) for _, job in jobs))
                for partition, job in jobs:
                    try:
                        job.finish()
                    except LogError:
                        continue  # its dir is offline now; those who wait are answered by their timeout
                    self._on_flushed(partition)
        finally:
            self._running = None

    async def stop(self) -> None:
        if self._running is not None:
            await self._running
