"""Columns of a DataFrame as fields of records: the rules of Spark's own Kafka sink.

`value` (string or binary) is required; `key` (the same), `headers` (array<struct<key: string, value: binary>>),
`partition` (int) and `topic` (string) may be there; the topic option goes before the column; other columns are not
looked at, the timestamp among them: a record has the time of its writing. Types are checked before anything runs,
contents as they come.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

Headers = list[tuple[str, str | bytes | None]]  # as librdkafka takes them; values are bytes or None
_TEXT_OR_BYTES = "string or binary"
_HEADERS = "array<struct<key:string,value:binary>>"


def check_columns(schema: StructType, topic: str | None, *, structs: bool = False) -> None:
    """Refuse a DataFrame that cannot be written, with the reason and the way out."""
    types = {field.name: field.dataType for field in schema.fields}
    if topic is None and "topic" not in types:
        raise ValueError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic: "
            ".option('topic', 'name')"
        )
    if "value" not in types:
        raise ValueError(
            f"Required attribute 'value' not found among {', '.join(types) or 'no columns'}: name the column to write, "
            "for instance df.selectExpr('to_json(struct(*)) AS value')"
        )
    _check(types, "key", isinstance(types.get("key"), StringType | BinaryType), _TEXT_OR_BYTES)
    if structs:
        _check(types, "value", isinstance(types["value"], StructType), "struct, because valueFormat is set")
    else:
        _check(types, "value", isinstance(types["value"], StringType | BinaryType), _TEXT_OR_BYTES)
    _check(types, "headers", _are_headers(types.get("headers")), _HEADERS)
    _check(types, "partition", isinstance(types.get("partition"), IntegerType), "int")
    if topic is None:
        _check(types, "topic", isinstance(types["topic"], StringType), "string")


def _check(types: dict[str, DataType], name: str, right: bool, wanted: str) -> None:
    if name in types and not right:
        raise ValueError(
            f"{name} attribute unsupported type {types[name].simpleString()}. {name} must be a(n) {wanted}: "
            f"cast the column, or rename it if it is not meant"
        )


def _are_headers(kind: DataType | None) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]


@dataclass(slots=True, frozen=True)
class Rows:
    """An Arrow batch as lists of equal length; None stands for a column that is not there, or has nothing but nulls."""

    count: int
    size_bytes: int  # of keys and values: a cheap witness of what a task wrote
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    headers: Sequence[Headers | None] | None
    partitions: Sequence[int | None] | None
    topics: Sequence[str] | None  # None: the topic of the option


def read_rows(batches: Iterator[Any], topic: str | None) -> Iterator[Rows]:
    """The non-empty batches of a task, as they are asked for."""
    for batch in batches:
        if batch.num_rows:
            yield _rows(batch, topic)


def measure(batch: Any) -> int:
    """Bytes of keys and values in an Arrow batch."""
    names = batch.schema.names
    return sum(_binary_bytes(batch.column(names.index(name))) for name in ("key", "value") if name in names)


def _rows(batch: Any, topic: str | None) -> Rows:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    return Rows(
        count=batch.num_rows,
        size_bytes=measure(batch),
        values=_binaries(columns["value"]),
        keys=_binaries(columns["key"]) if _has_content(columns, "key") else None,
        headers=_headers(columns["headers"]) if _has_content(columns, "headers") else None,
        partitions=_partitions(columns["partition"]) if _has_content(columns, "partition") else None,
        topics=_topics(columns["topic"]) if topic is None else None,
    )


def _has_content(columns: dict[str, Any], name: str) -> bool:
    return name in columns and columns[name].null_count < len(columns[name])


def _as_binary(column: Any) -> Any:
    """Text is UTF-8 already, so this copies nothing."""
    if pa.types.is_string(column.type):
        return column.cast(pa.binary())
    if pa.types.is_large_string(column.type):
        return column.cast(pa.large_binary())
    return column


def _binary_bytes(column: Any) -> int:
    return pc.sum(pc.binary_length(_as_binary(column))).as_py() or 0


def _binaries(column: Any) -> list[bytes | None]:
    values: list[bytes | None] = _as_binary(column).to_pylist()
    return values


def refuse_negative(column: Any) -> None:
    lowest = pc.min(column).as_py()
    if lowest is not None and lowest < 0:
        raise ValueError(f"Invalid partition: {lowest}. Partition numbers are 0 or more, or null to let the key decide")


def _partitions(column: Any) -> list[int | None]:
    refuse_negative(column)
    partitions: list[int | None] = column.to_pylist()
    return partitions


def _topics(column: Any) -> list[str]:
    if column.null_count:
        raise ValueError("null topic present in the data. Use the topic option for setting a default topic")
    topics: list[str] = column.to_pylist()
    return topics


def _headers(column: Any) -> list[Headers | None]:
    """Lists of pairs. The pairs of all rows lie side by side in Arrow, so they are read at once and then shared out."""
    pairs = column.flatten()
    if pairs.null_count:
        raise ValueError(
            "null header present in the data. Remove null elements from the headers, for instance by filter()"
        )
    names, values = pairs.flatten()
    if names.null_count:
        raise ValueError("null header key present in the data. Every header needs a key")
    flat = list(zip(names.to_pylist(), values.to_pylist(), strict=True))
    lengths = pc.list_value_length(column).to_pylist()
    result: list[Headers | None] = []
    start = 0
    for length in lengths:
        if length is None:
            result.append(None)
        else:
            result.append(flat[start : start + length])
            start += length
    return result
