"""What is wrong with a line of CSV, in words, for the few lines that are wrong."""

from __future__ import annotations

import csv
import io

from pyspark.sql import types as t

_NUMBERS = (t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.FloatType, t.DoubleType, t.DecimalType)


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
            return f"field {field.name}: expected {field.dataType.simpleString()}, found {text!r}"
    return "it does not fit the schema"


def _fits(text: str, data_type: t.DataType) -> bool:
    if isinstance(data_type, _NUMBERS):
        whole = not isinstance(data_type, t.FloatType | t.DoubleType | t.DecimalType)
        try:
            int(text) if whole else float(text)
        except ValueError:
            return False
        return True
    if isinstance(data_type, t.BooleanType):
        return text.lower() in ("true", "false")
    # Times depend on Spark's options; the line was told to be bad, so the first of them is the likely cause.
    return isinstance(data_type, t.StringType)
