"""JSON in Python, for the two places where speed does not matter: finding a schema, and saying what is wrong.

Spark parses the stream itself, in the JVM, and tells only that a record is bad. The few bad ones come here for the
reason.

Invariant: whatever the bytes are, there is a reason, and it can be written as UTF-8.
"""

from __future__ import annotations

import codecs
import datetime
import decimal
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import types as t

from moldau.spark.strict_json import NotStrict, encodable, parse, shown, without_doubles

_DOUBLE_MAX = sys.float_info.max
_FLOAT_MAX = 3.4028235e38
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # of the years 1 and 9999
# What Spark's reader of JSON takes at most.
_DIGITS_MAX = 1_000
_NAME_CHARACTERS_MAX = 50_000
_TEXT_CHARACTERS_MAX = 20_000_000
_WHOLE: dict[type[t.DataType], int] = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}


def explain(value: bytes | None, schema: t.StructType, *, strict: bool = True) -> str:
    """Why a value is not an object of this schema; the first reason found."""
    if value is None:
        return "the record has no value"
    try:
        document = parse(value, _float) if strict else json.loads(value.decode(), parse_float=_float)
        return encodable(_reason(document, schema, strict=strict))
    except UnicodeDecodeError as error:
        return f"not UTF-8 text: byte {error.start} is 0x{value[error.start]:02x}"
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        if value.startswith(codecs.BOM_UTF8):
            return "not JSON: it begins with a byte order mark"
        if error.msg == "Extra data":
            return f"not JSON: the value goes on after its end, at {place}"
        return f"not JSON: {error.msg.removesuffix(' at')} at {place}"
    except NotStrict as error:
        return encodable(f"not JSON: {error}")
    except RecursionError:
        return "not JSON: nested too deeply"
    except ValueError:  # Python's limit for whole numbers, which is beyond Spark's, and ours for others
        return _TOO_MANY_DIGITS


def _float(text: str) -> float:
    if sum(map(str.isdigit, text)) > _DIGITS_MAX:
        raise ValueError(_TOO_MANY_DIGITS)
    return float(text)


def _reason(document: Any, schema: t.StructType, *, strict: bool) -> str:
    if document is None:
        return "the value: expected an object, found null"
    # What is certain first: whether a time can be read depends on Spark's options.
    return (
        _misfit(document, schema, "", _fits_surely)
        or _unreadable(document, strict=strict)
        or _misfit(document, schema, "", _fits)
        or "it does not fit the schema"
    )


_TOO_MANY_DIGITS = f"not JSON: a number has more than {_DIGITS_MAX:,} digits, and Spark reads no more"


def _unreadable(document: Any, *, strict: bool) -> str | None:
    """What no schema can help: Spark's own limits, and text that is none."""
    left = [document]
    while left:
        match left.pop():
            case dict() as found:
                if any(len(name) > _NAME_CHARACTERS_MAX for name in found):
                    return f"not JSON: a key has more than {_NAME_CHARACTERS_MAX:,} characters, and Spark reads no more"
                left += [*found, *found.values()]
            case list() as found:
                left += found
            case str() as found:
                if len(found) > _TEXT_CHARACTERS_MAX:
                    return f"not JSON: a text has {len(found):,} characters, and Spark reads {_TEXT_CHARACTERS_MAX:,}"
                if strict and not _is_text(found):
                    return f"not JSON: {shown(found)} has half of a surrogate pair"
            case int() as found if abs(found) >= 10**_DIGITS_MAX:
                return _TOO_MANY_DIGITS
            case _:
                pass
    return None


def _is_text(found: str) -> bool:
    try:
        found.encode()
    except UnicodeEncodeError:
        return False
    return True


Fits = Callable[[Any, t.DataType], bool]


def _misfit(value: Any, data_type: t.DataType, path: str, fits: Fits) -> str | None:
    """What of a value does not fit a type, as Spark's JSON reader sees it; None if it fits."""
    at = f"field {path}" if path else "the value"
    if value is None or isinstance(data_type, t.StringType):
        return None
    if isinstance(data_type, t.StructType):
        if not isinstance(value, dict):
            return f"{at}: expected an object, found {shown(value)}"
        for field in data_type.fields:
            inner = f"{path}.{field.name}" if path else field.name
            found = _misfit(value.get(field.name), field.dataType, inner, fits)
            if found:
                return found
        return None
    if isinstance(data_type, t.ArrayType):
        if not isinstance(value, list):
            return f"{at}: expected an array, found {shown(value)}"
        return next(
            (
                bad
                for i, each in enumerate(value)
                if (bad := _misfit(each, data_type.elementType, f"{path}[{i}]", fits))
            ),
            None,
        )
    if isinstance(data_type, t.MapType):
        if not isinstance(value, dict):
            return f"{at}: expected an object, found {shown(value)}"
        return next(
            (bad for key, each in value.items() if (bad := _misfit(each, data_type.valueType, f"{path}.{key}", fits))),
            None,
        )
    if fits(value, data_type):
        return None
    if isinstance(value, int) and isinstance(data_type, t.TimestampType) and not isinstance(value, bool):
        return f"{at}: {shown(value)} seconds are no time between the years 1 and {datetime.MAXYEAR}"
    if isinstance(value, int | float) and not isinstance(value, bool) and _is_too_large(value, data_type):
        return f"{at}: {shown(value)} is too large for {data_type.simpleString()}"
    return f"{at}: expected {data_type.simpleString()}, found {shown(value)}"


def _fits_surely(value: Any, data_type: t.DataType) -> bool:
    """As `_fits`, but what only Spark's options tell is taken to fit."""
    if isinstance(data_type, t.TimestampType | t.TimestampNTZType | t.DateType | t.BinaryType):
        return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))
    return _fits(value, data_type)


def _fits(value: Any, data_type: t.DataType) -> bool:
    if isinstance(data_type, t.BooleanType):
        return isinstance(value, bool)
    bits = _WHOLE.get(type(data_type))
    if bits is not None:
        return isinstance(value, int) and not isinstance(value, bool) and -(1 << bits - 1) <= value < 1 << bits - 1
    if isinstance(data_type, t.DoubleType | t.FloatType):
        return isinstance(value, int | float) and not isinstance(value, bool) and not _is_too_large(value, data_type)
    if isinstance(data_type, t.DecimalType):
        is_number = isinstance(value, int | float | str) and not isinstance(value, bool)
        return is_number and _is_decimal(value, data_type)
    if isinstance(data_type, t.TimestampType | t.TimestampNTZType | t.DateType) and isinstance(value, str):
        return _is_time(value)
    if isinstance(data_type, t.TimestampType) and isinstance(value, int) and not isinstance(value, bool):
        return _FIRST_SECOND <= value <= _LAST_SECOND
    # Binary, and other times as numbers: it was told to be bad, so it is.
    return False


def _is_too_large(value: float, data_type: t.DataType) -> bool:
    if isinstance(data_type, t.DoubleType | t.FloatType):
        limit = _DOUBLE_MAX if isinstance(data_type, t.DoubleType) else _FLOAT_MAX
        return abs(value) > limit
    if isinstance(data_type, t.DecimalType):
        return not _is_decimal(value, data_type)
    bits = _WHOLE.get(type(data_type))
    return bits is not None and isinstance(value, int) and not -(1 << bits - 1) <= value < 1 << bits - 1


def _is_time(text: str) -> bool:
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _is_decimal(value: float | str, data_type: t.DecimalType) -> bool:
    """A number, also as text, that has a place in the type when it is rounded to its scale."""
    try:
        number = decimal.Decimal(str(value))
    except decimal.InvalidOperation:
        return False
    half = decimal.Decimal(5).scaleb(-data_type.scale - 1)
    return number.is_finite() and abs(number) < decimal.Decimal(10) ** (data_type.precision - data_type.scale) - half


# ---- schemas --------------------------------------------------------------------------------------------------------


def infer_schema(values: Iterable[bytes | None]) -> t.StructType | None:
    """The schema of a sample: every field that occurs, with the narrowest type that holds all its values."""
    found: t.DataType | None = None
    for value in values:
        try:
            document = json.loads(value, object_pairs_hook=without_doubles) if value else None
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            found = _merged(found, _type_of(document))
    return found if isinstance(found, t.StructType) and found.fields else None


def _type_of(value: Any) -> t.DataType | None:
    match value:
        case None:
            return None
        case bool():
            return t.BooleanType()
        case int():
            return t.LongType() if -(1 << 63) <= value < 1 << 63 else t.StringType()
        case float():
            return t.DoubleType()
        case list():
            element: t.DataType | None = None
            for each in value:
                element = _merged(element, _type_of(each))
            return t.ArrayType(t.NullType() if element is None else element)
        case dict():
            return t.StructType([t.StructField(name, _known(_type_of(each))) for name, each in value.items() if name])
        case _:
            return t.StringType()


def _known(found: t.DataType | None) -> t.DataType:
    """An empty struct is false, so `or` would lose it."""
    return t.NullType() if found is None else found


def _merged(one: t.DataType | None, other: t.DataType | None) -> t.DataType | None:
    if one is None or isinstance(one, t.NullType):
        return other
    if other is None or isinstance(other, t.NullType) or one == other:
        return one
    if isinstance(one, t.StructType) and isinstance(other, t.StructType):
        fields = {field.name: field.dataType for field in one.fields}
        for field in other.fields:
            fields[field.name] = _known(_merged(fields.get(field.name), field.dataType))
        return t.StructType([t.StructField(name, each) for name, each in fields.items()])
    if isinstance(one, t.ArrayType) and isinstance(other, t.ArrayType):
        return t.ArrayType(_known(_merged(one.elementType, other.elementType)))
    if {type(one), type(other)} == {t.LongType, t.DoubleType}:
        return t.DoubleType()
    return t.StringType()


def without_nulls(schema: t.StructType) -> t.StructType:
    """Fields that were null in the whole sample become text: Spark has no column of type null to fill later."""

    def fixed(data_type: t.DataType) -> t.DataType:
        if isinstance(data_type, t.NullType):
            return t.StringType()
        if isinstance(data_type, t.StructType):
            return without_nulls(data_type) if data_type.fields else t.MapType(t.StringType(), t.StringType())
        if isinstance(data_type, t.ArrayType):
            return t.ArrayType(fixed(data_type.elementType))
        return data_type

    return t.StructType([t.StructField(field.name, fixed(field.dataType)) for field in schema.fields])
