"""Values with the id of their schema, into columns and back.

A value begins with a zero byte and four bytes of id, as Confluent's serializers write it; Protobuf adds which message
of the file it is. Each is read with the schema it was written with, and resolved to the reader's: a field that the
reader does not know is left out, one that the writer did not have is null or has its default.

Invariant: an id is never guessed. One that nobody knows is an error of that record; its neighbours are not affected.
"""

from __future__ import annotations

import io
import json
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pyspark.sql import types as t

from moldau.spark.alarm import TooLong, alarm, limited
from moldau.spark.arrow_values import plain
from moldau.spark.avro_bytes import ExactBytes, refuse_endless
from moldau.spark.avro_unions import splitter
from moldau.spark.registry import types
from moldau.spark.registry.client import Registry, RegistryError, RegistrySettings, Schema, UnknownSchema, of_tasks
from moldau.spark.registry.protobuf_text import message_class, name_in_file
from moldau.spark.registry.written_values import avro_value, json_text

FORMATS = ("avro", "json", "protobuf")
KINDS = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}
_HEADER_BYTES = 5
_CHECK_SECONDS_MAX = 1.0


@dataclass(slots=True, frozen=True)
class ReaderSchema:
    """What a reader wants: picklable, so tasks get it as the driver found it."""

    format: str
    text: str
    references: Mapping[str, str]
    settings: RegistrySettings
    message: str = ""  # of a Protobuf schema, if it is not the first

    def spark_type(self) -> t.StructType:
        if self.format == "json":
            return types.of_json_schema(self.text, self.references)
        if self.format == "protobuf":
            return types.of_protobuf(self.protobuf())
        from moldau.spark.avro_types import record_schema

        return record_schema(json.dumps(_whole_avro(self.text, self.references)))

    def protobuf(self) -> Any:
        """The descriptor of the message that the columns are of."""
        return message_class(self.text, self.references, self.message or (0,)).DESCRIPTOR


def reader_schema(format_: str, settings: RegistrySettings, subject: str, message: str = "") -> ReaderSchema:
    """The newest schema of a subject; raises UnknownSchema or RegistryError."""
    found = Registry(settings).latest(subject)
    if found.kind != KINDS[format_]:
        raise RegistryError(f"subject {subject} has {found.kind} schemas: set the format to {found.kind.lower()}")
    return ReaderSchema(format_, found.text, found.references, settings, message)


def split(value: bytes) -> tuple[int, bytes]:
    """The id and what follows it."""
    if len(value) < _HEADER_BYTES or value[0] != 0:
        raise ValueError("no schema id: the value does not begin with a zero byte and four bytes of id")
    return int.from_bytes(value[1:_HEADER_BYTES], "big"), value[_HEADER_BYTES:]


class Decoder:
    """Reads values of one topic. Made once in each task."""

    def __init__(self, reader: ReaderSchema) -> None:
        self._reader = reader
        self._registry = of_tasks(reader.settings)
        self._writers: dict[int, Any] = {}
        self._type = reader.spark_type()
        self._avro_reader = self._message = self._split = None
        if reader.format == "avro":
            named: dict[str, Any] = {}
            self._avro_reader = _parsed_avro(reader.text, reader.references, named)
            self._split = splitter(self._avro_reader, named)
        if reader.format == "protobuf":
            self._message = reader.protobuf()

    def decode(self, value: bytes) -> dict[str, Any]:
        """The record; raises ValueError with the reason."""
        number, body = split(value)
        writer = self._writers.get(number)
        if writer is None:
            writer = self._writers[number] = self._writer(self._registry.schema(number))
        match self._reader.format:
            case "avro":
                return self._avro(writer, body)
            case "json":
                return _json(writer, body, self._type)
            case _:
                return _protobuf(writer, body, self._message)

    def _writer(self, schema: Schema) -> Any:
        if schema.kind != KINDS[self._reader.format]:
            raise ValueError(f"schema id {schema.id} is {schema.kind}, not {KINDS[self._reader.format]}")
        if schema.kind == "AVRO":
            writer = _parsed_avro(schema.text, schema.references)
            return writer, io.BytesIO if writer == self._avro_reader else ExactBytes
        if schema.kind == "JSON":
            return _validator(schema)
        return {(): schema}  # messages of the file are added as they come

    def _avro(self, schema: tuple[Any, type[io.BytesIO]], body: bytes) -> dict[str, Any]:
        from fastavro import schemaless_reader

        writer, stream_of = schema
        stream = stream_of(body)
        try:
            record = schemaless_reader(stream, writer, self._avro_reader, return_named_type=self._split is not None)
            if self._split is not None:
                record = self._split(record)
        except Exception as error:  # fastavro raises whatever the bytes lead to
            raise ValueError(f"not Avro of its schema: {type(error).__name__} {error}") from error
        if left := len(body) - stream.tell():
            raise ValueError(f"not Avro of its schema: {left} bytes are left over")
        if not isinstance(record, dict):
            raise ValueError("the Avro schema is not a record")  # noqa: TRY004  # of the value, like all others here
        found: dict[str, Any] = plain(record)
        return found


def _whole_avro(text: str, references: Mapping[str, str]) -> Any:
    """The schema with what it refers to written out."""
    from fastavro.schema import expand_schema

    return (
        expand_schema([*(json.loads(each) for each in references.values()), json.loads(text)])[-1]
        if references
        else json.loads(text)
    )


def _parsed_avro(text: str, references: Mapping[str, str], named: dict[str, Any] | None = None) -> Any:
    """`named` takes the types that have names."""
    from fastavro import parse_schema

    from moldau.spark.avro_types import without_times_of_day

    refuse_endless(*map(json.loads, (*references.values(), text)))
    named = {} if named is None else named
    for each in references.values():
        parse_schema(without_times_of_day(json.loads(each)), named_schemas=named)
    return parse_schema(without_times_of_day(json.loads(text)), named_schemas=named)


def _validator(schema: Schema) -> Any:
    import jsonschema
    from jsonschema.validators import validator_for
    from referencing import Registry as References
    from referencing import Resource
    from referencing.jsonschema import DRAFT7

    content = json.loads(schema.text)
    try:
        cls = validator_for(content, default=jsonschema.Draft7Validator)
        cls.check_schema(content)
    except jsonschema.SchemaError as error:
        raise ValueError(f"schema id {schema.id} is no JSON Schema: {error.message}") from None
    imported = {name: json.loads(text) for name, text in schema.references.items()}
    place = str(content.get("$id", "")) if isinstance(content, dict) else ""
    # Names count from where the schema says it is; a registry of our own also keeps the library off the network.
    resources = [
        (uri, Resource.from_contents(each, default_specification=DRAFT7))
        for name, each in imported.items()
        for uri in {name, urllib.parse.urljoin(place, name)}
    ]
    return cls(content, registry=References().with_resources(resources))


def _json(validator: Any, body: bytes, kind: t.StructType) -> dict[str, Any]:
    from referencing.exceptions import Unresolvable

    from moldau.spark.strict_json import strictly

    found = strictly(body)
    try:
        with alarm(), limited(_CHECK_SECONDS_MAX):  # a schema has patterns, and they are Python's
            broken = next(iter(validator.iter_errors(found)), None)
    except Unresolvable as error:
        raise ValueError(f"its JSON Schema refers to {error.ref!r}, which the registry has not") from None
    except RecursionError:
        raise ValueError("its JSON Schema refers to itself") from None
    except TooLong:
        raise ValueError(f"its JSON Schema needs more than {_CHECK_SECONDS_MAX:g} s for this value") from None
    if broken is not None:
        place = "/".join(map(str, broken.absolute_path))
        raise ValueError(f"not of its JSON Schema: {place + ': ' if place else ''}{broken.message[:300]}")
    if not isinstance(found, dict):
        raise ValueError("the value is no object")  # noqa: TRY004  # likewise
    record: dict[str, Any] = types.json_to_python(found, kind)
    return record


def _protobuf(writer: dict[tuple[int, ...], Any], body: bytes, wanted: Any) -> dict[str, Any]:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # it has no stubs

    path, at = _indexes(body)
    cls = writer.get(path)
    if cls is None:
        schema: Schema = writer[()]
        cls = writer[path] = message_class(schema.text, schema.references, path)
    if name_in_file(cls.DESCRIPTOR) != name_in_file(wanted):
        raise ValueError(f"the value is a {cls.DESCRIPTOR.full_name}, and the columns are those of {wanted.full_name}")
    try:
        message = cls.FromString(body[at:])
    except DecodeError as error:
        raise ValueError(f"not Protobuf of its schema: {error}") from None
    return types.protobuf_to_python(message, wanted)


def _indexes(body: bytes) -> tuple[tuple[int, ...], int]:
    """Which message of the file: the number of indexes and the indexes, zigzag; a zero alone is the first message."""
    count, at = _varint(body, 0)
    if count == 0:
        return (0,), at
    if not 0 < count < 100:
        raise ValueError(f"not Protobuf with message indexes: {count} of them")
    found = []
    for _ in range(count):
        index, at = _varint(body, at)
        found.append(index)
    return tuple(found), at


def _varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(body) and shift < 35:
        number |= (body[at] & 0x7F) << shift
        at += 1
        if not body[at - 1] & 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
    raise ValueError("not Protobuf with message indexes: the value ends too early")


def _newest_protobuf(registry: Registry, subject: str) -> Schema | None:
    try:
        found = registry.latest(subject)
    except UnknownSchema:
        return None
    if found.kind != KINDS["protobuf"]:
        raise RegistryError(f"subject {subject} has {found.kind} schemas: set the format to {found.kind.lower()}")
    return found


class Encoder:
    """Writes values of one topic, under a schema that is registered first."""

    def __init__(self, format_: str, settings: RegistrySettings, subject: str, schema: t.StructType) -> None:
        registry = of_tasks(settings)
        self._format = format_
        self._type = schema
        self._message: Any = None
        if format_ == "avro":
            text = types.to_avro(schema, types.avro_name(subject))
            self._avro = _parsed_avro(text, {})
        elif format_ == "json":
            text = types.to_json_schema(schema)
        else:
            from moldau.spark.registry.protobuf_values import FIRST_MESSAGE, schema_text

            known = _newest_protobuf(registry, subject)
            text = schema_text(schema, None if known is None else known.text, {} if known is None else known.references)
            is_new = known is None or text != known.text
            number = registry.register(subject, KINDS[format_], text) if is_new or known is None else known.id
            self._message = message_class(text, {} if is_new or known is None else known.references)
            self._header = b"\0" + number.to_bytes(4, "big") + FIRST_MESSAGE
            return
        self._header = b"\0" + registry.register(subject, KINDS[format_], text).to_bytes(4, "big")

    def encode(self, record: Mapping[str, Any]) -> bytes:
        if self._format == "json":
            return self._header + json_text(record, self._type).encode()
        if self._message is not None:
            from moldau.spark.registry.protobuf_values import fill

            message = self._message()
            fill(message, record)
            return self._header + bytes(message.SerializeToString())
        from fastavro import schemaless_writer

        stream = io.BytesIO()
        stream.write(self._header)
        schemaless_writer(stream, self._avro, avro_value(record, self._type))
        return stream.getvalue()


@lru_cache(maxsize=16)
def encoder_of_tasks(format_: str, settings: RegistrySettings, subject: str, schema: str) -> Encoder:
    """The one of all tasks of this process: the registry is asked once, and not for every batch. `schema` is JSON."""
    return Encoder(format_, settings, subject, t.StructType.fromJson(json.loads(schema)))
