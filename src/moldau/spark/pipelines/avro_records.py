"""Avro values into columns, with fastavro, one Arrow batch at a time.

A value is a bare record, or, with Confluent's header, a zero byte and the id of the schema it was written with. The
schemas of ids are named in the pipeline, and resolved to the reader's; an id that is not named is an error, because to
guess would be to read nonsense. Where there is a registry, `format: registry` asks it.

Invariant: a value that cannot be read gives its reason and nothing else; its neighbours are not affected.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from typing import Any

from moldau.spark.avro_bytes import ExactBytes, refuse_endless
from moldau.spark.avro_unions import splitter

_HEADER_BYTES = 5


def schema_text(schema: str, folder: str) -> str:
    """The schema itself, or the content of the file it names."""
    if schema.lstrip().startswith(("{", "[", '"')):
        return schema
    with open(os.path.join(folder, schema), encoding="utf-8") as file:
        return file.read()


class Decoder:
    """Decodes values of one topic. Made once in each task."""

    def __init__(self, reader: str, writers: Mapping[int, str], confluent_header: bool) -> None:
        from fastavro import parse_schema

        from moldau.spark.avro_types import without_times_of_day

        named: dict[str, Any] = {}

        def parsed(text: str, named: dict[str, Any] | None = None) -> Any:
            refuse_endless(json.loads(text))
            return parse_schema(without_times_of_day(json.loads(text)), named_schemas=named)

        self._reader: Any = parsed(reader, named)
        self._split = splitter(self._reader, named)
        self._writers: dict[int, Any] = {number: parsed(text) for number, text in writers.items()}
        self._header = confluent_header

    def decode(self, value: bytes) -> dict[str, Any]:
        """The record; raises ValueError with the reason."""
        from fastavro import schemaless_reader

        writer, body = self._reader, io.BytesIO(value) if not self._header else ExactBytes(value)
        if self._header:
            if len(value) < _HEADER_BYTES or value[0] != 0:
                raise ValueError("no schema id: the value does not begin with a zero byte and four bytes of id")
            number = int.from_bytes(value[1:_HEADER_BYTES], "big")
            if number not in self._writers:
                told = "name it under writer_schemas, or use a registry (format: registry)"
                raise ValueError(f"schema id {number} is not known: {told}")
            writer = self._writers[number]
            body.seek(_HEADER_BYTES)
        try:
            reader = None if writer is self._reader else self._reader
            record = schemaless_reader(body, writer, reader, return_named_type=self._split is not None)
            if self._split is not None:
                record = self._split(record)
        except Exception as error:  # fastavro raises whatever the bytes lead to
            raise ValueError(f"not Avro of this schema: {type(error).__name__} {error}") from error
        left = len(value) - body.tell()
        if left:
            raise ValueError(f"not Avro of this schema: {left} bytes are left over")
        if not isinstance(record, dict):
            raise ValueError("not Avro of this schema: it is no record")  # noqa: TRY004  the bytes are wrong, not a type
        return record
