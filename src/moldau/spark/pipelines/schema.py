"""Schemas as people write them (`id bigint not null, tags array<string>`) into Spark's types.

Spark's own parser lives in the JVM; this one runs before any JVM starts, so that a wrong type is an error with a line.
It accepts what Spark's DDL accepts for columns: primitive types and their synonyms, decimal(p,s), array, map, struct,
NOT NULL, backticked names.
"""

from __future__ import annotations

import re

from pyspark.sql import types as t

from moldau.spark.avro_types import SchemaError
from moldau.spark.suggestions import did_you_mean

_PRIMITIVES: dict[str, t.DataType] = {
    "boolean": t.BooleanType(),
    "tinyint": t.ByteType(),
    "byte": t.ByteType(),
    "smallint": t.ShortType(),
    "short": t.ShortType(),
    "int": t.IntegerType(),
    "integer": t.IntegerType(),
    "bigint": t.LongType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "real": t.FloatType(),
    "double": t.DoubleType(),
    "string": t.StringType(),
    "binary": t.BinaryType(),
    "date": t.DateType(),
    "timestamp": t.TimestampType(),
    "timestamp_ntz": t.TimestampNTZType(),
}
_OTHERS = ("decimal(p,s)", "array<…>", "map<…,…>", "struct<name:type,…>")
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([A-Za-z_][\w$-]*)|(\d+)|([<>(),:]))")


# What other systems call them.
_ELSEWHERE = {
    "datetime": "timestamp",
    "timestamptz": "timestamp",
    "text": "string",
    "str": "string",
    "varchar": "string",
    "char": "string",
    "uuid": "string",
    "json": "string",
    "bool": "boolean",
    "bytes": "binary",
    "number": "double",
    "money": "decimal(12,2)",
    "int64": "bigint",
    "int32": "int",
    "list": "array<…>",
    "object": "struct<name:type,…>",
}


def _elsewhere(name: str) -> str:
    return f"write {_ELSEWHERE[name]!r}" if name in _ELSEWHERE else ""


class _Parser:
    """Recursive descent over the tokens of one schema."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        self.names: list[bool] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise SchemaError(f"cannot read {text[position:].strip()!r} in a schema; write `name type, name type`")
            token = next(group for group in match.groups() if group is not None)
            self.tokens.append(token if match[1] is None else token.replace("``", "`"))
            self.names.append(match[1] is not None or match[2] is not None)
            position = match.end()
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def expect(self, token: str) -> None:
        found = self.take()
        if found != token:
            raise SchemaError(f"expected {token!r} but found {found or 'the end'!r} in a schema")

    def columns(self, end: str) -> t.StructType:
        fields: list[t.StructField] = []
        while True:
            if self.at >= len(self.tokens) or not self.names[self.at]:
                raise SchemaError(f"expected a column name but found {self.peek() or 'the end'!r} in a schema")
            name = self.take()
            if self.peek() == ":":
                self.take()
            if self.peek() in ("", ",", end):
                raise SchemaError(f"column {name!r} has no type; write `{name} string`, for example")
            data_type = self.type()
            nullable = True
            if self.peek().lower() == "not":
                self.take()
                self.expect("null" if self.peek() != "NULL" else "NULL")
                nullable = False
            if any(each.name == name for each in fields):
                raise SchemaError(f"column {name!r} stands in the schema twice")
            fields.append(t.StructField(name, data_type, nullable))
            if self.peek() != ",":
                return t.StructType(fields)
            self.take()

    def type(self) -> t.DataType:
        word = self.take()
        name = word.lower()
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        if name == "array":
            self.expect("<")
            element = self.type()
            self.expect(">")
            return t.ArrayType(element)
        if name == "map":
            self.expect("<")
            key = self.type()
            self.expect(",")
            value = self.type()
            self.expect(">")
            return t.MapType(key, value)
        if name == "struct":
            self.expect("<")
            inner = self.columns(">")
            self.expect(">")
            return inner
        raise SchemaError(f"unknown type {word!r}; {_elsewhere(name) or did_you_mean(name, [*_PRIMITIVES, *_OTHERS])}")

    def _decimal(self) -> t.DecimalType:
        if self.peek() != "(":
            return t.DecimalType(10, 0)
        self.take()
        precision, scale = self.take(), "0"
        if self.peek() == ",":
            self.take()
            scale = self.take()
        self.expect(")")
        if not (precision.isdecimal() and scale.isdecimal() and int(scale) <= int(precision) <= 38):
            raise SchemaError(f"decimal({precision},{scale}) is not possible; at most 38 digits, scale within them")
        return t.DecimalType(int(precision), int(scale))


def parse_schema(text: str) -> t.StructType:
    parser = _Parser(text)
    if not parser.tokens:
        raise SchemaError("the schema is empty; write `name type, name type`")
    found = parser.columns("")
    if parser.peek():
        raise SchemaError(f"expected ',' but found {parser.peek()!r} in a schema")
    return found


def parse_type(text: str) -> t.DataType:
    parser = _Parser(text)
    if not parser.tokens:
        raise SchemaError("the type is empty; write `bigint`, for example")
    found = parser.type()
    if parser.peek():
        raise SchemaError(f"unexpected {parser.peek()!r} after the type")
    return found


def schema_text(kind: t.DataType) -> str:
    """The type as `parse_type` reads it: Spark's own text leaves names as they are, whatever is in them."""
    match kind:
        case t.StructType():
            inner = ", ".join(f"{_name_text(each.name)}: {schema_text(each.dataType)}" for each in kind.fields)
            return f"struct<{inner}>"
        case t.ArrayType():
            return f"array<{schema_text(kind.elementType)}>"
        case t.MapType():
            return f"map<{schema_text(kind.keyType)}, {schema_text(kind.valueType)}>"
        case _:
            return kind.simpleString()


def _name_text(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "`{}`".format(name.replace("`", "``"))
