"""Columns of a fetch as the rows Spark expects: names, order and types of the source's schema, exactly.

Spark checks only the first batch and reads the others by position, so the schema is the same object for all.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from moldau.records.arrow import binary_array
from moldau.records.columns import Columns, Data, HeaderColumns
from moldau.spark.strict_json import encodable

_MICROSECONDS = 1_000
_REASON_CHARACTERS_MAX = 500
_MAX_MILLISECONDS = (2**63 - 1) // _MICROSECONDS


class MalformedTimestamp(ValueError):
    """A record's timestamp does not fit Spark's microseconds."""


def arrow_schema(*, include_headers: bool) -> Any:
    """What `to_arrow_schema(source_schema(options), timezone="UTC")` gives."""
    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("timestampType", pa.int32()),
    ]
    if include_headers:
        pair = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        fields.append(pa.field("headers", pa.list_(pa.field("element", pair))))
    return pa.schema(fields)


def to_rows(columns: Columns, topic: str, partition: int, schema: Any) -> Any:
    """A pyarrow.RecordBatch of `schema`."""
    count = len(columns)
    arrays = [
        binary_array(columns.data, columns.keys),
        binary_array(columns.data, columns.values),
        repeated_string(topic, count),
        pa.array(np.full(count, partition, np.int32)),
        pa.array(columns.offsets),
        _timestamps(columns, topic, partition),
        pa.array(columns.timestamp_types.astype(np.int32)),
    ]
    if columns.headers is not None:
        arrays.append(_headers(columns.data, columns.headers, schema.field("headers").type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def decoded(values: Any, decode: Callable[[bytes], Any], record_type: Any) -> Any:
    """Structs of `record` and `error` for an array of bytes. A null has neither."""
    records: list[Any] = []
    errors: list[str | None] = []
    for value in values.to_pylist():
        record, error = None, None
        if value is not None:
            try:
                record = decode(value)
            except ValueError as refusal:
                error = _short(str(refusal))
        records.append(record)
        errors.append(error)
    try:
        array = pa.array(records, record_type)
    except _MISFITS:
        for index, record in enumerate(records):  # one of them does not fit: find out which
            try:
                pa.array([record], record_type)
            except UnicodeEncodeError:
                records[index], errors[index] = None, "it does not fit its schema: a text has half of a surrogate pair"
            except _MISFITS as misfit:
                records[index], errors[index] = None, _short(f"it does not fit its schema: {misfit}")
        array = pa.array(records, record_type)
    return pa.StructArray.from_arrays([array, pa.array(errors, pa.string())], ["record", "error"])


# What Arrow raises for a value that has no place in a type; text that is none is a ValueError of Python's.
_MISFITS = (pa.ArrowException, OverflowError, TypeError, ValueError)


def _short(reason: str) -> str:
    """A reason as it can be written down: some libraries put whole schemas into theirs."""
    cut = reason if len(reason) <= _REASON_CHARACTERS_MAX else reason[: _REASON_CHARACTERS_MAX - 1] + "…"
    return encodable(cut)


def repeated_string(text: str, count: int) -> Any:
    data = text.encode()
    ends = np.arange(0, (count + 1) * len(data), len(data) or 1, dtype=np.int32)[: count + 1]
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(data * count))


def _timestamps(columns: Columns, topic: str, partition: int) -> Any:
    """Milliseconds as microseconds; -1, which Kafka writes for none, is the millisecond before 1970, as in Java."""
    too_large = np.abs(columns.timestamps) > _MAX_MILLISECONDS
    if too_large.any():
        first = int(np.flatnonzero(too_large)[0])
        raise MalformedTimestamp(
            f"the record at {topic}-{partition} offset {columns.offsets[first]} has timestamp "
            f"{columns.timestamps[first]}, beyond what Spark can hold: producers must give milliseconds"
        )
    return pa.array(columns.timestamps * _MICROSECONDS).view(pa.timestamp("us", "UTC"))


def _headers(data: Data, headers: HeaderColumns, kind: Any) -> Any:
    """Null, not empty, where a record has none: as Spark's own source has it. Names that are not UTF-8 are mended."""
    names = binary_array(data, headers.names)
    try:
        texts = names.cast(pa.string())
    except pa.ArrowInvalid:
        texts = pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())
    pairs = pa.StructArray.from_arrays([texts, binary_array(data, headers.values)], fields=list(kind.value_type))
    present = np.diff(headers.offsets) > 0
    offsets = headers.offsets.astype(np.int32)
    validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(kind, len(present), [validity, pa.py_buffer(offsets)], children=[pairs])
