"""Numbers of JSON that are too large for their column, and that Spark's reader passes on as something else.

    double, float      become infinite
    tinyint            128 to 255 become negative: bytes without a sign
    timestamp          seconds are multiplied, and what is too large for microseconds begins again at the other end

Times before the year 1 or after the year 9999, which milliseconds taken for seconds give, are refused too: neither
Python nor databases can hold them, so they would stop whoever reads them.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

_FIRST_MICROSECOND, _LAST_MICROSECOND = -62_135_596_800_000_000, 253_402_300_799_999_999
_YEAR_MAX = 9_999
_BYTE_MIN, _BYTE_MAX = -128, 127
# Seconds that may come round to a time that looks right have so many digits.
_DIGITS = 14
# What is wrong with a value of this type; None if nothing can be.
Leaf = Callable[[Column, t.DataType], Column | None]


def roomy(schema: t.StructType) -> t.StructType:
    """The schema to read with: the smallest numbers with room for what does not fit them."""
    return _with(schema, t.ByteType, t.ShortType())


def nullable(schema: t.StructType) -> t.StructType:
    """The same, with nulls wherever Spark's reader may leave them: it keeps no NOT NULL, so none can be cast to."""
    return _with(schema, t.ByteType, t.ByteType())


def beyond(read: Column, schema: t.StructType, text: Column) -> Column:
    """Whether a number of `text`, which was read with the roomy schema, is too large for its type."""
    found = _some(read, schema, _is_beyond)
    if _some(read, schema, _is_turned) is not None:
        # As text: of an array or map that has texts and numbers, a reader of numbers would leave nothing.
        seconds = f.from_json(text, _with(schema, t.TimestampType, t.StringType()))
        turned = _some(seconds, schema, _is_turned)
        suspected = f.when(text.rlike(f"[0-9]{{{_DIGITS}}}"), turned).otherwise(f.lit(False))
        found = suspected if found is None else found | suspected
    return f.lit(False) if found is None else f.coalesce(found, f.lit(False))


def _is_beyond(value: Column, kind: t.DataType) -> Column | None:
    match kind:
        case t.DoubleType() | t.FloatType():
            return f.abs(value) == f.lit(float("inf"))
        case t.ByteType():
            return ~value.between(_BYTE_MIN, _BYTE_MAX)
        case t.TimestampType():
            return ~f.unix_micros(value).between(_FIRST_MICROSECOND, _LAST_MICROSECOND)
        case t.TimestampNTZType() | t.DateType():
            return ~f.year(value).between(1, _YEAR_MAX)
        case _:
            return None


def _is_turned(value: Column, kind: t.DataType) -> Column | None:
    return value.rlike(f"^-?[0-9]{{{_DIGITS},}}$") if isinstance(kind, t.TimestampType) else None


def _some(column: Column, data_type: t.DataType, leaf: Leaf) -> Column | None:
    """Whether it holds for any value in a nested one; None if there is no such type in it."""
    match data_type:
        case t.StructType():
            inner = (_some(column.getField(each.name), each.dataType, leaf) for each in data_type.fields)
            found = [each for each in inner if each is not None]
            return _any(found) if found else None
        case t.ArrayType():
            element = data_type.elementType
            if _some(f.lit(None), element, leaf) is None:
                return None
            return f.coalesce(f.exists(column, lambda each: _certainly(_some(each, element, leaf))), f.lit(False))
        case t.MapType():
            return _some(f.map_values(column), t.ArrayType(data_type.valueType), leaf)
        case _:
            found_here = leaf(column, data_type)
            return None if found_here is None else f.coalesce(found_here, f.lit(False))


def _certainly(found: Column | None) -> Column:
    assert found is not None
    return found


def _any(found: list[Column]) -> Column:
    either = found[0]
    for each in found[1:]:
        either = either | each
    return either


def _replaced(data_type: t.DataType, old: type[t.DataType], new: t.DataType) -> t.DataType:
    match data_type:
        case t.StructType():
            return _with(data_type, old, new)
        case t.ArrayType():
            return t.ArrayType(_replaced(data_type.elementType, old, new))
        case t.MapType():
            return t.MapType(data_type.keyType, _replaced(data_type.valueType, old, new))
        case _:
            return new if isinstance(data_type, old) else data_type


def _with(schema: t.StructType, old: type[t.DataType], new: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(each.name, _replaced(each.dataType, old, new)) for each in schema.fields])
