"""Arrow columns as record batches of Kafka's format 2, without a Python object for a record.

What lies before a record's key and before its value (lengths, as varints) is computed for all rows at once; Arrow joins
the pieces row by row. Its data buffer is then what a batch carries.
"""

import itertools
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
    TRANSACTIONAL_FLAG,
)
from moldau.records.checksum import crc32c
from moldau.records.codecs import Codec, compress
from moldau.records.murmur2 import murmur2 as murmur2_of_one

_VARINT_BYTES = 5
_RECORD_OVERHEAD_BYTES = 4 * _VARINT_BYTES + 3  # lengths and delta at their longest, attributes, time, no headers
_NO_ATTRIBUTES_NO_TIME, _NO_KEY = b"\0\0", b"\x01"  # -1, zigzag
_VARINT_BORDERS = (1 << 7, 1 << 14, 1 << 21, 1 << 28)  # of unsigned numbers, from which on they take one more byte
_RECTANGLES_MAX = 16
_HASHED_TOGETHER_MAX = 4_096  # bytes; longer keys are rare, and each step for all of them is for a few
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
    value_lengths, deltas = lengths_of(values), np.arange(count)
    sizes = 3 + _varint_sizes(deltas) + _varint_sizes(value_lengths) + np.maximum(value_lengths, 0)
    if keys is None:
        pieces = [_binaries([sizes + 1, _NO_ATTRIBUTES_NO_TIME, deltas, _NO_KEY, value_lengths]), values]
    else:
        key_lengths = lengths_of(keys)
        sizes += _varint_sizes(key_lengths) + np.maximum(key_lengths, 0)
        pieces = [_binaries([sizes, _NO_ATTRIBUTES_NO_TIME, deltas, key_lengths]), keys]
        pieces += [_binaries([value_lengths]), values]
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
    transactional: bool = False,
) -> tuple[bytes, bytes | memoryview]:
    """A batch as header and payload, which is not copied; `producer` is id, epoch and the first record's sequence."""
    payload = records if codec is Codec.NONE else compress(codec, records, level)
    head = bytearray(HEADER_BYTES)
    length = HEADER_BYTES + len(payload) - LOG_OVERHEAD_BYTES
    attributes = int(codec) | (TRANSACTIONAL_FLAG if transactional else 0)
    place = (0, length, NO_LEADER_EPOCH, MAGIC, 0, attributes, count - 1)
    HEADER.pack_into(head, 0, *place, timestamp_ms, timestamp_ms, *producer, count)
    crc = crc32c(payload, crc32c(memoryview(head)[COVERED_BY_CRC]))
    head[CRC_AT:ATTRIBUTES_AT] = crc.to_bytes(4, "big")
    return bytes(head), payload


def _zigzag(numbers: Int64s) -> Int64s:
    """Small for numbers near zero, of either sign. Those here are lengths and counts: they stay far below 2**62."""
    return (numbers << 1) ^ (numbers >> 63)


def _varint_sizes(numbers: Int64s) -> Int64s:
    zigzag = _zigzag(numbers)
    sizes = np.ones(len(numbers), np.int64)
    most = int(zigzag.max())
    for border in _VARINT_BORDERS:
        if most < border:
            break
        sizes += zigzag >= border
    return sizes


def _binaries(fields: list[Int64s | bytes]) -> Any:
    """Of each row the fields side by side, as an Arrow column: numbers as varints, and bytes that all rows share.

    Neighbouring rows whose numbers are equally long make a rectangle, which is filled column by column; that is what
    most rows are. Where lengths change too often for that, single bytes are picked instead.
    """
    numbers = [_zigzag(each) for each in fields if not isinstance(each, bytes)]
    sizes = np.array([_varint_sizes(each) for each in fields if not isinstance(each, bytes)])
    count = sizes.shape[1]
    constant = sum(len(each) for each in fields if isinstance(each, bytes))
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(sizes.sum(axis=0) + constant, out=ends[1:])
    changes = np.flatnonzero((sizes[:, 1:] != sizes[:, :-1]).any(axis=0)) + 1
    if len(changes) <= _RECTANGLES_MAX:
        data = np.empty(int(ends[-1]), np.uint8)
        for start, end in itertools.pairwise((0, *map(int, changes), count)):
            widths = [int(each) for each in sizes[:, start]]
            _fill(data[ends[start] : ends[end]].reshape(end - start, -1), fields, numbers, widths, start, end)
    else:
        widths = [int(each) for each in sizes.max(axis=1)]
        rectangle = np.empty((count, sum(widths) + constant), np.uint8)
        _fill(rectangle, fields, numbers, widths, 0, count)
        data = rectangle[_used(rectangle, fields, sizes, widths)]
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _fill(
    rectangle: UInt8s, fields: list[Int64s | bytes], numbers: list[Int64s], widths: list[int], start: int, end: int
) -> None:
    """Varints of these widths; a shorter one ends before, which its digits say."""
    at, number = 0, 0
    for field in fields:
        if isinstance(field, bytes):
            rectangle[:, at : at + len(field)] = np.frombuffer(field, np.uint8)
            at += len(field)
            continue
        rest = numbers[number][start:end]
        for _ in range(widths[number] - 1):
            more = rest >> 7
            rectangle[:, at] = (rest & 0x7F) | np.where(more, 0x80, 0)
            rest, at = more, at + 1
        rectangle[:, at] = rest
        number, at = number + 1, at + 1


def _used(rectangle: UInt8s, fields: list[Int64s | bytes], sizes: Int64s, widths: list[int]) -> NDArray[np.bool_]:
    used = np.ones(rectangle.shape, bool)
    at, number = 0, 0
    for field in fields:
        if isinstance(field, bytes):
            at += len(field)
            continue
        for digit in range(1, widths[number]):
            used[:, at + digit] = sizes[number] > digit
        number, at = number + 1, at + widths[number]
    return used


def murmur2(column: Any) -> NDArray[np.uint32]:
    """The hash by which Java's producer places keys, of each value of a binary column."""
    _, borders, buffer = column.buffers()
    ends = np.frombuffer(borders, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    data = np.frombuffer(buffer, np.uint8) if buffer is not None and buffer.size else np.zeros(1, np.uint8)
    starts, lengths = ends[:-1], np.diff(ends)
    long = np.flatnonzero(lengths > _HASHED_TOGETHER_MAX)
    lengths[long] = 0
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
    found ^= found >> np.uint32(15)
    for row in long:
        found[row] = murmur2_of_one(column[int(row)].as_py())
    return found
