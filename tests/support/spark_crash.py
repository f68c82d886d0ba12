"""A source and sink that die once per batch, each time at another step: they themselves know nothing of it.

Classes of this module travel to the workers of Spark by value, since the tests are not installed there. In a worker,
before the real `write` runs, one function of the sink is replaced by one that dies. A fuse, a file that is created just
before, sees to it that each batch dies once only; when it runs again, it lives.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext, cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from moldau.spark.datasource import MoldauDataSource
from moldau.spark.offsets import from_json
from moldau.spark.options import SourceOptions, parse_stream_options
from moldau.spark.stream_source import StreamReader

# Where a task can die: module and attribute of the sink, and whether before or after it ran.
TASK_STEPS = {
    "before fencing": ("transactions", "TaskTransaction.open", "before"),
    "after fencing": ("transactions", "read_marker", "before"),
    "after reading the marker": ("transactions", "read_marker", "after"),
    "after begin": ("transactions", "TaskTransaction.begin", "after"),
    "amid sending": ("transactions", "TaskTransaction.send", "after"),
    "before all is acknowledged": ("transactions", "TaskTransaction.flush", "before"),
    "before the marker": ("transactions", "TaskTransaction.commit", "before"),
    "between marker and commit": ("transactions", "TaskTransaction.end", "before"),
    "after commit": ("transactions", "TaskTransaction.commit", "after"),
}
PLANNED = "after Spark's offset log, before any task"
BEFORE_COMMIT = "after all tasks, before Spark's commit"
AFTER_COMMIT = "after Spark's commit call, before its commit log"
LOGGED = "after Spark's commit log"
ZOMBIE = "executor-without-worker"
STEPS = (PLANNED, *TASK_STEPS, BEFORE_COMMIT, AFTER_COMMIT, LOGGED)
# Between any two of these something becomes lasting: the plan, records, marker and transaction, the end of the batch.
DECISIVE_TASK_STEPS = ("amid sending", "between marker and commit", "after commit")
DECISIVE_STEPS = (PLANNED, *DECISIVE_TASK_STEPS, BEFORE_COMMIT, LOGGED)


@dataclass(frozen=True)
class Plan:
    """Batch `n` dies at `steps[n % len(steps)]`, in the task of Spark partition `partition`.

    `kills` says who dies besides the worker: "executor", or nobody; and always `victims` (process ids). With `ZOMBIE`
    only the executor dies; its worker goes on when another has done its task, and notes beside the fuses how that ended
    (`<batch>.zombie`). `rows_per_batch` tells the source, to which Spark does not, the number of a batch.
    """

    steps: tuple[str, ...]
    fuses: str
    kills: str = "worker"
    victims: tuple[int, ...] = ()
    partition: int = 1
    rows_per_batch: int = 1

    def step_of(self, batch_id: int) -> str:
        return self.steps[batch_id % len(self.steps)]

    def write(self, batch_id: int, write: Callable[[], WriterCommitMessage]) -> WriterCommitMessage:
        """What a task does, or dies of."""
        task = TaskContext.get()
        assert task is not None
        step = self.step_of(batch_id)
        if task.partitionId() != self.partition or step not in TASK_STEPS:
            return write()
        lives = []
        try:
            with deadly(step, lambda: lives.append(self.die_once(batch_id))):
                written = write()
        except Exception as error:
            self._note(batch_id, type(error).__name__, is_zombie=any(lives))
            raise
        self._note(batch_id, "done", is_zombie=any(lives))
        return written

    def _note(self, batch_id: int, end: str, *, is_zombie: bool) -> None:
        if self.kills == ZOMBIE:
            (Path(self.fuses) / f"{batch_id}.{'zombie' if is_zombie else 'other'}").write_text(end)

    def commit(self, batch_id: int, commit: Callable[[], None]) -> None:
        """What the driver does when all tasks are done."""
        step = self.step_of(batch_id)
        if step == BEFORE_COMMIT:
            self.die_once(batch_id)
        commit()
        if step == AFTER_COMMIT:
            self.die_once(batch_id)

    def reach(self, step: str, end: dict[str, Any]) -> None:
        """What the source is asked shows how far the batch that ends here has come."""
        batch_id = sum(from_json(end).values()) // self.rows_per_batch - 1
        if batch_id >= 0 and self.step_of(batch_id) == step:
            self.die_once(batch_id)

    def die_once(self, batch_id: int) -> bool:
        """Kill, unless this batch was killed before. Only a zombie learns that it was the one: True."""
        try:
            (Path(self.fuses) / str(batch_id)).touch(exist_ok=False)
        except FileExistsError:
            return False
        if self.kills == ZOMBIE:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the daemon's last word to its workers
            os.kill(_parent(os.getppid()), signal.SIGKILL)
            other, deadline = Path(self.fuses) / f"{batch_id}.other", time.monotonic() + 120
            while not (other.exists() and other.read_text() == "done"):
                if time.monotonic() > deadline:  # the test has failed: nobody needs this process any more
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(0.05)  # the other attempt runs in another process
            return True
        daemon = os.getppid()
        executor = (_parent(daemon), daemon) if self.kills == "executor" else ()
        for victim in (*self.victims, *executor, os.getpid()):
            os.kill(victim, signal.SIGKILL)
        return False


def _parent(pid: int) -> int:
    """Linux: the fourth word, after a name in brackets that may hold anything."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def deadly_source(plan: Plan) -> type[DataSource]:
    """To be registered instead of the real one, under the same name."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # has no types

    class DeadlySource(MoldauDataSource):
        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return DeadlyReader(parse_stream_options(self.options), plan)

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
            inner = super().streamWriter(schema, overwrite)
            assert isinstance(inner, DataSourceStreamArrowWriter)
            return DeadlyWriter(inner, plan)

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            inner = super().writer(schema, overwrite)
            assert isinstance(inner, DataSourceArrowWriter)
            return DeadlyBatchWriter(inner, plan, int(self.options["batchId"]))

    return DeadlySource


class DeadlyReader(StreamReader):
    """The real reader. Spark plans tasks when the end of the batch is stored, and asks for more when it is done."""

    def __init__(self, options: SourceOptions, plan: Plan) -> None:
        super().__init__(options)
        self._plan = plan

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._plan.reach(PLANNED, end)
        return super().partitions(start, end)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        assert start is not None, "Spark 4.2 and newer say where the batch begins"
        self._plan.reach(LOGGED, start)
        return super().latestOffset(start, limit)


class DeadlyWriter(DataSourceStreamArrowWriter):
    """The real writer, and what befalls it."""

    def __init__(self, inner: DataSourceStreamArrowWriter, plan: Plan) -> None:
        self._inner = inner
        self._plan = plan

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        task = TaskContext.get()
        assert task is not None
        batch_id = int(task.getLocalProperty("streaming.sql.batchId") or "-1")
        return self._plan.write(batch_id, lambda: self._inner.write(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._plan.commit(batchId, lambda: self._inner.commit(messages, batchId))


class DeadlyBatchWriter(DataSourceArrowWriter):
    """The same for a batch of foreachBatch."""

    def __init__(self, inner: DataSourceArrowWriter, plan: Plan, batch_id: int) -> None:
        self._inner = inner
        self._plan = plan
        self._batch_id = batch_id

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._plan.write(self._batch_id, lambda: self._inner.write(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._plan.commit(self._batch_id, lambda: self._inner.commit(messages))


@contextmanager
def deadly(step: str, die: Callable[[], None]) -> Iterator[None]:
    """While inside, the step calls `die`. Workers are used again, so everything is put back."""
    from importlib import import_module

    module, path, when = TASK_STEPS[step]
    owner: Any = import_module(f"moldau.spark.{module}")
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    original = getattr(owner, name)

    def dies(*arguments: Any, **named: Any) -> Any:
        if when == "before":
            die()
        answer = original(*arguments, **named)
        if when == "after":
            die()
        return answer

    setattr(owner, name, dies)
    try:
        yield
    finally:
        setattr(owner, name, original)
