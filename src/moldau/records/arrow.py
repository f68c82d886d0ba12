"""Columns as Arrow arrays, with no Python work per record.

An Arrow binary array wants its values side by side, and ours have record headers between them. So a first array is
laid over the data as it is, in which every other element is a value and the elements between are the gaps; taking
every other one then copies the values together inside Arrow.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from moldau.records.columns import BinaryColumn, Columns, Data, HeaderColumns

ArrowArray = Any  # pyarrow has no type stubs
_MAX_INT32 = 2**31 - 1


def to_arrow(columns: Columns) -> Any:
    """A pyarrow.RecordBatch: offset, timestamp (ms, UTC), timestamp_type, key, value, and headers if they were read.

    Header names are binary: Kafka means UTF-8, but does not check.
    """
    arrays = {
        "offset": pa.array(columns.offsets),
        "timestamp": pa.array(columns.timestamps).view(pa.timestamp("ms", "UTC")),
        "timestamp_type": pa.array(columns.timestamp_types),
        "key": binary_array(columns.data, columns.keys),
        "value": binary_array(columns.data, columns.values),
    }
    if columns.headers is not None:
        arrays["headers"] = headers_array(columns.data, columns.headers)
    return pa.RecordBatch.from_pydict(arrays)


def binary_array(data: Data, column: BinaryColumn) -> ArrowArray:
    """The column as pyarrow.binary(), or large_binary() if the data exceeds what 32-bit offsets reach."""
    count = len(column.starts)
    large = len(data) > _MAX_INT32
    if not count:
        return pa.array([], pa.large_binary() if large else pa.binary())
    borders = np.empty(2 * count, np.int64 if large else np.int32)
    borders[0::2] = column.starts
    borders[1::2] = column.starts + np.maximum(column.lengths, 0)
    laid_over = pa.Array.from_buffers(
        pa.large_binary() if large else pa.binary(),
        2 * count - 1,
        [None, pa.py_buffer(borders), pa.py_buffer(data)],
    )
    values = laid_over.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int64)))
    present = column.lengths >= 0
    if present.all():
        return values
    validity = pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(values.type, count, [validity, *values.buffers()[1:]])


def headers_array(data: Data, headers: HeaderColumns) -> ArrowArray:
    """list<struct<key: binary, value: binary>>, one list per record."""
    pairs = pa.StructArray.from_arrays(
        [binary_array(data, headers.names), binary_array(data, headers.values)], names=["key", "value"]
    )
    return pa.ListArray.from_arrays(pa.array(headers.offsets.astype(np.int32)), pairs)
