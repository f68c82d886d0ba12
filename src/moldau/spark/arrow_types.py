"""Spark's types as Arrow's, times being UTC: Spark 4.1 says that by another name than those after it."""

from __future__ import annotations

import inspect
from typing import Any

from pyspark.sql import types as t
from pyspark.sql.pandas import types as translated

_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"}
    if "timezone" in inspect.signature(translated.to_arrow_schema).parameters
    else {"timestamp_utc": True}
)


def arrow_schema_of(schema: t.StructType) -> Any:
    """A pyarrow.Schema."""
    return translated.to_arrow_schema(schema, **_IN_UTC)


def arrow_type_of(kind: t.DataType) -> Any:
    """A pyarrow.DataType."""
    return translated.to_arrow_type(kind, **_IN_UTC)
