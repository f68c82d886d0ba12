"""Framing of the records Kafka keeps for itself.

Coordinator records (`__consumer_offsets`, `__transaction_state`): the key starts with its type, the value with its
version, each an int16. Metadata records (`__cluster_metadata-0`): frame version, type and version as varints.
"""

from functools import cache
from struct import Struct, error
from typing import TypeVar

from moldau.wire import messages, schema
from moldau.wire.codec import decode, encode
from moldau.wire.message import Message
from moldau.wire.primitives import MalformedFrame, decode_uvarint, encode_uvarint

V = TypeVar("V", bound=Message)

_INT16 = Struct(">h")
_METADATA_FRAME_VERSION = 1


def encode_prefixed(message: Message, prefix: int, version: int = 0) -> bytes:
    """A coordinator key (prefix: its type) or value (prefix: its version, given twice)."""
    return _INT16.pack(prefix) + encode(message, version)


def prefix_of(data: bytes | memoryview) -> int:
    """The type of a coordinator key, or the version of a value."""
    try:
        (prefix,) = _INT16.unpack_from(data)
    except error:
        raise MalformedFrame("a coordinator record needs at least two bytes") from None
    return int(prefix)


def encode_key(message: Message) -> bytes:
    return encode_prefixed(message, message.number)


def encode_value(message: Message, version: int) -> bytes:
    return encode_prefixed(message, version, version)


def decode_value(cls: type[V], data: bytes | memoryview) -> V:
    version = prefix_of(data)
    if not cls.first_version <= version <= cls.last_version:
        raise MalformedFrame(f"{cls.__name__} has no version {version}")
    return decode(cls, version, data[2:])


@cache
def _metadata_records() -> dict[int, str]:
    return {head.number: name for name, head in schema.heads().items() if head.kind == "record"}


def encode_metadata_record(record: Message, version: int | None = None) -> bytes:
    """The value of a record in the metadata log; the newest version unless told otherwise."""
    version = record.last_version if version is None else version
    frame = encode_uvarint(_METADATA_FRAME_VERSION) + encode_uvarint(record.number) + encode_uvarint(version)
    return frame + encode(record, version)


def decode_metadata_record(data: bytes | memoryview) -> Message:
    try:
        frame_version, position = decode_uvarint(data, 0)
        number, position = decode_uvarint(data, position)
        version, position = decode_uvarint(data, position)
    except IndexError:
        raise MalformedFrame("a metadata record ends within its frame") from None
    if frame_version != _METADATA_FRAME_VERSION:
        raise MalformedFrame(f"metadata frame version {frame_version} is not known")
    name = _metadata_records().get(number)
    if name is None:
        raise MalformedFrame(f"metadata record type {number} is not known")
    cls: type[Message] = getattr(messages, name)
    if not cls.first_version <= version <= cls.last_version:
        raise MalformedFrame(f"{name} has no version {version}")
    return decode(cls, version, data[position:])
