"""Arrow columns as record batches of Kafka's format 2, without a Python object for a record.

What lies before a record's key and before its value (lengths, as varints) is computed for all rows at once; Arrow joins
the pieces row by row. Its data buffer is then what a batch carries.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from moldau.records.batch import (
    ATTRIBUTES_AT,
    COVERED_BY_CRC,
    CRC_AT,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
)
from moldau.records.checksum import crc32c
from moldau.records.codecs import Codec, compress

_VARINT_BYTES = 5
_RECORD_OVERHEAD_BYTES = 4 * _VARINT_BYTES + 3  # lengths and delta at their longest, attributes, time, no headers
_NO_ATTRIBUTES_NO_TIME, _NO_KEY = b"\0\0", b"\x01"  # -1, zigzag
_SEED, _MULTIPLIER = np.uint32(0x9747B28C), np.uint32(0x5BD1E995)
Int64s = NDArray[np.int64]
UInt8s = NDArray[np.uint8]


def lengths_of(column: Any) -> Int64s:
    """Bytes of each value; -1 for null, as on the wire."""
    found: Int64s = pc.binary_length(column).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def sizes_at_most(keys: Any, values: Any) -> Int64s:
    """An upper bound for each record's bytes in a batch."""
    sizes = np.maximum(lengths_of(values), 0) + _RECORD_OVERHEAD_BYTES
    return sizes if keys is None else sizes + np.maximum(lengths_of(keys), 0)


def record_bytes(keys: Any, values: Any) -> memoryview:
    """The records of a batch, one after the other; `keys` is None where no row has one. All have the batch's time."""
    count = len(values)
    value_lengths = lengths_of(values)
    deltas, value_size = _varints(np.arange(count)), _varints(value_lengths)
    sizes = 3 + deltas.sizes + value_size.sizes + np.maximum(value_lengths, 0)
    if keys is None:
        key_size = _fixed(count, _NO_KEY)
        sizes += 1
    else:
        key_lengths = lengths_of(keys)
        key_size = _varints(key_lengths)
        sizes += key_size.sizes + np.maximum(key_lengths, 0)
    front = [_varints(sizes), _fixed(count, _NO_ATTRIBUTES_NO_TIME), deltas, key_size]
    if keys is None:
        pieces = [_binaries([*front, value_size]), values]
    else:
        pieces = [_binaries(front), keys, _binaries([value_size]), values]
    no_headers, nothing = pa.scalar(b"\0", pa.binary()), pa.scalar(b"", pa.binary())
    joined = pc.binary_join_element_wise(*pieces, no_headers, nothing, null_handling="replace", null_replacement="")
    _, borders, data = joined.buffers()
    ends = np.frombuffer(borders, np.int32)[joined.offset : joined.offset + count + 1]
    return memoryview(data)[int(ends[0]) : int(ends[-1])]


def batch_parts(
    records: memoryview,
    count: int,
    timestamp_ms: int,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    *,
    producer: tuple[int, int, int] = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE),
) -> tuple[bytes, bytes | memoryview]:
    """A batch as header and payload, which is not copied; `producer` is id, epoch and the first record's sequence."""
    payload = records if codec is Codec.NONE else compress(codec, records, level)
    head = bytearray(HEADER_BYTES)
    length = HEADER_BYTES + len(payload) - LOG_OVERHEAD_BYTES
    place = (0, length, NO_LEADER_EPOCH, MAGIC, 0, int(codec), count - 1)
    HEADER.pack_into(head, 0, *place, timestamp_ms, timestamp_ms, *producer, count)
    crc = crc32c(payload, crc32c(memoryview(head)[COVERED_BY_CRC]))
    head[CRC_AT:ATTRIBUTES_AT] = crc.to_bytes(4, "big")
    return bytes(head), payload


@dataclass(slots=True, frozen=True)
class _Bytes:
    """A few bytes for each row: which of a row's columns are used, and how many."""

    digits: UInt8s
    used: NDArray[np.bool_]
    sizes: Int64s


def _varints(numbers: Int64s) -> _Bytes:
    """Zigzag varints, with as many columns as the longest needs."""
    zigzag = ((numbers << 1) ^ (numbers >> 63)).astype(np.uint64)
    width = max((int(zigzag.max()).bit_length() + 6) // 7, 1)
    digits = np.empty((len(numbers), width), np.uint8)
    used = np.empty((len(numbers), width), bool)
    used[:, 0] = True
    sizes = np.ones(len(numbers), np.int64)
    rest = zigzag
    for column in range(width):
        digit = (rest & np.uint64(0x7F)).astype(np.uint8)
        rest = rest >> np.uint64(7)
        more = rest != 0
        digits[:, column] = digit | (more.astype(np.uint8) << 7)
        if column + 1 < width:
            used[:, column + 1] = more
            sizes += more
    return _Bytes(digits, used, sizes)


def _fixed(count: int, data: bytes) -> _Bytes:
    """The same for every row."""
    shape = (count, len(data))
    digits = np.broadcast_to(np.frombuffer(data, np.uint8), shape)
    return _Bytes(digits, np.broadcast_to(np.True_, shape), np.full(count, len(data)))


def _binaries(pieces: list[_Bytes]) -> Any:
    """The used bytes of each row, side by side, as an Arrow column."""
    digits = np.concatenate([each.digits for each in pieces], axis=1)
    used = np.concatenate([each.used for each in pieces], axis=1)
    ends = np.zeros(len(used) + 1, np.int32)
    np.cumsum(sum((each.sizes for each in pieces[1:]), pieces[0].sizes), out=ends[1:])
    return pa.Array.from_buffers(pa.binary(), len(used), [None, pa.py_buffer(ends), pa.py_buffer(digits[used])])


def murmur2(column: Any) -> NDArray[np.uint32]:
    """The hash by which Java's producer places keys, of each value of a binary column."""
    _, borders, buffer = column.buffers()
    ends = np.frombuffer(borders, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    data = np.frombuffer(buffer, np.uint8) if buffer is not None and buffer.size else np.zeros(1, np.uint8)
    starts, lengths = ends[:-1], np.diff(ends)
    found = _SEED ^ lengths.astype(np.uint32)
    words = lengths >> 2
    for at in range(int(words.max(initial=0))):
        live = np.flatnonzero(words > at)
        place = starts[live] + 4 * at
        word = sum((data[place + byte].astype(np.uint32) << np.uint32(8 * byte) for byte in range(4)), np.uint32(0))
        word = word * _MULTIPLIER
        word = (word ^ (word >> np.uint32(24))) * _MULTIPLIER
        found[live] = (found[live] * _MULTIPLIER) ^ word
    tail, rest = lengths & 3, starts + (words << 2)
    for byte in (2, 1, 0):
        live = np.flatnonzero(tail > byte)
        found[live] ^= data[rest[live] + byte].astype(np.uint32) << np.uint32(8 * byte)
    live = np.flatnonzero(tail)
    found[live] = found[live] * _MULTIPLIER
    found = (found ^ (found >> np.uint32(13))) * _MULTIPLIER
    return found ^ (found >> np.uint32(15))
