"""From a type annotation to bytes and back: bytes, str, numbers, JSON, dataclasses, Structs, models, Avro, Protobuf.

`codec_for(annotation, topic)` is the one place that decides. Integers and floats are big-endian, as Java's own
serializers write them. Objects are JSON; what is written is read back before it leaves, so a field of the wrong type
is an error at the call and not at some consumer a week later.

Invariant: `encode` raises `WrongType` and `decode` raises `Undecodable`, both naming the topic (and the field), or
`SchemaMissing` when a registry must be asked first; nothing else.
"""

from __future__ import annotations

import dataclasses
import struct
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from moldau.toolkit.codec import Codec, Headers, Part
from moldau.toolkit.errors import SchemaMissing, SetupError, Undecodable, WrongType

if TYPE_CHECKING:
    from moldau.toolkit.registry import Registry


@dataclass(slots=True, frozen=True)
class Width:
    """The size of a number on the wire, for `Annotated`."""

    format: str
    name: str


Int16 = Annotated[int, Width(">h", "int16")]
Int32 = Annotated[int, Width(">i", "int32")]
Int64 = Annotated[int, Width(">q", "int64")]
Float32 = Annotated[float, Width(">f", "float32")]
Float64 = Annotated[float, Width(">d", "float64")]


@dataclass(slots=True, frozen=True)
class Avro:
    """`Annotated[Order, Avro(schema)]`: an Avro schema, as a dict or as JSON text."""

    schema: str | dict[str, Any]

    def __hash__(self) -> int:
        return hash(str(self.schema))


@dataclass(slots=True, frozen=True)
class ByHeader:
    """`Annotated[Created | Cancelled, ByHeader("type")]`: a header tells the type; its value is the class's name."""

    name: str
    names: tuple[tuple[str, Any], ...] = ()  # other names than the classes' own


@dataclass(slots=True, frozen=True)
class ByField:
    """`Annotated[Created | Cancelled, ByField("type")]`: a field of the JSON object tells the type."""

    name: str
    names: tuple[tuple[str, Any], ...] = ()


def codec_for(annotation: Any, topic: str, part: Part = "value", registry: Registry | None = None) -> Codec:
    """The codec of an annotation on a topic."""
    inner, marks, allows_none = _unwrap(annotation)
    codec = _choose(inner, marks, topic, part, registry)
    return dataclasses.replace(codec, allows_none=True) if allows_none else codec


def codec_of_value(value: Any, topic: str, part: Part = "value", registry: Registry | None = None) -> Codec:
    """For topics nobody declared: what the value itself is."""
    kind = type(value)
    if kind in (list, tuple):
        kind = list
    if value is None:
        return dataclasses.replace(_bytes(topic), allows_none=True)
    return codec_for(kind, topic, part, registry)


def _unwrap(annotation: Any) -> tuple[Any, tuple[Any, ...], bool]:
    marks: tuple[Any, ...] = ()
    allows_none = False
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            marks += tuple(more)
        elif get_origin(annotation) in (Union, types.UnionType) and type(None) in get_args(annotation):
            allows_none = True
            rest = tuple(each for each in get_args(annotation) if each is not type(None))
            annotation = rest[0] if len(rest) == 1 else Union[rest]  # noqa: UP007  built from a tuple
        else:
            return annotation, marks, allows_none


def _choose(kind: Any, marks: tuple[Any, ...], topic: str, part: Part, registry: Registry | None) -> Codec:
    for mark in marks:
        if isinstance(mark, Width):
            return _number(topic, mark, int if mark.name.startswith("int") else float)
        if isinstance(mark, Avro):
            from moldau.toolkit.avro import avro_codec

            return avro_codec(kind, mark.schema, topic, part, registry)
        if isinstance(mark, (ByHeader, ByField)):
            return _several(kind, mark, topic, part, registry)
    if kind is Any:
        return dataclasses.replace(_bytes(topic), allows_none=True)
    if kind in (bytes, bytearray, memoryview):
        return _bytes(topic)
    if kind is str:
        return _text(topic)
    if kind is bool:
        return _json(kind, topic)
    if kind is int:
        return _number(topic, Width(">q", "int64"), int)
    if kind is float:
        return _number(topic, Width(">d", "float64"), float)
    if _is_protobuf(kind):
        from moldau.toolkit.protobuf import protobuf_codec

        return protobuf_codec(kind, topic, part, registry)
    if hasattr(kind, "model_validate_json"):
        return _pydantic(kind, topic)
    return _json(kind, topic)


def _is_protobuf(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "SerializeToString") and hasattr(kind, "DESCRIPTOR")


def _bytes(topic: str) -> Codec:
    def encode(value: Any) -> bytes:
        if isinstance(value, bytes):
            return value
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        raise WrongType(f"{topic}: expected `bytes`, got `{type(value).__name__}`")

    return Codec("bytes", encode, lambda data: data, schema=lambda: {"type": "string", "format": "binary"})


def _text(topic: str) -> Codec:
    def encode(value: Any) -> bytes:
        if not isinstance(value, str):
            raise WrongType(f"{topic}: expected `str`, got `{type(value).__name__}`")
        return value.encode()

    def decode(data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise Undecodable(f"{topic}: this is no UTF-8 text: {error}") from error

    return Codec("str", encode, decode, schema=lambda: {"type": "string"})


def _number(topic: str, width: Width, kind: type) -> Codec:
    packer = struct.Struct(width.format)

    def encode(value: Any) -> bytes:
        accepted = (int,) if kind is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, accepted):
            raise WrongType(f"{topic}: expected `{width.name}`, got `{type(value).__name__}`")
        try:
            return packer.pack(value)
        except (struct.error, OverflowError) as error:
            raise WrongType(f"{topic}: {value} does not fit {width.name}") from error

    def decode(data: bytes) -> Any:
        if len(data) != packer.size:
            raise Undecodable(f"{topic}: {width.name} has {packer.size} bytes, and here are {len(data)}")
        return packer.unpack(data)[0]

    kind_name = "integer" if kind is int else "number"
    return Codec(width.name, encode, decode, schema=lambda: {"type": kind_name, "format": width.name})


def _json(kind: Any, topic: str) -> Codec:
    try:
        import msgspec
    except ImportError as error:
        raise SetupError(f"{topic}: values as {kind} need msgspec: pip install 'moldau[toolkit]'") from error
    try:
        decoder = msgspec.json.Decoder(kind)
    except TypeError as error:
        raise SetupError(f"{topic}: {kind} cannot be decoded from JSON: {error}") from error
    encoder = msgspec.json.Encoder()
    checked = decoder.decode

    def encode(value: Any) -> bytes:
        if isinstance(kind, type) and not isinstance(value, kind):
            raise WrongType(f"{topic}: expected `{kind.__name__}`, got `{type(value).__name__}`")
        try:
            data = encoder.encode(value)
            checked(data)
        except (msgspec.ValidationError, TypeError, OverflowError, ValueError) as error:
            raise WrongType(f"{topic}: {_reason(kind, error)}") from error
        return data

    def decode(data: bytes) -> Any:
        try:
            return checked(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Undecodable(f"{topic}: {_reason(kind, error)}") from error

    return Codec(_name(kind), encode, decode, schema=lambda: json_schema(kind))


def _pydantic(kind: Any, topic: str) -> Codec:
    def encode(value: Any) -> bytes:
        if not isinstance(value, kind):
            raise WrongType(f"{topic}: expected `{kind.__name__}`, got `{type(value).__name__}`")
        try:
            data: bytes = value.model_dump_json(by_alias=True, warnings="error").encode()
            kind.model_validate_json(data)
        except ValueError as error:
            raise WrongType(f"{topic}: {_reason(kind, error)}") from error
        return data

    def decode(data: bytes) -> Any:
        try:
            return kind.model_validate_json(data)
        except ValueError as error:
            raise Undecodable(f"{topic}: {_reason(kind, error)}") from error

    return Codec(kind.__name__, encode, decode, schema=lambda: dict(kind.model_json_schema()))


def _several(kind: Any, mark: ByHeader | ByField, topic: str, part: Part, registry: Registry | None) -> Codec:
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    named = {cls: name for name, cls in mark.names}
    names = {cls: named.get(cls, _name(cls)) for cls in members}
    if len(set(names.values())) < len(names):
        raise SetupError(f"{topic}: two types have one name: give `names=` to tell them apart")
    codecs = {names[cls]: codec_for(cls, topic, part, registry) for cls in members}
    known = ", ".join(sorted(codecs))

    def of(value: Any) -> str:
        for cls, name in names.items():
            if type(value) is cls:
                return name
        raise WrongType(f"{topic}: expected one of {known}, got `{type(value).__name__}`")

    def pick(name: str | None) -> Codec:
        if name is None:
            raise Undecodable(f"{topic}: there is no {mark.name!r} that tells the type ({known})")
        if name not in codecs:
            raise Undecodable(f"{topic}: {mark.name!r} says {name!r}, which is none of {known}")
        return codecs[name]

    def schema() -> dict[str, Any]:
        return {"oneOf": [codec.schema() for codec in codecs.values() if codec.schema is not None]}

    title = f"one of {known}"
    if isinstance(mark, ByHeader):

        def with_headers(data: bytes, headers: Headers) -> Any:
            found = next((value for name, value in headers if name == mark.name), None)
            return pick(found.decode(errors="replace") if found is not None else None).decode(data)

        def blind(data: bytes) -> Any:
            raise Undecodable(f"{topic}: the header {mark.name!r} is needed")

        return Codec(
            title,
            lambda value: codecs[of(value)].encode(value),
            blind,
            headers=lambda value: ((mark.name, of(value).encode()),),
            decode_with_headers=with_headers,
            schema=schema,
            types=members,
        )
    return Codec(
        title,
        _tagging(mark.name, of, codecs, topic),
        _by_tag(mark.name, pick, topic),
        None,
        None,
        schema,
        types=members,
    )


def _tagging(field: str, of: Callable[[Any], str], codecs: Mapping[str, Codec], topic: str) -> Callable[[Any], bytes]:
    import msgspec

    def encode(value: Any) -> bytes:
        name = of(value)
        data = codecs[name].encode(value)
        found = msgspec.json.decode(data)
        if not isinstance(found, dict):
            raise WrongType(f"{topic}: only objects have a field {field!r} to tell their type")
        if found.setdefault(field, name) != name:
            raise WrongType(f"{topic}: the field {field!r} tells the type here, and the value uses it otherwise")
        return msgspec.json.encode(found)

    return encode


def _by_tag(field: str, pick: Callable[[str | None], Codec], topic: str) -> Callable[[bytes], Any]:
    import msgspec

    def decode(data: bytes) -> Any:
        try:
            found = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Undecodable(f"{topic}: {error}") from error
        name = found.get(field) if isinstance(found, dict) else None
        return pick(name if isinstance(name, str) else None).decode(data)

    return decode


def json_schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type, its parts in `$defs`."""
    import msgspec

    return msgspec.json.schema(kind)


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _reason(kind: Any, error: Exception) -> str:
    return f"{_name(kind)}: {error}"


__all__ = [
    "Avro",
    "ByField",
    "ByHeader",
    "Codec",
    "Float32",
    "Float64",
    "Headers",
    "Int16",
    "Int32",
    "Int64",
    "SchemaMissing",
    "Width",
    "codec_for",
    "codec_of_value",
    "json_schema",
]
