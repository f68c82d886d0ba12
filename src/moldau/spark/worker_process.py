"""What Spark's Python workers are spared, being used for one task after the other."""

import gc
from functools import cache

from pyspark import TaskContext


def keep_imports_out_of_collections() -> None:
    """Let the collector forget what is loaded by now: Spark makes a full collection after every task, and walking
    through Arrow's, numpy's and Spark's modules takes it tens of milliseconds of processor time each time."""
    if TaskContext.get() is not None:  # only in a worker, whose process is Spark's, not the user's
        _freeze()


@cache
def _freeze() -> None:
    gc.freeze()
