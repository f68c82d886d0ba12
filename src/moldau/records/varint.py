"""Kafka's varints: zigzag, seven bits a byte, at most five bytes for an int32 and ten for an int64.

Short ones are read inline by the callers, through the tables below; these functions serve the rest. Reading past the
end raises IndexError, which callers turn into CorruptBatch once per batch instead of testing once per byte.
"""

from functools import cache

from moldau.records.errors import CorruptBatch

# First byte of a varint -> what it adds to the number. Odd first bytes mean negative numbers: here they add a negative
# number so large that no length can make up for it, and the sum stays recognisable.
LOW_BITS = tuple(-(1 << 40) if byte & 1 else (byte & 0x7F) >> 1 for byte in range(256))
# The same where negative numbers are not allowed: looking one up raises KeyError.
POSITIVE_LOW_BITS = {byte: (byte & 0x7F) >> 1 for byte in range(0, 256, 2)}
# Second and last byte of a varint -> what it adds.
HIGH_BITS = tuple(byte << 6 for byte in range(128))
# Only byte of a varint -> its value.
ZIGZAG = tuple((byte >> 1) ^ -(byte & 1) for byte in range(128))

TABLE_SIZE = 8192  # what fits into two bytes


def read_varint(data: bytes | bytearray, position: int) -> tuple[int, int]:
    """(value, position behind it) of an int32."""
    raw = data[position] & 0x7F
    shift = 0
    while data[position] & 0x80:
        position += 1
        shift += 7
        raw |= (data[position] & 0x7F) << shift
        if shift == 28:
            if data[position] > 0x0F:
                raise CorruptBatch("a varint is too long for an int32")
            break
    return (raw >> 1) ^ -(raw & 1), position + 1


def read_varlong(data: bytes, position: int) -> tuple[int, int]:
    """(value, position behind it) of an int64."""
    raw = data[position] & 0x7F
    shift = 0
    while data[position] & 0x80:
        position += 1
        shift += 7
        raw |= (data[position] & 0x7F) << shift
        if shift == 63:
            if data[position] > 0x01:
                raise CorruptBatch("a varint is too long for an int64")
            break
    return (raw >> 1) ^ -(raw & 1), position + 1


def read_length(data: bytes | bytearray, position: int) -> tuple[int, int]:
    """(value, position behind it) of an int32 that must not be negative."""
    value, position = read_varint(data, position)
    if value < 0:
        raise CorruptBatch(f"a length or offset of {value} is negative")
    return value, position


def encode_varint(value: int) -> bytes:
    """Bytes of an int32 or int64."""
    raw = (value << 1) ^ (value >> 63)
    if raw < 0x80:
        return bytes((raw,))
    encoded = bytearray()
    while raw > 0x7F:
        encoded.append(raw & 0x7F | 0x80)
        raw >>= 7
    encoded.append(raw)
    return bytes(encoded)


@cache
def varint_table() -> tuple[bytes, ...]:
    """`encode_varint` of 0 to TABLE_SIZE - 1; made when the first batch is built, for it takes milliseconds."""
    one_byte = [bytes((raw,)) for raw in range(0, 0x80, 2)]
    two_bytes = [bytes((raw & 0x7F | 0x80, raw >> 7)) for raw in range(0x80, 2 * TABLE_SIZE, 2)]
    return (*one_byte, *two_bytes)


@cache
def sized_table() -> tuple[int, ...]:
    """Bytes taken by a field of 0 to TABLE_SIZE - 1 bytes together with the varint that announces it."""
    return tuple(length + len(varint) for length, varint in enumerate(varint_table()))
