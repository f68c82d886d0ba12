"""Bytes of a record as something people can read: JSON, Avro, Protobuf, text, or hexadecimal.

Nothing that is decoded is ever run, and nothing makes a request of its own choosing: a schema comes from the registry
the console was started with, by its number. Whatever the bytes are, the end is a `Decoded`.
"""

from __future__ import annotations

import base64
import io
import json
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from moldau.console.messages.text import is_printable, visible

if TYPE_CHECKING:
    from moldau.console.messages.registry import RegistryReader

FORMATS = ("auto", "json", "avro", "protobuf", "text", "hex")
PARSED_BYTES_MAX = 4 << 20  # larger values are shown as they are
_HEX_BYTES_MAX = 64 << 10
_DEPTH_MAX = 64
_FIELDS_MAX = 5_000
_MAGIC = 0


@dataclass(slots=True, frozen=True)
class Decoded:
    kind: str  # null, json, avro, protobuf, text, hex, masked
    tree: Any  # what fields can be taken from; None if there are none
    text: str
    note: str = ""
    has_names: bool = True  # False where fields are told apart by guessing: rules about names do not find them

    @property
    def has_fields(self) -> bool:
        return self.kind in ("json", "avro", "protobuf")


NULL = Decoded("null", None, "null")


def decode(data: bytes | None, wanted: str = "auto", registry: RegistryReader | None = None) -> Decoded:
    """May ask the registry, so it belongs into a worker thread."""
    if data is None:
        return NULL
    if wanted == "hex":
        return _hex(data)
    if wanted == "text":
        return Decoded("text", None, data[:PARSED_BYTES_MAX].decode("utf-8", "replace"), _cut_note(data))
    if wanted in ("avro", "protobuf", "auto") and registry is not None and len(data) > 5 and data[0] == _MAGIC:
        found = _framed(data, registry)
        if found is not None:
            return found
    if wanted == "protobuf":
        return _raw_protobuf(data)
    if wanted == "avro":
        why = "no registry was given (--schema-registry)" if registry is None else "no schema id is at its beginning"
        return replace(_hex(data), note=f"not decoded as Avro: {why}")
    parsed = _json(data)
    if parsed is not None:
        return parsed
    if wanted == "json":
        return replace(_text_or_hex(data), note="this is no JSON")
    return _text_or_hex(data)


def _cut_note(data: bytes) -> str:
    return f"only the first {PARSED_BYTES_MAX >> 20} MiB are shown" if len(data) > PARSED_BYTES_MAX else ""


def _json(data: bytes) -> Decoded | None:
    if len(data) > PARSED_BYTES_MAX or data[:64].lstrip()[:1] not in b'{["-0123456789tfn' or not data.strip():
        return None
    try:
        tree = json.loads(data)
        return Decoded("json", tree, pretty(tree))
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None


def pretty(tree: Any) -> str:
    return json.dumps(tree, indent=2, ensure_ascii=False, default=_plain)


def compact(tree: Any) -> str:
    return json.dumps(tree, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """What Avro has and JSON does not."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return str(value)


def _text_or_hex(data: bytes) -> Decoded:
    try:
        text = data[:PARSED_BYTES_MAX].decode("utf-8", "strict" if len(data) <= PARSED_BYTES_MAX else "ignore")
    except UnicodeDecodeError:
        return _hex(data)
    return Decoded("text", None, text, _cut_note(data)) if is_printable(text) else _hex(data)


def _hex(data: bytes) -> Decoded:
    """As `hexdump -C` writes it."""
    lines = []
    for start in range(0, min(len(data), _HEX_BYTES_MAX), 16):
        row = data[start : start + 16]
        left = " ".join(f"{byte:02x}" for byte in row)
        right = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {left:<47}  {right}")
    note = f"only the first {_HEX_BYTES_MAX >> 10} KiB are shown" if len(data) > _HEX_BYTES_MAX else ""
    return Decoded("hex", None, "\n".join(lines), note)


# ---- schemas --------------------------------------------------------------------------------------------------------


def _framed(data: bytes, registry: RegistryReader) -> Decoded | None:
    """Confluent's wire format, if the registry knows the schema."""
    schema_id = int.from_bytes(data[1:5], "big")
    schema = registry.schema(schema_id)
    if schema is None:
        return None
    try:
        if schema.type == "AVRO":
            return _avro(data[5:], schema.text, schema_id)
        if schema.type == "PROTOBUF":
            return _protobuf(data[5:], registry.descriptor(schema_id), schema_id)
        found = _json(data[5:])
        return replace(found, note=f"schema {schema_id}") if found is not None else None
    except Exception as error:  # damaged bytes end in any of a dozen exceptions of three libraries
        return replace(_hex(data), note=f"schema {schema_id} does not fit: {visible(str(error))[:200]}")


def _avro(payload: bytes, text: str, schema_id: int) -> Decoded:
    try:
        import fastavro
    except ImportError:
        return replace(_hex(payload), note="Avro needs fastavro: pip install 'moldau[avro]'")
    schema = fastavro.parse_schema(json.loads(text))
    tree = fastavro.schemaless_reader(io.BytesIO(payload), schema, None)
    return Decoded("avro", tree, pretty(tree), f"schema {schema_id}")


def _protobuf(payload: bytes, descriptor: bytes | None, schema_id: int) -> Decoded:
    indexes, payload = _message_indexes(payload)
    if descriptor is None:
        return replace(_raw_protobuf(payload), note=f"schema {schema_id} has no descriptor: fields by number")
    try:
        from google.protobuf import (  # type: ignore[import-untyped]  # it brings no types
            descriptor_pb2,
            descriptor_pool,
            json_format,
            message_factory,
        )
    except ImportError:
        return replace(_raw_protobuf(payload), note="names of fields need protobuf: pip install protobuf")
    file = descriptor_pb2.FileDescriptorProto.FromString(descriptor)
    pool = descriptor_pool.DescriptorPool()
    for name in file.dependency:
        known = descriptor_pool.Default().FindFileByName(name)
        pool.AddSerializedFile(known.serialized_pb)
    pool.AddSerializedFile(descriptor)
    message = list(pool.FindFileByName(file.name).message_types_by_name.values())[indexes[0]]
    for index in indexes[1:]:
        message = message.nested_types[index]
    found = message_factory.GetMessageClass(message).FromString(payload)
    tree = json_format.MessageToDict(found, preserving_proto_field_name=True)
    return Decoded("protobuf", tree, pretty(tree), f"schema {schema_id}, message {message.full_name}")


def _message_indexes(data: bytes) -> tuple[list[int], bytes]:
    """Which message of its file it is: a list of zigzag numbers, whose short form for [0] is a zero."""
    count, position = _varint(data, 0)
    count = (count >> 1) ^ -(count & 1)
    if count == 0:
        return [0], data[position:]
    if not 0 < count <= _DEPTH_MAX:
        raise ValueError("the message's place in its file makes no sense")
    found = []
    for _ in range(count):
        number, position = _varint(data, position)
        found.append((number >> 1) ^ -(number & 1))
    return found, data[position:]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError("a number is cut off")
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return number, position
        shift += 7


def _raw_protobuf(data: bytes) -> Decoded:
    """Without a schema: fields by their number, and the likeliest reading of each."""
    try:
        tree = _raw_fields(data[:PARSED_BYTES_MAX], _Room(_FIELDS_MAX), 0)
    except ValueError as error:
        return replace(_text_or_hex(data), note=f"this is no Protobuf message: {error}")
    return Decoded("protobuf", tree, pretty(tree), "no schema: fields by number", has_names=False)


class _Room:
    """How many fields may still be read: nesting must not multiply work."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise ValueError("too many fields")


def _raw_fields(data: bytes, room: _Room, depth: int) -> dict[str, Any]:
    if depth > 16:
        raise ValueError("too deep")
    found: dict[str, Any] = {}
    position = 0
    while position < len(data):
        room.take()
        tag, position = _varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        value: Any
        if number == 0:
            raise ValueError("a field has number 0")
        if wire_type == 0:
            value, position = _varint(data, position)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
            if position + size > len(data):
                raise ValueError("a field is cut off")
            value = int.from_bytes(data[position : position + size], "little")
            position += size
        elif wire_type == 2:
            size, position = _varint(data, position)
            if position + size > len(data):
                raise ValueError("a field is cut off")
            value = _raw_value(data[position : position + size], room, depth)
            position += size
        else:
            raise ValueError(f"wire type {wire_type}")
        name = str(number)
        if name in found:
            found[name] = [*(found[name] if isinstance(found[name], list) else [found[name]]), value]
        else:
            found[name] = value
    return found


def _raw_value(data: bytes, room: _Room, depth: int) -> Any:
    try:
        text = data.decode()
        if is_printable(text):
            return text
    except UnicodeDecodeError:
        pass
    try:
        return _raw_fields(data, room, depth + 1)
    except ValueError:
        if room.left < 0:
            raise
        return base64.b64encode(data).decode()


# ---- parts for colouring --------------------------------------------------------------------------------------------


def coloured(decoded: Decoded, most: int) -> list[tuple[str, str]]:
    """The text in pieces, each with what it is: name, string, number, word, or plain. Templates escape them."""
    text = visible(decoded.text[:most])
    if not decoded.has_fields:
        return [("plain", text)]
    pieces: list[tuple[str, str]] = []
    position, length = 0, len(text)
    plain_from = 0
    while position < length:
        char = text[position]
        end = position
        kind = ""
        if char == '"':
            end = position + 1
            while end < length and text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            end = min(length, end + 1)
            kind = "name" if text[end : end + 1] == ":" else "string"
        elif char.isdecimal() or char == "-":
            end = position + 1
            while end < length and text[end] in "0123456789.eE+-":
                end += 1
            kind = "number"
        elif char.isalpha():
            end = position + 1
            while end < length and text[end].isalpha():
                end += 1
            kind = "word"
        if kind:
            if plain_from < position:
                pieces.append(("plain", text[plain_from:position]))
            pieces.append((kind, text[position:end]))
            position = plain_from = end
        else:
            position += 1
    if plain_from < length:
        pieces.append(("plain", text[plain_from:]))
    return pieces


def is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and not (isinstance(value, float) and math.isnan(value))
    )
