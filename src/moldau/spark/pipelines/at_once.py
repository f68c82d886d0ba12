"""Several jobs of Spark's at the same time: what one waits for, another uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark.util import InheritableThread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def at_once(spark: SparkSession, works: Sequence[Callable[[], None]]) -> None:
    """Do all of it, each in a thread that Spark takes for this one. Ends when all have; one that failed raises."""
    failures: list[BaseException] = []

    def kept(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    threads = [InheritableThread(target=partial(kept, work), session=spark, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
