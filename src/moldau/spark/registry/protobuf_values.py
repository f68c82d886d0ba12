"""Columns into Protobuf: which `.proto` a Spark type is, and rows as its messages.

Field numbers are what readers go by, so they are never dealt out twice. A subject that has a schema keeps it as long as
it has a field for every column, whoever wrote it. If columns are new, they get the next free numbers, in a schema of
ours; one that people wrote is theirs to extend, and that is said.
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Mapping
from typing import Any

from pyspark.sql import types as t

from moldau.spark.registry import types
from moldau.spark.registry.protobuf_text import message_class
from moldau.spark.registry.types import UnusableSchema, is_repeated

_PACKAGE = "moldau.values"
_MESSAGE = "Value"
_TIMESTAMP = "google.protobuf.Timestamp"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = range(19_000, 20_000)  # Protobuf's own
_SCALARS: tuple[tuple[type[t.DataType], str], ...] = (
    (t.BooleanType, "bool"),
    (t.IntegerType, "int32"),
    (t.LongType, "int64"),
    (t.FloatType, "float"),
    (t.DoubleType, "double"),
    (t.StringType, "string"),
    (t.BinaryType, "bytes"),
    (t.TimestampType, _TIMESTAMP),
)
FIRST_MESSAGE = b"\0"  # Confluent's way to say that a value is the file's first message


def schema_text(schema: t.StructType, known: str | None, references: Mapping[str, str]) -> str:
    """The schema to write under: the one the subject has (`known`) if it has all columns, else a new one."""
    wanted = _written(schema)
    if known is None:
        return _file(wanted, None)
    descriptor = message_class(known, references).DESCRIPTOR
    there = types.of_protobuf(descriptor)
    together = _together(there, wanted, "")
    if _names(together) == _names(there):
        return known
    if descriptor.full_name != f"{_PACKAGE}.{_MESSAGE}":
        missing = sorted(set(_names(together)) - set(_names(there)))
        raise UnusableSchema(
            f"the Protobuf schema {descriptor.full_name} has no field for {', '.join(missing)}: add it to the schema, "
            "whose field numbers are for people to choose, or leave the column out"
        )
    return _file(together, descriptor)


def _written(kind: Any) -> Any:
    """The type as Protobuf has it: small numbers are int32, decimals and dates are text."""
    match kind:
        case t.StructType():
            return t.StructType([t.StructField(each.name, _written(each.dataType)) for each in kind.fields])
        case t.ArrayType():
            if isinstance(kind.elementType, t.ArrayType | t.MapType):
                raise UnusableSchema("Protobuf has no lists of lists or maps: put the inner ones into a struct")
            return t.ArrayType(_written(kind.elementType))
        case t.MapType():
            key = _written(kind.keyType)
            if not isinstance(key, t.StringType | t.IntegerType | t.LongType | t.BooleanType):
                raise UnusableSchema(f"Protobuf has no maps by {kind.keyType.simpleString()}: cast the keys to string")
            if isinstance(kind.valueType, t.ArrayType | t.MapType):
                raise UnusableSchema("Protobuf has no maps of lists or maps: put the inner ones into a struct")
            return t.MapType(key, _written(kind.valueType))
        case t.ByteType() | t.ShortType():
            return t.IntegerType()
        case t.DecimalType() | t.DateType():
            return t.StringType()
    if any(isinstance(kind, each) for each, _ in _SCALARS):
        return kind
    raise UnusableSchema(f"there is no Protobuf type for {kind.simpleString()}: cast the column")


def _together(there: t.DataType, wanted: t.DataType, place: str) -> Any:
    """All fields of both, those that are there first; a field of another type is an error."""
    match there, wanted:
        case t.StructType(), t.StructType():
            new = {each.name: each.dataType for each in wanted.fields}
            fields = []
            for each in there.fields:
                other = new.pop(each.name, None)
                kind = each.dataType if other is None else _together(each.dataType, other, f"{place}{each.name}.")
                fields.append(t.StructField(each.name, kind))
            return t.StructType([*fields, *(t.StructField(name, kind) for name, kind in new.items())])
        case t.ArrayType(), t.ArrayType():
            return t.ArrayType(_together(there.elementType, wanted.elementType, place))
        case t.MapType(), t.MapType() if there.keyType == wanted.keyType:
            return t.MapType(there.keyType, _together(there.valueType, wanted.valueType, place))
    if there != wanted:
        raise UnusableSchema(
            f"column {place.rstrip('.')!r} is {wanted.simpleString()}, and {there.simpleString()} in the subject's "
            "Protobuf schema: cast it, or write under another subject"
        )
    return there


def _names(kind: t.DataType, place: str = "") -> list[str]:
    match kind:
        case t.StructType():
            found = []
            for each in kind.fields:
                found += [f"{place}{each.name}", *_names(each.dataType, f"{place}{each.name}.")]
            return found
        case t.ArrayType():
            return _names(kind.elementType, place)
        case t.MapType():
            return _names(kind.valueType, place)
    return []


def _file(schema: t.StructType, known: Any) -> str:
    lines = _message(_MESSAGE, schema, known, "")
    imports = ['import "google/protobuf/timestamp.proto";'] if any(_TIMESTAMP in line for line in lines) else []
    return "\n".join(['syntax = "proto3";', f"package {_PACKAGE};", *imports, "", *lines, ""])


def _message(name: str, schema: t.StructType, known: Any, indent: str) -> list[str]:
    taken = {} if known is None else {each.name: each.number for each in known.fields}
    following = max(taken.values(), default=0) + 1
    inner, fields = [], []
    for each in schema.fields:
        if not _NAME.fullmatch(each.name):
            raise UnusableSchema(f"{each.name!r} cannot be a field of Protobuf: rename the column")
        number = taken.get(each.name)
        if number is None:
            number = following if following not in _RESERVED else _RESERVED.stop
            following = number + 1
        old = known.fields_by_name[each.name].message_type if each.name in taken else None
        kind, prefix = each.dataType, "optional "
        if isinstance(kind, t.MapType):
            old = None if old is None else old.fields_by_name["value"].message_type
            kind, prefix = kind.valueType, ""
        elif isinstance(kind, t.ArrayType):
            kind, prefix = kind.elementType, "repeated "
        if isinstance(kind, t.StructType):
            typed = "Of_" + each.name
            inner += _message(typed, kind, old, indent + "  ")
        else:
            typed = next(text for cls, text in _SCALARS if isinstance(kind, cls))
        if isinstance(each.dataType, t.MapType):
            key = next(text for cls, text in _SCALARS if isinstance(each.dataType.keyType, cls))
            typed = f"map<{key}, {typed}>"
        fields.append(f"{indent}  {prefix}{typed} {each.name} = {number};")
    return [f"{indent}message {name} {{", *inner, *fields, f"{indent}}}"]


def fill(message: Any, record: Mapping[str, Any]) -> None:
    """Set a message's fields from a row, as Arrow gives it to Python; null is a field that is not set."""
    for name, value in record.items():
        if value is None:
            continue
        field = message.DESCRIPTOR.fields_by_name[name]
        target = getattr(message, name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            for key, each in value.items() if isinstance(value, Mapping) else value:
                if inner.message_type is None:
                    target[key] = _scalar(inner, each)
                else:
                    _fill_single(target[key], each)
        elif is_repeated(field):
            for each in value:
                if field.message_type is None:
                    target.append(_scalar(field, each))
                else:
                    _fill_single(target.add(), each)
        elif field.message_type is None:
            setattr(message, name, _scalar(field, value))
        else:
            target.SetInParent()
            _fill_single(target, value)


def _fill_single(message: Any, value: Any) -> None:
    if value is None:
        raise ValueError("Protobuf has no nulls in lists and maps: filter them out, or give them a value")
    if isinstance(value, datetime.datetime):
        message.FromDatetime(value)
    elif isinstance(value, Mapping):
        fill(message, value)
    else:
        message.value = value  # one of Protobuf's wrappers


def _scalar(field: Any, value: Any) -> Any:
    if value is None:
        raise ValueError("Protobuf has no nulls in lists and maps: filter them out, or give them a value")
    if field.enum_type is not None:
        known = field.enum_type.values_by_name.get(value)
        if known is None:
            raise ValueError(f"{value!r} is not one of the values of {field.enum_type.full_name}")
        return known.number
    if isinstance(value, decimal.Decimal):
        return str(value)
    return value.isoformat() if isinstance(value, datetime.date) else value
