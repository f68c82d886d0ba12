"""What Spark's Python workers are spared, being used for one task or plan after the other."""

import gc
import sys
from functools import cache

_SPARKS_OWN = "pyspark.daemon"  # which forks workers, and is the main module of each


def keep_imports_out_of_collections() -> None:
    """Let the collector forget what is loaded by now: Spark makes a full collection after every task and every plan,
    and walking through Arrow's, numpy's and Spark's modules takes it tens of milliseconds of processor time each time.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == _SPARKS_OWN:  # otherwise the process is the user's
        _freeze()


@cache
def _freeze() -> None:
    gc.freeze()
