"""Replicas on their way to another log dir of this node (AlterReplicaLogDirs, KIP-113).

A move copies in a thread while the partition goes on serving; its last step, on the loop, swaps the two. Asking for
another dir meanwhile ends the move under way and begins the next; asking for the dir it is in just ends it.

Invariant: a partition's log is always the one the `LogManager` has; at most one move per name and index runs, and what
was wished for a partition is not done to another that was made under its name since.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, Protocol

from moldau.broker.supervision import begin
from moldau.log.checkpoints import TopicPartition
from moldau.log.dirs.move import MoveJob
from moldau.log.errors import LogError

if TYPE_CHECKING:
    from moldau.broker.parts import HasLogs, HasLoop
    from moldau.broker.replicas.partition import Partition

    class Needs(HasLogs, HasLoop, Protocol):
        """What this file may touch."""


_log = logging.getLogger(__name__)


class FutureLog(NamedTuple):
    """A copy that is being made."""

    topic_partition: TopicPartition
    log_dir: str
    size_bytes: int
    offset_lag: int


class _Target(NamedTuple):
    """Where a partition is to lie in the end. The partition of that name may be another one by then."""

    partition: Partition
    log_dir: str


class LogDirMoves:
    """Belongs to the event loop."""

    def __init__(self, broker: Needs, after_move: Callable[[Partition], None]) -> None:
        """`after_move` is called with a partition that lies in another dir now."""
        self._broker = broker
        self._after_move = after_move
        self._targets: dict[TopicPartition, _Target] = {}
        self._jobs: dict[TopicPartition, MoveJob] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._is_stopping = False

    def move(self, partition: Partition, target_dir: str) -> None:
        """Have the replica lie in `target_dir` in the end; returns at once."""
        key = partition.log.topic_partition
        job = self._jobs.get(key)
        if job is not None:
            self._targets[key] = _Target(partition, target_dir)
            if job.target_dir != target_dir:
                job.error = job.error or LogError(f"the move to {job.target_dir} was replaced by one to {target_dir}")
            return
        if target_dir == partition.log.log_dir:
            return
        self._targets[key] = _Target(partition, target_dir)
        self._jobs[key] = MoveJob(self._broker.logs, partition.log, target_dir)
        task = begin(self._broker.loop, "a move between log dirs", self._run(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, key: TopicPartition) -> None:
        logs = self._broker.logs
        while True:
            partition, job = self._targets[key].partition, self._jobs[key]
            is_over = False
            while not is_over:
                await self._broker.loop.run_in_executor(self._executor(), job.run)
                if logs.get(*key) is not job.log:
                    job.error = job.error or LogError(f"{partition!r} was deleted while it was moved")
                elif self._is_stopping:
                    job.error = job.error or LogError("the node stops")
                is_over = job.finish()
            del self._jobs[key]
            log = logs.get(*key)
            if job.error is None and log is not None:
                partition.log = log
                log.config = partition.settings.log  # it may have changed since the copy began
                self._after_move(partition)
            else:
                _log.warning("%r stays where it is: %s", partition, job.error)
            target = self._targets[key]
            was_tried = target == (partition, job.target_dir)
            is_gone = log is None or target.partition.log is not log
            if is_gone or was_tried or self._is_stopping or target.log_dir == target.partition.log.log_dir:
                del self._targets[key]
                return
            try:
                self._jobs[key] = MoveJob(logs, target.partition.log, target.log_dir)
            except LogError as error:
                _log.warning("%r stays where it is: %s", target.partition, error)
                del self._targets[key]
                return

    def _executor(self) -> Executor:
        if not self._broker.has_own_threads:
            return self._broker.executor
        if self._threads is None:
            # Copies take as long as they take: they must not keep flushes and checkpoints waiting for a thread.
            self._threads = ThreadPoolExecutor(len(self._broker.logs.dirs), thread_name_prefix="moldau-move")
        return self._threads

    def futures(self) -> list[FutureLog]:
        """The copies under way, for DescribeLogDirs."""
        found = []
        for key, job in self._jobs.items():
            copy = job._future  # made and grown by the job's thread: good for a look, nothing else
            end_offset, size_bytes = (0, 0) if copy is None else (copy.log_end_offset, copy.size_bytes)
            lag = max(0, job.log.log_end_offset - max(end_offset, job.log.log_start_offset))
            found.append(FutureLog(key, job.target_dir, size_bytes, lag))
        return found

    async def stop(self) -> None:
        """Give up what is under way; the logs are about to be closed."""
        self._is_stopping = True
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._threads is not None:
            self._threads.shutdown()
