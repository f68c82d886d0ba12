"""Rows of Arrow as the values that Avro and JSON write, by their Spark type.

Invariant: what is written fits the schema that `types` registers for the same type; what cannot is an error that says
so, because a value that breaks its own schema is found out by its readers.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
from typing import Any

from pyspark.sql import types as t


def avro_value(value: Any, kind: t.DataType) -> Any:
    """As fastavro takes it: Arrow has maps as lists of pairs."""
    if value is None or not _holds_maps(kind):
        return value
    match kind:
        case t.StructType():
            return {each.name: avro_value(value.get(each.name), each.dataType) for each in kind.fields}
        case t.ArrayType():
            return [avro_value(each, kind.elementType) for each in value]
        case t.MapType():
            return {str(key): avro_value(each, kind.valueType) for key, each in value}
    return value


def _holds_maps(kind: t.DataType) -> bool:
    match kind:
        case t.StructType():
            return any(_holds_maps(each.dataType) for each in kind.fields)
        case t.ArrayType():
            return _holds_maps(kind.elementType)
    return isinstance(kind, t.MapType)


def json_text(value: Any, kind: t.DataType) -> str:
    """As JSON. Decimals are numbers with all their digits, bytes are base64, times are ISO 8601."""
    if value is None:
        return "null"
    match kind:
        case t.StructType():
            return _object((each.name, json_text(value.get(each.name), each.dataType)) for each in kind.fields)
        case t.ArrayType():
            return "[" + ", ".join(json_text(each, kind.elementType) for each in value) + "]"
        case t.MapType():
            return _object((str(key), json_text(each, kind.valueType)) for key, each in value)
    match value:
        case decimal.Decimal():
            return format(value, "f")
        case bytes():
            return json.dumps(base64.b64encode(value).decode())
        case datetime.date() | datetime.time():  # a datetime is a date
            return json.dumps(value.isoformat())
        case float() if not math.isfinite(value):
            raise ValueError("JSON has neither NaN nor Infinity: filter them out, or give them a value")
    return json.dumps(value, ensure_ascii=False, default=str)


def _object(pairs: Any) -> str:
    return "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {text}" for name, text in pairs) + "}"
