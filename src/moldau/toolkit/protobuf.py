"""Protobuf messages, bare or in Confluent's wire format, whose header also tells which message of the file it is."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from moldau.toolkit.codec import Codec
from moldau.toolkit.errors import Undecodable, WrongType
from moldau.toolkit.registry import Registry, Schema, framed, unframed

if TYPE_CHECKING:
    from moldau.toolkit.codec import Part


def protobuf_codec(kind: Any, topic: str, part: Part, registry: Registry | None) -> Codec:
    """With a registry every value begins with its schema's id and the message's place in the file."""
    descriptor = kind.DESCRIPTOR
    indexes = _indexes(descriptor)
    prefix = _index_bytes(indexes)

    def encode(value: Any) -> bytes:
        if not isinstance(value, kind):
            raise WrongType(f"{topic}: expected `{kind.__name__}`, got `{type(value).__name__}`")
        try:
            payload: bytes = value.SerializeToString()
        except Exception as error:  # a required field is missing, or a value does not fit
            raise WrongType(f"{topic}: {error}") from error
        if registry is None:
            return payload
        text = base64.b64encode(descriptor.file.serialized_pb).decode()
        return framed(registry.id_of(f"{topic}-{part}", Schema(text, "PROTOBUF")), prefix + payload)

    def decode(data: bytes) -> Any:
        if registry is not None:
            _, data = unframed(data, topic)
            found, data = _read_indexes(data, topic)
            if found != indexes:
                raise Undecodable(f"{topic}: this is message {found} of its file, and {kind.__name__} is {indexes}")
        try:
            return kind.FromString(data)
        except Exception as error:  # protobuf raises its own DecodeError, by implementation
            raise Undecodable(f"{topic}: this is no {kind.__name__}: {error}") from error

    return Codec(kind.__name__, encode, decode, schema=lambda: {"x-protobuf-message": descriptor.full_name})


def _indexes(descriptor: Any) -> list[int]:
    """The path to the message in its file, through the messages it is nested in."""
    found: list[int] = []
    while descriptor is not None:
        parent = descriptor.containing_type
        siblings = descriptor.file.message_types_by_name.values() if parent is None else parent.nested_types
        names = [each.full_name for each in siblings]
        found.insert(0, names.index(descriptor.full_name))
        descriptor = parent
    return found


def _index_bytes(indexes: list[int]) -> bytes:
    if indexes == [0]:
        return b"\x00"  # the common case has a short form
    return b"".join(_zigzag(number) for number in [len(indexes), *indexes])


def _read_indexes(data: bytes, topic: str) -> tuple[list[int], bytes]:
    count, data = _unzigzag(data, topic)
    if count == 0:
        return [0], data
    if not 0 < count <= 64:
        raise Undecodable(f"{topic}: a message cannot be nested {count} deep")
    found = []
    for _ in range(count):
        number, data = _unzigzag(data, topic)
        found.append(number)
    return found, data


def _zigzag(number: int) -> bytes:
    number <<= 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _unzigzag(data: bytes, topic: str) -> tuple[int, bytes]:
    number = 0
    for index, byte in enumerate(data[:5]):
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), data[index + 1 :]
    raise Undecodable(f"{topic}: the message's place in its file is cut off")
