"""What is wrong with a line of CSV, in words, for the few lines that are wrong."""

from __future__ import annotations

import csv
import io
import re

from pyspark.sql import types as t

from moldau.spark.strict_json import shortened

_BITS: dict[type[t.DataType], int] = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")


def explain(value: bytes | None, schema: t.StructType, separator: str) -> str:
    if value is None:
        return "the record has no value"
    try:
        rows = list(csv.reader(io.StringIO(value.decode()), delimiter=separator[:1] or ","))
    except UnicodeDecodeError as error:
        return f"not UTF-8 text: byte {error.start} is 0x{value[error.start]:02x}"
    except csv.Error as error:
        return f"not CSV: {error}"
    if len(rows) != 1:
        return f"not a line of CSV: {len(rows)} lines"
    if len(rows[0]) != len(schema.fields):
        return f"not CSV of this schema: {len(rows[0])} columns, expected {len(schema.fields)}"
    for field, text in zip(schema.fields, rows[0], strict=True):
        if text and not _fits(text, field.dataType):
            return f"field {field.name}: expected {field.dataType.simpleString()}, found {shortened(repr(text))}"
    return "it does not fit the schema"


def _fits(text: str, data_type: t.DataType) -> bool:
    bits = _BITS.get(type(data_type))
    if bits is not None:
        return _WHOLE.fullmatch(text) is not None and -(1 << bits - 1) <= int(text) < 1 << bits - 1
    if isinstance(data_type, t.FloatType | t.DoubleType | t.DecimalType):
        try:
            float(text)
        except ValueError:
            return False
        return True
    if isinstance(data_type, t.BooleanType):
        return text.lower() in ("true", "false")
    # Times depend on Spark's options; the line was told to be bad, so the first of them is the likely cause.
    return isinstance(data_type, t.StringType)
