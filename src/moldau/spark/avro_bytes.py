"""Values that fastavro would believe: cut off in a field that is skipped, or with more elements than bytes.

Invariant: reading a value takes time and memory in proportion to its bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any


class ExactBytes(io.BytesIO):
    """What is asked for, or an error. BytesIO gives less at the end, and all of the rest for a negative length."""

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        if len(found) != size:
            raise EOFError("it ends too early, or a length in it is none")
        return found


def refuse_endless(*schemas: Any) -> None:
    """Raise ValueError for arrays whose elements take no bytes: six bytes say that there are billions of them."""
    parts = [part for schema in schemas for part in _parts(schema)]
    named = {str(part["name"]).rpartition(".")[2]: part for part in parts if "name" in part and "type" in part}
    for part in parts:
        if part.get("type") == "array" and _takes_none(part.get("items"), named, frozenset()):
            raise ValueError("the Avro schema has an array whose elements take no bytes: its values have no bound")


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """All objects of a schema, fields included."""
    if isinstance(schema, list):
        for each in schema:
            yield from _parts(each)
    elif isinstance(schema, dict):
        yield schema
        for key in ("type", "items", "values", "fields"):
            yield from _parts(schema.get(key))


def _takes_none(schema: Any, named: dict[str, Any], seen: frozenset[str]) -> bool:
    if isinstance(schema, str):
        name = schema.rpartition(".")[2]
        known = named.get(name)
        return schema == "null" or (known is not None and name not in seen and _takes_none(known, named, seen | {name}))
    if not isinstance(schema, dict):
        return False  # a union begins with the number of its type
    match schema.get("type"):
        case "record":
            return all(_takes_none(each.get("type"), named, seen) for each in schema.get("fields", ()))
        case "fixed":
            return schema.get("size") == 0
        case "array" | "map" | "enum":
            return False
        case inner:
            return _takes_none(inner, named, seen)
