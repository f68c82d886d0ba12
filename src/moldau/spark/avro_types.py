"""Avro's schemas into Spark's types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
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


# Unions whose types are one number of different sizes.
_WIDEST = ({"int", "long"}, "long"), ({"float", "double"}, "double")
# Times of the day: Spark's Python sources have no such type, so they are numbers, as Spark's own reader has them.
_TIMES_OF_DAY = ("time-millis", "time-micros")


def without_times_of_day(schema: Any) -> Any:
    """A schema by which times of the day are read as the numbers they are written as."""
    if isinstance(schema, list):
        return [without_times_of_day(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: each for key, each in schema.items() if key != "logicalType" or each not in _TIMES_OF_DAY}
    inner = ("type", "items", "values", "fields")  # not `default`, which is data
    return {key: without_times_of_day(each) if key in inner else each for key, each in kept.items()}


@dataclass(slots=True)
class _Names:
    """Named types so far, by full name; None while a type is being read."""

    known: dict[str, t.DataType | None] = field(default_factory=dict)

    def find(self, name: str, namespace: str) -> t.DataType:
        for full in (_full_name(name, namespace), name):
            if full in self.known:
                found = self.known[full]
                if found is None:
                    raise SchemaError(f"the Avro record {name!r} contains itself; Spark has no such type")
                return found
        raise SchemaError(f"unknown Avro type {name!r}; {did_you_mean(name, _AVRO_PRIMITIVES)}")


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def members_of(union: list[Any]) -> list[Any]:
    """What a value that is not null may be. Numbers of two sizes are one type, and null alone is one, too."""
    members = [each for each in union if each != "null"]
    for kinds, widest in _WIDEST:
        if members and all(isinstance(each, str) and each in kinds for each in members):
            return members if len(members) == 1 else [widest]
    return members or ["null"]


def spark_type_of_avro(schema: Any) -> tuple[t.DataType, bool]:
    """The Spark type of an Avro schema (as parsed JSON), and whether it may be null."""
    return _of_avro(schema, "", _Names())


def _of_avro(schema: Any, namespace: str, names: _Names) -> tuple[t.DataType, bool]:
    if isinstance(schema, str):
        if schema in _AVRO_PRIMITIVES:
            return _AVRO_PRIMITIVES[schema], schema == "null"
        return names.find(schema, namespace), False
    if isinstance(schema, list):
        members = members_of(schema)
        if len(members) == 1:
            return _of_avro(members[0], namespace, names)[0], "null" in schema
        kinds = [_of_avro(each, namespace, names)[0] for each in members]
        return t.StructType([t.StructField(f"member{index}", each) for index, each in enumerate(kinds)]), True
    if not isinstance(schema, Mapping):
        raise SchemaError(f"{schema!r} is not an Avro schema")
    return _complex_avro(schema, namespace, names), False


def _complex_avro(schema: Mapping[str, Any], namespace: str, names: _Names) -> t.DataType:
    kind = schema.get("type")
    logical = schema.get("logicalType")
    full = _full_name(str(schema.get("name", "")), str(schema.get("namespace") or namespace))
    found: t.DataType | None = None
    if logical == "decimal":
        found = t.DecimalType(int(schema.get("precision", 10)), int(schema.get("scale", 0)))
    elif isinstance(kind, str) and isinstance(logical, str):
        found = _AVRO_LOGICAL.get((kind, logical))
    if kind in ("enum", "fixed"):
        found = found or (t.StringType() if kind == "enum" else t.BinaryType())
        names.known[full] = found
    if found is not None:
        return found
    if kind == "record":
        fields = []
        names.known[full] = None
        for each in schema.get("fields", ()):
            data_type, nullable = _of_avro(each["type"], full.rpartition(".")[0], names)
            fields.append(t.StructField(str(each["name"]), data_type, nullable))
        record = names.known[full] = t.StructType(fields)
        return record
    if kind == "array":
        element, nullable = _of_avro(schema.get("items"), namespace, names)
        return t.ArrayType(element, nullable)
    if kind == "map":
        value, nullable = _of_avro(schema.get("values"), namespace, names)
        return t.MapType(t.StringType(), value, nullable)
    return _of_avro(kind, namespace, names)[0]


def record_schema(schema: str) -> t.StructType:
    """The columns of a record's schema, given as text."""
    found, _ = spark_type_of_avro(json.loads(schema))
    if not isinstance(found, t.StructType):
        raise SchemaError("the Avro schema is not a record; its fields become the columns")
    return found
