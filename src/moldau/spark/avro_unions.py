"""Values of Avro's unions as their Spark type has them (`avro_types`).

A union of several types is a struct of `member0`, `member1` and so on, as Spark's own reader of Avro makes it: the null
among them does not count, and one member is set. fastavro tells the names of records, enums and fixed values; other
types are known by what Python has for them.
"""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from moldau.spark.avro_types import members_of

_INT_MAX = 2**31
_LOGICAL: dict[str, type] = {
    "date": datetime.date,
    "timestamp-millis": datetime.datetime,
    "timestamp-micros": datetime.datetime,
    "local-timestamp-millis": datetime.datetime,
    "local-timestamp-micros": datetime.datetime,
    "decimal": decimal.Decimal,
    "uuid": uuid.UUID,
}
_PLAIN: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (float, int),
    "double": (float, int),
    "string": (str,),
    "bytes": (bytes,),
    "array": (list,),
    "map": (dict,),
}


def splitter(schema: Any, named: Mapping[str, Any]) -> Callable[[Any], Any] | None:
    """From what fastavro reads with `return_named_type` to the Spark type; None if no union has several types.

    `schema` and the types it names are as fastavro's `parse_schema` gives them.
    """
    parts = [schema, *named.values()]
    if not any(_has_choice(each) for each in parts):
        return None
    return lambda value: _split(value, schema, named)


def _has_choice(schema: Any) -> bool:
    if isinstance(schema, list):
        return len(members_of(schema)) > 1 or any(map(_has_choice, schema))
    if isinstance(schema, dict):
        return any(_has_choice(schema.get(key)) for key in ("type", "items", "values")) or any(
            _has_choice(each["type"]) for each in schema.get("fields", ())
        )
    return False


def _split(value: Any, schema: Any, named: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):
        return None if value is None else _of_union(value, members_of(schema), named)
    if isinstance(value, tuple):
        value = value[1]  # the writer had a union here
    if isinstance(schema, str):
        return _split(value, named[schema], named) if schema in named else value
    match schema["type"]:
        case "record":
            return {each["name"]: _split(value[each["name"]], each["type"], named) for each in schema["fields"]}
        case "array":
            return [_split(each, schema["items"], named) for each in value]
        case "map":
            return {key: _split(each, schema["values"], named) for key, each in value.items()}
        case dict() | list() as inner:
            return _split(value, inner, named)
        case _:
            return value


def _of_union(value: Any, members: list[Any], named: Mapping[str, Any]) -> Any:
    if len(members) == 1:
        return _split(value, members[0], named)
    at = next((index for index, each in enumerate(members) if _is_of(value, each, named)), None)
    if at is None:
        raise ValueError(f"a {type(value).__name__} is of none of the union's types")
    inner = _split(value, members[at], named)
    return {f"member{index}": inner if index == at else None for index in range(len(members))}


def _is_of(value: Any, member: Any, named: Mapping[str, Any]) -> bool:
    if isinstance(member, str) and member in named:
        member = named[member]
    kind, logical, name = (
        (member, None, "")
        if isinstance(member, str)
        else (
            member["type"],
            member.get("logicalType"),
            member.get("name", ""),
        )
    )
    if isinstance(value, tuple):
        return bool(value[0] == name)
    if kind == "record":  # the writer had no union here
        return isinstance(value, dict) and value.keys() == {each["name"] for each in member["fields"]}
    if logical in _LOGICAL:
        return type(value) is _LOGICAL[logical]  # a datetime is a date, too
    if isinstance(value, bool) or kind == "boolean":
        return isinstance(value, bool) and kind == "boolean"
    if kind == "int" and isinstance(value, int):
        return -_INT_MAX <= value < _INT_MAX
    return isinstance(value, _PLAIN.get(kind, ()))
