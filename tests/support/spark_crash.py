"""A sink that dies once per batch, each time at another step: the sink itself knows nothing of it.

Classes of this module travel to the workers of Spark by value, since the tests are not installed there. In a worker,
before the real `write` runs, one function of the sink is replaced by one that dies. A fuse, a file that is created just
before, sees to it that each batch dies once only; when it runs again, it lives.
"""

import os
import signal
import sys
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
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from moldau.spark.datasource import MoldauDataSource

# Where a task can die: module and attribute of the sink, and whether before or after it ran.
TASK_STEPS = {
    "before fencing": ("transactions", "make_producer", "before"),
    "after fencing": ("transactions", "read_marker", "before"),
    "after reading the marker": ("transactions", "read_marker", "after"),
    "after begin": ("transactions", "TaskTransaction.begin", "after"),
    "amid sending": ("producing", "Sender.send", "after"),
    "before all is acknowledged": ("producing", "Sender.finish", "before"),
    "before the marker": ("transactions", "TaskTransaction.commit", "before"),
    "between marker and commit": ("transactions", "TaskTransaction.end", "before"),
    "after commit": ("transactions", "TaskTransaction.commit", "after"),
}
DRIVER_STEPS = ("before Spark's commit", "after Spark's commit call")
STEPS = (*TASK_STEPS, *DRIVER_STEPS)


@dataclass(frozen=True)
class Plan:
    """Batch `n` dies at `steps[n % len(steps)]`, in the task of Spark partition `partition`.

    `victims` are process ids to kill; none means the worker itself.
    """

    steps: tuple[str, ...]
    fuses: str
    victims: tuple[int, ...] = ()
    partition: int = 1

    def step_of(self, batch_id: int) -> str:
        return self.steps[batch_id % len(self.steps)]

    def write(self, batch_id: int, write: Callable[[], WriterCommitMessage]) -> WriterCommitMessage:
        """What a task does, or dies of."""
        task = TaskContext.get()
        assert task is not None
        step = self.step_of(batch_id)
        if task.partitionId() != self.partition or step not in TASK_STEPS:
            return write()
        with deadly(step, lambda: self.die_once(batch_id)):
            return write()

    def commit(self, batch_id: int, commit: Callable[[], None]) -> None:
        """What the driver does when all tasks are done."""
        step = self.step_of(batch_id)
        if step == DRIVER_STEPS[0]:
            self.die_once(batch_id)
        commit()
        if step == DRIVER_STEPS[1]:
            self.die_once(batch_id)

    def die_once(self, batch_id: int) -> None:
        """Kill, unless this batch was killed before."""
        try:
            (Path(self.fuses) / str(batch_id)).touch(exist_ok=False)
        except FileExistsError:
            return
        for victim in (*self.victims, os.getpid()):
            os.kill(victim, signal.SIGKILL)


def deadly_source(plan: Plan) -> type[DataSource]:
    """To be registered instead of the real one, under the same name."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # has no types

    class DeadlySource(MoldauDataSource):
        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
            inner = super().streamWriter(schema, overwrite)
            assert isinstance(inner, DataSourceStreamArrowWriter)
            return DeadlyWriter(inner, plan)

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            inner = super().writer(schema, overwrite)
            assert isinstance(inner, DataSourceArrowWriter)
            return DeadlyBatchWriter(inner, plan, int(self.options["batchId"]))

    return DeadlySource


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
