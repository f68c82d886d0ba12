"""PySpark keeps one JVM for a process, and its class path is the one it was started with."""

from pyspark import SparkContext
from pyspark.sql import SparkSession


def end_jvm() -> None:
    """End the session and the JVM that another module may have left: the next session starts its own."""
    context = SparkContext._active_spark_context
    if context is not None:
        SparkSession(context).stop()
    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM lives as long as this is open
    gateway.proc.wait(30)
    SparkContext._gateway = SparkContext._jvm = None
