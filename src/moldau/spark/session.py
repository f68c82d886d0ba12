"""A SparkSession that is ready for work: Java found, the right Python on the workers, source and sink registered.

Every setting here can be overridden by `config`; what is not named here keeps Spark's default.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moldau.spark.kinds_of_session import ADAPTIVE_STREAMING, is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUERY_LOGGER = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
_CONNECT = "sc://"
_LOG_CONFIG = Path(__file__).parent / "log4j2.properties"


def session(
    app_name: str = "moldau", *, master: str | None = None, config: Mapping[str, str] | None = None
) -> "SparkSession":
    """The running session of this process, or a new one on `master`, with the format "moldau" registered.

    Without `master` the environment decides (spark-submit, MASTER); else all cores of this machine. On a cluster the
    workers need moldau too, in the Python that `spark.pyspark.python` or PYSPARK_PYTHON names. `sc://host:15002` is a
    server of Spark Connect, whose Python needs moldau as well.
    """
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is None:
        running = _start(app_name, master, dict(config or {}))
    else:
        for key, value in (config or {}).items():
            if running.conf.isModifiable(key):
                running.conf.set(key, value)
    register(running)
    return running


def register(spark: "SparkSession") -> None:
    """Teach a session of your own the format "moldau"; doing it twice is fine.

    A repeated batch must have the tasks it had, or exactly-once sinks cannot tell what they wrote. Spark 4.3 lets their
    number depend on the data and on how many cores are there, unless told not to: it is told so here.
    """
    from moldau.spark.datasource import MoldauDataSource

    spark.conf.set(ADAPTIVE_STREAMING, "false")
    spark.dataSource.register(MoldauDataSource)


def own_session(spark: "SparkSession", *formats: Any) -> "SparkSession":
    """A session whose views and settings are nobody else's, that knows our formats, and these."""
    own: Any = spark.newSession()
    if is_remote(spark):
        register(own)
        for each in formats:
            own.dataSource.register(each)
    else:
        # Spark asks the thread's active session whether a format exists; the parent's would say yes for the child's.
        parent: Any = spark
        sessions = parent._jvm.org.apache.spark.sql.SparkSession
        sessions.setActiveSession(own._jsparkSession)
        try:
            register(own)
            for each in formats:
                own.dataSource.register(each)
        finally:
            sessions.setActiveSession(parent._jsparkSession)
        # Why a query ended is told by whoever runs the pipeline; Spark would print it too, with two languages' traces.
        log4j = own._jvm.org.apache.logging.log4j
        log4j.core.config.Configurator.setLevel(_QUERY_LOGGER, log4j.Level.OFF)
    ready: SparkSession = own
    return ready


def _start(app_name: str, master: str | None, config: dict[str, str]) -> "SparkSession":
    from pyspark.sql import SparkSession

    from moldau.spark.java import find_java_home

    master = master or config.pop("spark.master", None) or os.environ.get("MASTER") or "local[*]"
    if master.startswith(_CONNECT):
        return _connect(app_name, master, config)
    os.environ["JAVA_HOME"] = find_java_home()
    if "spark.pyspark.python" not in config:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in (default_config(master) | config).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _connect(app_name: str, url: str, config: dict[str, str]) -> "SparkSession":
    """Through Spark Connect: Java, and what belongs to the start of Spark, is the server's."""
    from pyspark.sql import SparkSession

    running = SparkSession.builder.appName(app_name).remote(url).getOrCreate()
    for key, value in ({"spark.sql.session.timeZone": "UTC"} | config).items():
        if running.conf.isModifiable(key):
            running.conf.set(key, value)
    return running


def default_config(master: str) -> dict[str, str]:
    """What `session` sets unless told otherwise."""
    settings = {
        # Spark's own log goes to stderr from WARN on; its start-up chatter is left out.
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_CONFIG.as_uri()}",
        "spark.ui.showConsoleProgress": "false",
        # A dashboard on a port of its own is for those who ask: spark.ui.enabled=true.
        "spark.ui.enabled": "false",
        # Windows and printed times are the same on every machine.
        "spark.sql.session.timeZone": "UTC",
        # The byte limit makes Arrow sinks quadratic in rows with null headers; the row limit remains.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
        # A batch that is repeated must have the tasks it had, or exactly-once sinks cannot tell what they wrote; with
        # this, their number depends on how many cores are there at the moment.
        ADAPTIVE_STREAMING: "false",
    }
    if master.startswith("local"):
        settings |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            # 200 shuffle partitions, the default, are 200 tasks and state stores per micro-batch.
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
        }
    return settings
