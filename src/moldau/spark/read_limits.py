"""What Spark says of limits to a stream, by the names of Spark 4.2; Spark 4.1 has none of them, and says nothing."""

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ModuleNotFoundError as missing:
    if missing.name != "pyspark.sql.streaming.datasource":
        raise

    HAS_LIMITS = False

    class ReadLimit:  # type: ignore[no-redef]  # Spark 4.1 has none; nobody makes one there
        """Stands in for Spark's."""

    ReadAllAvailable = ReadMaxRows = ReadMinRows = SupportsTriggerAvailableNow = ReadLimit  # type: ignore[misc,assignment]  # likewise
else:
    HAS_LIMITS = True

__all__ = [
    "HAS_LIMITS",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
]
