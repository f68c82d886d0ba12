"""Which Spark type a schema of the registry is, and which Avro or JSON schema a Spark type is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import types as t

_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = {
    "google.protobuf.DoubleValue": t.DoubleType(),
    "google.protobuf.FloatValue": t.FloatType(),
    "google.protobuf.Int64Value": t.LongType(),
    "google.protobuf.UInt64Value": t.LongType(),
    "google.protobuf.Int32Value": t.IntegerType(),
    "google.protobuf.UInt32Value": t.LongType(),
    "google.protobuf.BoolValue": t.BooleanType(),
    "google.protobuf.StringValue": t.StringType(),
    "google.protobuf.BytesValue": t.BinaryType(),
}
_DEPTH_MAX = 20


class UnusableSchema(ValueError):
    """A schema that has no columns, or goes round."""


# ---- JSON Schema ----------------------------------------------------------------------------------------------------


def of_json_schema(text: str, references: Mapping[str, str] | None = None) -> t.StructType:
    """Its columns. What may be of several types, or of any, is text: JSON, unless it is a text already."""
    root = json.loads(text)
    imported = {name: json.loads(each) for name, each in (references or {}).items()}
    found = _of_json(root, _Documents(root, imported), 0)
    if not isinstance(found, t.StructType) or not found.fields:
        raise UnusableSchema("the JSON Schema is not of an object with properties; they become the columns")
    return found


@dataclass(slots=True, frozen=True)
class _Documents:
    """The schema in which a reference stands, and those that it may name."""

    here: Any
    imported: Mapping[str, Any]

    def target(self, reference: str) -> tuple[Any, _Documents]:
        name, _, place = reference.partition("#")
        within = self
        if name:
            other = self.imported.get(name)
            by_id = (each for each in self.imported.values() if isinstance(each, dict) and each.get("$id") == name)
            other = next(by_id, None) if other is None else other
            if other is None:
                raise UnusableSchema(f"the JSON Schema refers to {name!r}, which the registry has not")
            within = replace(self, here=other)
        target = within.here
        try:
            for part in filter(None, place.split("/")):
                target = target[part.replace("~1", "/").replace("~0", "~")]
        except (KeyError, TypeError):
            raise UnusableSchema(f"the JSON Schema refers to {reference!r}, which is not there") from None
        return target, within


def json_to_python(value: Any, kind: t.DataType) -> Any:
    """A document as the type above has it; what does not fit is left to Arrow to refuse."""
    match kind:
        case t.StructType() if isinstance(value, dict):
            return {each.name: json_to_python(value.get(each.name), each.dataType) for each in kind.fields}
        case t.ArrayType() if isinstance(value, list):
            return [json_to_python(each, kind.elementType) for each in value]
        case t.MapType() if isinstance(value, dict):
            return {name: json_to_python(each, kind.valueType) for name, each in value.items()}
        case t.StringType() if value is not None and not isinstance(value, str):
            return json.dumps(value, ensure_ascii=False)
    return value


def _of_json(schema: Any, documents: _Documents, depth: int) -> t.DataType:
    if depth > _DEPTH_MAX:
        raise UnusableSchema("the JSON Schema refers to itself")
    if not isinstance(schema, dict):
        return t.StringType()
    if isinstance(reference := schema.get("$ref"), str):
        return _of_json(*documents.target(reference), depth + 1)
    for key in ("oneOf", "anyOf"):  # as serializers write what may be null
        if key in schema:
            rest = [each for each in schema[key] if not (isinstance(each, dict) and each.get("type") == "null")]
            return _of_json(rest[0], documents, depth + 1) if len(rest) == 1 else t.StringType()
    kind = schema.get("type", "object" if "properties" in schema else None)
    kinds = [each for each in (kind if isinstance(kind, list) else [kind]) if each != "null"]
    match kinds:
        case ["object"] if schema.get("properties"):
            fields = [t.StructField(n, _of_json(s, documents, depth + 1)) for n, s in schema["properties"].items()]
            return t.StructType(fields)
        case ["object"]:
            values = schema.get("additionalProperties")
            inner = _of_json(values, documents, depth + 1) if isinstance(values, dict) else t.StringType()
            return t.MapType(t.StringType(), inner)
        case ["array"]:
            return t.ArrayType(_of_json(schema.get("items"), documents, depth + 1))
        case ["integer"]:
            return t.LongType()
        case ["number"]:
            return t.DoubleType()
        case ["boolean"]:
            return t.BooleanType()
        case _:
            return t.StringType()


def to_json_schema(schema: t.StructType) -> str:
    return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", **_to_json(schema)})


def _to_json(kind: t.DataType) -> dict[str, Any]:
    match kind:
        case t.StructType():
            properties = {each.name: _nullable_json(each.dataType, each.nullable) for each in kind.fields}
            return {"type": "object", "properties": properties}
        case t.ArrayType():
            return {"type": "array", "items": _nullable_json(kind.elementType, kind.containsNull)}
        case t.MapType():
            values = _nullable_json(kind.valueType, kind.valueContainsNull)
            return {"type": "object", "additionalProperties": values}
        case t.BooleanType():
            return {"type": "boolean"}
        case t.ByteType() | t.ShortType() | t.IntegerType() | t.LongType():
            return {"type": "integer"}
        case t.FloatType() | t.DoubleType() | t.DecimalType():
            return {"type": "number"}
        case _:
            return {"type": "string"}


def _nullable_json(kind: t.DataType, is_nullable: bool) -> dict[str, Any]:
    inner = _to_json(kind)
    return {"oneOf": [{"type": "null"}, inner]} if is_nullable else inner


# ---- Avro -----------------------------------------------------------------------------------------------------------


def avro_name(text: str) -> str:
    """A name Avro takes, made of any text."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return f"_{name}" if name[:1].isdigit() else name


def to_avro(schema: t.StructType, name: str) -> str:
    return json.dumps(_to_avro(schema, name))


def _to_avro(kind: t.DataType, name: str) -> Any:
    match kind:
        case t.StructType():
            if unfit := next((each.name for each in kind.fields if avro_name(each.name) != each.name), None):
                raise UnusableSchema(f"{unfit!r} cannot be a field of Avro: rename the column")
            fields = [
                {"name": each.name, "type": ["null", inner], "default": None}
                if each.nullable
                else {"name": each.name, "type": inner}
                for each in kind.fields
                for inner in (_to_avro(each.dataType, f"{name}_{each.name}"),)
            ]
            return {"type": "record", "name": name, "fields": fields}
        case t.ArrayType():
            return {"type": "array", "items": ["null", _to_avro(kind.elementType, f"{name}_item")]}
        case t.MapType():
            return {"type": "map", "values": ["null", _to_avro(kind.valueType, f"{name}_value")]}
        case t.DecimalType():
            return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        case t.TimestampType():
            return {"type": "long", "logicalType": "timestamp-micros"}
        case t.TimestampNTZType():
            return {"type": "long", "logicalType": "local-timestamp-micros"}
        case t.DateType():
            return {"type": "int", "logicalType": "date"}
    plain = {
        t.BooleanType: "boolean",
        t.ByteType: "int",
        t.ShortType: "int",
        t.IntegerType: "int",
        t.LongType: "long",
        t.FloatType: "float",
        t.DoubleType: "double",
        t.BinaryType: "bytes",
        t.StringType: "string",
    }
    for cls, avro in plain.items():
        if isinstance(kind, cls):
            return avro
    raise UnusableSchema(f"there is no Avro type for {kind.simpleString()}: cast the column")


# ---- Protobuf -------------------------------------------------------------------------------------------------------


def of_protobuf(descriptor: Any, depth: int = 0) -> t.StructType:
    if depth > _DEPTH_MAX:
        raise UnusableSchema("the Protobuf message contains itself; Spark has no such type")
    return t.StructType([t.StructField(each.name, _of_field(each, depth)) for each in descriptor.fields])


def _of_field(field: Any, depth: int) -> t.DataType:
    if _is_map(field):
        key, value = (_of_single(field.message_type.fields_by_name[n], depth) for n in ("key", "value"))
        return t.MapType(key, value)
    single = _of_single(field, depth)
    return t.ArrayType(single) if is_repeated(field) else single


def is_repeated(field: Any) -> bool:
    repeated = getattr(field, "is_repeated", None)
    return bool(repeated if repeated is not None else field.label == field.LABEL_REPEATED)


def _of_single(field: Any, depth: int) -> t.DataType:
    if field.message_type is not None:
        name = field.message_type.full_name
        if name == _TIMESTAMP:
            return t.TimestampType()
        return _WRAPPERS.get(name) or of_protobuf(field.message_type, depth + 1)
    kinds: Mapping[int, t.DataType] = {
        field.CPPTYPE_INT32: t.IntegerType(),
        field.CPPTYPE_INT64: t.LongType(),
        field.CPPTYPE_UINT32: t.LongType(),
        field.CPPTYPE_UINT64: t.LongType(),
        field.CPPTYPE_DOUBLE: t.DoubleType(),
        field.CPPTYPE_FLOAT: t.FloatType(),
        field.CPPTYPE_BOOL: t.BooleanType(),
        field.CPPTYPE_ENUM: t.StringType(),
    }
    if field.cpp_type == field.CPPTYPE_STRING:
        return t.BinaryType() if field.type == field.TYPE_BYTES else t.StringType()
    return kinds[field.cpp_type]


def protobuf_to_python(message: Any, wanted: Any) -> dict[str, Any]:
    """As the type of `wanted`, the reader's message, has it: fields are found by their numbers, whatever their names.

    What was not set is null where the schema can tell, else the default.
    """
    own = message.DESCRIPTOR.fields_by_number
    return {each.name: _field_to_python(message, own.get(each.number), each) for each in wanted.fields}


def _field_to_python(message: Any, field: Any, wanted: Any) -> Any:
    if field is None:
        return None
    if is_repeated(field) != is_repeated(wanted) or _is_map(field) != _is_map(wanted):
        raise ValueError(f"field {wanted.name}: its schema has one value where the newest has many, or the other way")
    value = getattr(message, field.name)
    if _is_map(field):
        inner, other = field.message_type.fields_by_name["value"], wanted.message_type.fields_by_name["value"]
        return [(key, _single_to_python(inner, other, each)) for key, each in value.items()]
    if is_repeated(field):
        return [_single_to_python(field, wanted, each) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _single_to_python(field, wanted, value)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _single_to_python(field: Any, wanted: Any, value: Any) -> Any:
    if field.message_type is not None:
        name = field.message_type.full_name
        if name == _TIMESTAMP:
            return value.seconds * 1_000_000 + value.nanos // 1_000
        if name in _WRAPPERS:
            return value.value
        if wanted.message_type is None:
            raise ValueError(f"field {wanted.name}: its schema has a message where the newest has none")
        return protobuf_to_python(value, wanted.message_type)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value
