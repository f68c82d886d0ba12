"""What differs between Spark in this process and Spark behind Connect: everything else is written for both.

Behind Connect there is no JVM to talk to, and `foreachBatch` runs its function in a process of the server, where no
property of the thread tells which query a batch belongs to. The checkpoint tells it: Spark keeps the id there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY_ID = "sql.streaming.queryId"
ADAPTIVE_STREAMING = "spark.sql.adaptive.streaming.stateless.enabled"


def is_remote(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect; asked without importing it, which needs gRPC."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def leave(spark: SparkSession, *, is_well: bool) -> None:
    """End a session of Spark Connect that nobody else uses; of any other kind, nothing.

    Left to the end of the process, gRPC waits there for ever for calls whose threads are gone. The server is told if it
    `is_well`: one that is away would be asked again for minutes.
    """
    if is_remote(spark):
        remote: Any = spark
        remote.release_session_on_close = is_well
        remote.stop()


def is_ended(spark: SparkSession) -> bool:
    """Whether the Spark of this process has ended, or has begun to. A server of Spark Connect is not ours to end."""
    from py4j.protocol import Py4JError

    if is_remote(spark):
        return False
    java: Any = spark.sparkContext._jsc
    try:
        return java is None or bool(java.sc().isStopped())
    except (Py4JError, ConnectionError):
        return True


@dataclass(slots=True, frozen=True)
class Notes:
    """Under which name a sink notes its batches: the query's id, and its own name where several share the query."""

    checkpoint: str  # of the query
    name: str = ""

    def app_id(self, rows: DataFrame) -> str:
        found = query_id(rows, self.checkpoint)
        return f"{found}-{self.name}" if self.name else found


def query_id(rows: DataFrame, checkpoint: str) -> str:
    """The id of the query whose batch this is; kept in the checkpoint, so it survives restarts."""
    spark = rows.sparkSession
    if is_remote(spark):
        return _id_in(checkpoint)
    found = spark.sparkContext.getLocalProperty(QUERY_ID)
    if found is None:
        raise RuntimeError("this function writes batches of a stream: give it to foreachBatch")
    return str(found)


def _id_in(checkpoint: str) -> str:
    from pyarrow import fs

    if not checkpoint:
        raise RuntimeError("behind Spark Connect, only the checkpoint tells which query this is: name it")
    try:
        system, path = fs.FileSystem.from_uri(f"{checkpoint}/metadata")
        with system.open_input_stream(path) as file:
            return str(json.loads(file.read())["id"])
    except (OSError, ValueError, KeyError) as error:
        raise RuntimeError(f"{checkpoint}/metadata, which says which query this is, cannot be read: {error}") from error
