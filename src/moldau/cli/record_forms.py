"""Keys and values as people write and read them: text, escapes, hex, base64, JSON, numbers, Avro, Protobuf.

A form turns what stands in a line into bytes of a record, and those into something to show. `Unfit` says why not.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from moldau.cli.failure import misused
from moldau.cli.output import unescape

if TYPE_CHECKING:
    from moldau.client.schema_registry import RegistryAddress

Part = Literal["key", "value"]
_NUMBERS = {
    "int8": ">b",
    "int16": ">h",
    "int32": ">i",
    "int64": ">q",
    "uint8": ">B",
    "uint16": ">H",
    "uint32": ">I",
    "uint64": ">Q",
    "float32": ">f",
    "float64": ">d",
}
_STRUCT = "struct:"
SHORT_NAMES = ("text", "escaped", "hex", "base64", "json", "int64 and other numbers", "struct:>iq", "avro", "protobuf")
NAMES = ("text", "escaped", "hex", "base64", "json", *_NUMBERS, "struct:LAYOUT", "avro", "protobuf")
_LAYOUT = re.compile(r"([<>]?)([bBhHiIqQfdc?]*)(s?)(\$?)")


class Unfit(Exception):
    """This cannot be read, or written, in that form."""


@dataclass(slots=True, frozen=True)
class Form:
    """`encode` takes bytes of a line, or any value that JSON has; `decode` gives bytes or such a value."""

    name: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def make_form(name: str, part: Part, topic: str, schema: str | None, registry: RegistryAddress | None) -> Form:
    """A form by its name; what it lacks is said before anything begins."""
    if name == "avro":
        return _avro(part, topic, schema, registry)
    if name == "protobuf":
        return _protobuf(part, topic, schema, registry)
    if schema is not None:
        misused(f"--{part}-schema is for --{part}-as avro or protobuf")
    simple = {
        "text": Form("text", _as_bytes, bytes),
        "escaped": Form("escaped", _unescaped, _escaped),
        "hex": Form("hex", _from_hex, bytes.hex),
        "base64": Form("base64", _from_base64, lambda data: base64.b64encode(data).decode()),
        "json": Form("json", _json_bytes, _from_json),
    }
    if name in simple:
        return simple[name]
    if name.startswith(_STRUCT):
        return _struct(name, part)
    if name not in _NUMBERS:
        misused(f"--{part}-as {name}: choose one of {', '.join(NAMES)}")
    return _number(name)


def _as_bytes(given: Any) -> bytes:
    if isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, dict) and set(given) == {"base64"}:
        return _from_base64(given["base64"])
    return json.dumps(given, separators=(",", ":"), ensure_ascii=False).encode()


def _text(given: Any) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, bytes):
        try:
            return given.decode()
        except UnicodeDecodeError as error:
            raise Unfit(f"it is no UTF-8: {error}") from error
    raise Unfit(f"it is a {type(given).__name__}, not a text")


def _unescaped(given: Any) -> bytes:
    text = _text(given)
    return unescape(text).encode("latin-1") if text.isascii() else unescape(text).encode()


def _escaped(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "".join(chr(each) if 32 <= each < 127 and each != 92 else f"\\x{each:02x}" for each in data)
    marks = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0"}
    return "".join(marks.get(each) or (each if each.isprintable() else f"\\x{ord(each):02x}") for each in text)


def _from_hex(given: Any) -> bytes:
    try:
        return bytes.fromhex(_text(given))
    except ValueError as error:
        raise Unfit(f"it is no hex: {error}") from error


def _from_base64(given: Any) -> bytes:
    try:
        return base64.b64decode(_text(given), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Unfit(f"it is no base64: {error}") from error


def _from_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unfit(f"it is no JSON: {error}") from error


def _json_bytes(given: Any) -> bytes:
    if isinstance(given, bytes):
        _from_json(given)
        return given
    return json.dumps(given, separators=(",", ":"), ensure_ascii=False).encode()


def _number(name: str) -> Form:
    pack = struct.Struct(_NUMBERS[name])

    def encode(given: Any) -> bytes:
        try:
            if isinstance(given, bytes | str):
                given = float(given) if name.startswith("float") else int(given)
            return pack.pack(given)
        except (ValueError, TypeError, OverflowError, struct.error) as error:
            raise Unfit(f"it is no {name}: {error}") from error

    def decode(data: bytes) -> Any:
        if len(data) != pack.size:
            raise Unfit(f"a {name} has {pack.size} bytes, and this has {len(data)}")
        return pack.unpack(data)[0]

    return Form(name, encode, decode)


def _struct(name: str, part: Part) -> Form:
    """Several numbers one after the other, as a JSON array: the letters of kcat's -s and of Python's struct."""
    found = _LAYOUT.fullmatch(name.removeprefix(_STRUCT).replace(" ", ""))
    if found is None or not found[2] + found[3]:
        misused(
            f"--{part}-as {name}: write struct:>iq, or < for little-endian, then a letter for each value: b h i q "
            "(8 to 64 bits), B H I Q (unsigned), f d (floats), ? (true or false), c (a byte), and s at the end (a text)"
        )
    pack = struct.Struct((found[1] or ">") + found[2])
    letters, has_text = found[2], bool(found[3])
    count = len(letters) + has_text

    def encode(given: Any) -> bytes:
        values = _value_of(given)
        if not isinstance(values, list) or len(values) != count:
            raise Unfit(f"it is no {name}: write a JSON array of {count}")
        numbers = [_char(each) if letter == "c" else each for letter, each in zip(letters, values, strict=False)]
        for letter, each in zip(letters, numbers, strict=True):
            if isinstance(each, bool) != (letter == "?"):
                raise Unfit(f"it is no {name}: {json.dumps(each, default=str)} stands where {letter} should")
        try:
            return pack.pack(*numbers) + (_text(values[-1]).encode() if has_text else b"")
        except (OverflowError, UnicodeEncodeError, struct.error) as error:
            raise Unfit(f"it is no {name}: {error}") from error

    def decode(data: bytes) -> Any:
        if len(data) < pack.size or (not has_text and len(data) > pack.size):
            least = " or more" if has_text else ""
            raise Unfit(f"a {name} has {pack.size}{least} bytes, and this has {len(data)}")
        values = [each.decode("latin-1") if isinstance(each, bytes) else each for each in pack.unpack_from(data)]
        return [*values, _text(data[pack.size :])] if has_text else values

    return Form(name, encode, decode)


def _char(given: Any) -> bytes:
    if not isinstance(given, str) or len(given) != 1 or ord(given) > 0xFF:
        raise Unfit(f"it is no single byte: {json.dumps(given, default=str)}")
    return given.encode("latin-1")


def _registry(address: RegistryAddress | None) -> Any:
    if address is None:
        return None
    try:
        from moldau.toolkit.registry import Registry
    except ImportError as error:
        misused(f"a schema registry needs pip install 'moldau[toolkit]' ({error})")
    return Registry(address)


def _read(path: str, part: Part) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        misused(f"--{part}-schema {path}: {error.strerror}")


def _value_of(given: Any) -> Any:
    return _from_json(given) if isinstance(given, bytes) else given


def _avro(part: Part, topic: str, schema: str | None, address: RegistryAddress | None) -> Form:
    try:
        import io

        import fastavro
    except ImportError:
        misused("Avro needs pip install 'moldau[toolkit,avro]'")
    if schema is None and address is None:
        misused(f"--{part}-as avro needs --{part}-schema FILE, or --registry URL to read with the writer's schema")
    registry = _registry(address)
    own: Any = None
    if schema is not None:
        try:
            own = fastavro.parse_schema(json.loads(_read(schema, part)))
        except Exception as error:  # fastavro has several roots
            misused(f"--{part}-schema {schema} is no Avro schema: {error}")
    writers: dict[int, Any] = {}

    def encode(given: Any) -> bytes:
        if own is None:
            raise Unfit(f"writing Avro needs --{part}-schema FILE")
        out = io.BytesIO()
        try:
            fastavro.schemaless_writer(out, own, _value_of(given), strict=True)
        except Unfit:
            raise
        except Exception as error:  # whatever fastavro found wrong with the value
            raise Unfit(f"it does not fit the Avro schema: {error}") from error
        if registry is None:
            return out.getvalue()
        from moldau.toolkit.registry import Schema, framed

        return framed(registry.id_of(f"{topic}-{part}", Schema(json.dumps(own), "AVRO")), out.getvalue())

    def decode(data: bytes) -> Any:
        writer = own
        try:
            if registry is not None:
                from moldau.toolkit.registry import unframed

                schema_id, data = unframed(data, topic)
                if schema_id not in writers:
                    writers[schema_id] = fastavro.parse_schema(json.loads(registry.fetch(schema_id).text))
                writer = writers[schema_id]
            return fastavro.schemaless_reader(io.BytesIO(data), writer, own)
        except Exception as error:  # fastavro's many, and the registry's
            raise Unfit(f"it cannot be read as Avro: {str(error) or type(error).__name__}") from error

    return Form("avro", encode, decode)


def _protobuf(part: Part, topic: str, schema: str | None, address: RegistryAddress | None) -> Form:
    wanted = f"--{part}-schema FILE#package.Message, FILE made by protoc --include_imports -o FILE some.proto"
    try:
        from google.protobuf import (  # type: ignore[import-untyped]
            descriptor_pb2,
            descriptor_pool,
            json_format,
            message_factory,
        )

        from moldau.toolkit.protobuf import protobuf_codec
    except ImportError:
        misused("Protobuf needs pip install 'moldau[toolkit,spark]'")
    path, hash_mark, message = (schema or "").partition("#")
    if not hash_mark:
        misused(f"--{part}-as protobuf needs {wanted}")
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(_read(path, part))
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except Exception as error:  # protobuf's errors depend on its implementation
        misused(f"--{part}-schema {schema}: {error}; give {wanted}")
    codec = protobuf_codec(kind, topic, part, _registry(address))

    def encode(given: Any) -> bytes:
        value = _value_of(given)
        try:
            return codec.encode(json_format.ParseDict(value, kind()))
        except Exception as error:
            raise Unfit(f"it is no {message}: {error}") from error

    def decode(data: bytes) -> Any:
        try:
            return json_format.MessageToDict(codec.decode(data), preserving_proto_field_name=True)
        except Exception as error:
            raise Unfit(f"it is no {message}: {error}") from error

    return Form("protobuf", encode, decode)


def as_line(value: Any) -> bytes:
    """A decoded value in a line."""
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode(errors="backslashreplace")  # JSON may have half a character: `"\ud800"`
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)
    return text.encode(errors="backslashreplace")


def as_json(value: Any) -> Any:
    """A decoded value in JSON: bytes that are no text become {"base64": …}, which produce reads back."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
