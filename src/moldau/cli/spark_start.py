"""While Spark starts: a Java that is not there is told in a line, and Ctrl-C ends the Java process with us.

PySpark hides Ctrl-C from the Java process it starts, and takes away the folder that process is to answer in when Python
leaves. Left alone it would find that out seconds later, and print a stack trace below the user's next prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from moldau.cli.failure import misused

if TYPE_CHECKING:
    import subprocess


@contextmanager
def starting_spark() -> Iterator[None]:
    """A Java process that was started in here and did not answer yet is ended if this is left by Ctrl-C."""
    from pyspark import SparkContext, java_gateway

    from moldau.spark.java import JavaNotFound

    module: Any = java_gateway
    popen = module.Popen
    started: list[subprocess.Popen[bytes]] = []

    def remembered(*arguments: Any, **settings: Any) -> Any:
        started.append(popen(*arguments, **settings))
        return started[-1]

    module.Popen = remembered
    try:
        yield
    except KeyboardInterrupt:
        if SparkContext._gateway is None:  # one that answers ends by itself, when its input closes
            for process in started:
                process.kill()
                process.wait()
        raise
    except JavaNotFound as error:
        misused(str(error))
    finally:
        module.Popen = popen
