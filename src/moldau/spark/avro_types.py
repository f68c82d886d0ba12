"""Avro's schemas into Spark's types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import types as t

from moldau.spark.suggestions import did_you_mean


class SchemaError(ValueError):
    """What is wrong with a schema, and the fix, in one line."""


_AVRO_PRIMITIVES: dict[str, t.DataType] = {
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "string": t.StringType(),
    "null": t.NullType(),
}
_AVRO_LOGICAL: dict[tuple[str, str], t.DataType] = {
    ("int", "date"): t.DateType(),
    ("long", "timestamp-millis"): t.TimestampType(),
    ("long", "timestamp-micros"): t.TimestampType(),
    ("long", "local-timestamp-millis"): t.TimestampNTZType(),
    ("long", "local-timestamp-micros"): t.TimestampNTZType(),
    ("string", "uuid"): t.StringType(),
}


def spark_type_of_avro(schema: Any, named: dict[str, t.DataType] | None = None) -> tuple[t.DataType, bool]:
    """The Spark type of an Avro schema (as parsed JSON), and whether it may be null."""
    known: dict[str, t.DataType] = {} if named is None else named
    if isinstance(schema, str):
        if schema in _AVRO_PRIMITIVES:
            return _AVRO_PRIMITIVES[schema], schema == "null"
        for name in (schema, schema.rpartition(".")[2]):
            if name in known:
                return known[name], False
        raise SchemaError(f"unknown Avro type {schema!r}; {did_you_mean(schema, _AVRO_PRIMITIVES)}")
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise SchemaError(f"a union of {len(others)} types has no Spark type; use a union of null and one type")
        return spark_type_of_avro(others[0], known)[0], "null" in schema
    if not isinstance(schema, Mapping):
        raise SchemaError(f"{schema!r} is not an Avro schema")
    return _complex_avro(schema, known), False


def _complex_avro(schema: Mapping[str, Any], known: dict[str, t.DataType]) -> t.DataType:
    kind = schema.get("type")
    logical = schema.get("logicalType")
    if logical == "decimal":
        return t.DecimalType(int(schema.get("precision", 10)), int(schema.get("scale", 0)))
    if isinstance(kind, str) and isinstance(logical, str) and (kind, logical) in _AVRO_LOGICAL:
        return _AVRO_LOGICAL[kind, logical]
    if kind == "record":
        fields = []
        for each in schema.get("fields", ()):
            data_type, nullable = spark_type_of_avro(each["type"], known)
            fields.append(t.StructField(str(each["name"]), data_type, nullable))
        record = t.StructType(fields)
        known[str(schema.get("name", ""))] = record
        return record
    if kind == "array":
        element, nullable = spark_type_of_avro(schema.get("items"), known)
        return t.ArrayType(element, nullable)
    if kind == "map":
        value, nullable = spark_type_of_avro(schema.get("values"), known)
        return t.MapType(t.StringType(), value, nullable)
    if kind in ("enum", "fixed"):
        found: t.DataType = t.StringType() if kind == "enum" else t.BinaryType()
        known[str(schema.get("name", ""))] = found
        return found
    return spark_type_of_avro(kind, known)[0]


def record_schema(schema: str) -> t.StructType:
    """The columns of a record's schema, given as text."""
    found, _ = spark_type_of_avro(json.loads(schema))
    if not isinstance(found, t.StructType):
        raise SchemaError("the Avro schema is not a record; its fields become the columns")
    return found
