"""Kafka's variable-length integers, and the one error that malformed bytes end in.

A varint has at most 5 bytes (32 bits) and a varlong at most 10 (64 bits); anything longer is refused, so decoding
hostile bytes takes bounded time.
"""

from collections.abc import Sequence
from struct import Struct


class MalformedFrame(ValueError):
    """Bytes that are not what the protocol says they should be. The connection they came from is closed."""


ZERO_UUID = bytes(16)

# Lengths below 128 are one byte: looked up instead of computed.
ONE_BYTE = [bytes([value]) for value in range(128)]


def encode_uvarint(value: int) -> bytes:
    """An unsigned varint, as lengths and tags are written."""
    if 0 <= value < 128:
        return ONE_BYTE[value]
    if not 0 <= value < 1 << 32:
        raise ValueError(f"{value} does not fit an unsigned 32-bit varint")
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_uvarint(buffer: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """(value, position after it). IndexError past the end of the buffer; callers turn that into MalformedFrame."""
    value = buffer[position]
    position += 1
    if value < 128:
        return value, position
    return finish_uvarint(buffer, position, value)


def finish_uvarint(buffer: bytes | bytearray | memoryview, position: int, first: int) -> tuple[int, int]:
    """The rest of an unsigned varint whose first byte, with its high bit set, was already read."""
    value = first & 127
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise MalformedFrame("a varint is longer than 32 bits")


def _packers(prefix: str, item: str) -> list[Struct]:
    return [Struct(f">{prefix}{count}{item}") for count in range(64)]


class IntArrays:
    """Packs small integer arrays together with their length prefix in one call."""

    __slots__ = ("_compact", "_item", "_plain", "_size")

    def __init__(self, item: str) -> None:
        self._item = item
        self._size = Struct(">" + item).size
        self._compact = _packers("B", item)
        self._plain = _packers("i", item)

    def pack_compact(self, values: Sequence[int]) -> bytes:
        count = len(values)
        if count < 64:
            return self._compact[count].pack(count + 1, *values)
        return encode_uvarint(count + 1) + Struct(f">{count}{self._item}").pack(*values)

    def pack_plain(self, values: Sequence[int]) -> bytes:
        count = len(values)
        if count < 64:
            return self._plain[count].pack(count, *values)
        return Struct(f">i{count}{self._item}").pack(count, *values)

    def unpack(self, buffer: bytes, position: int, count: int) -> list[int]:
        return list(Struct(f">{count}{self._item}").unpack_from(buffer, position))


def encode_tags(tags: dict[int, bytes]) -> bytes:
    """A tag section: count, then tag, size and bytes of each in ascending order."""
    parts = [encode_uvarint(len(tags))]
    for tag in sorted(tags):
        parts += (encode_uvarint(tag), encode_uvarint(len(tags[tag])), tags[tag])
    return b"".join(parts)


def skip_tags(buffer: bytes | memoryview, position: int) -> int:
    """The position after a tag section whose content does not matter."""
    count, position = decode_uvarint(buffer, position)
    for _ in range(count):
        _, position = decode_uvarint(buffer, position)
        size, position = decode_uvarint(buffer, position)
        position += size
        if position > len(buffer):
            raise MalformedFrame("a tagged field is longer than its frame")
    return position
