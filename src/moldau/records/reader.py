"""Records out of a batch, one after the other.

Invariant: a record is given out only if its fields fill exactly the length it declares, and the records fill exactly
the batch. Anything else is CorruptBatch, found in time and memory proportional to the batch.
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain, repeat
from typing import NamedTuple

from moldau.records.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    Buffer,
    read_header,
)
from moldau.records.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES, decompress
from moldau.records.errors import CorruptBatch
from moldau.records.varint import (
    HIGH_BITS,
    LOW_BITS,
    POSITIVE_LOW_BITS,
    ZIGZAG,
    read_length,
    read_varint,
    read_varlong,
)

Header = tuple[bytes, bytes | None]
Headers = tuple[Header, ...]
RecordTuple = tuple[int, int, bytes | None, bytes | None, Headers]

# Parsed at a time, between two records given out: long enough to keep the loop hot, short enough to stay lazy.
_CHUNK_RECORDS = 256
_NO_DELTAS = (0,) * 128  # instead of ZIGZAG, where every record has the batch's timestamp


class Record(NamedTuple):
    """One record. Header keys are bytes: they should be UTF-8, but nobody checks, and the cleaner must not lose any."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


_as_record: partial[Record] = partial(tuple.__new__, Record)  # Record._make without its check: the reader counts right


def iter_records(
    buffer: Buffer,
    position: int = 0,
    header: BatchHeader | None = None,
    max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Iterator[Record]:
    """The records of the batch at `position`, lazily. Does not check the CRC; expands to `max_bytes` at most."""
    if header is None:
        header = read_header(buffer, position)
    if not header.record_count:  # the cleaner leaves such batches; there is nothing to expand
        return iter(())
    body = read_body(buffer, position, header, max_bytes)
    return map(_as_record, chain.from_iterable(iter_chunks(body, header)))


def read_body(
    buffer: Buffer, position: int, header: BatchHeader, max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> bytes:
    """The records section of a batch, expanded."""
    end = position + LOG_OVERHEAD_BYTES + header.batch_length
    if len(buffer) < end:
        raise CorruptBatch(f"the batch says {header.size_bytes} bytes, only {len(buffer) - position} are there")
    body = memoryview(buffer)[position + HEADER_BYTES : end]
    if header.attributes & CODEC_MASK:
        return decompress(header.codec, body, max_bytes)
    return bytes(body)


def iter_chunks(body: bytes, header: BatchHeader) -> Iterator[list[RecordTuple]]:
    """The records of an expanded batch as plain tuples in Record's order, some hundreds at a time."""
    position = 0
    remaining = header.record_count
    while remaining > 0:
        chunk: list[RecordTuple] = []
        try:
            position = _read_chunk(body, position, min(remaining, _CHUNK_RECORDS), header, chunk)
        except LookupError:
            raise CorruptBatch("a record reaches beyond its batch, or has a negative length") from None
        remaining -= len(chunk)
        yield chunk
    if position != len(body):
        raise CorruptBatch(f"{len(body) - position} bytes follow the last of {header.record_count} records")


def _read_chunk(body: bytes, position: int, count: int, header: BatchHeader, chunk: list[RecordTuple]) -> int:
    """Append `count` records to `chunk`; returns the position behind them.

    The hottest loop of the room, hence inlined: varints of one and two bytes are read through tables, and the usual
    record (a value, no headers) takes no call. Bad bytes need no test here: reading beyond the end raises IndexError,
    a negative offset KeyError, and lengths that do not add up end in `_read_value_and_headers`, which looks closely.
    """
    low_bits, high_bits, positive, zigzag = LOW_BITS, HIGH_BITS, POSITIVE_LOW_BITS, ZIGZAG
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.attributes & LOG_APPEND_TIME_FLAG
    if append_time:
        base_timestamp, zigzag = header.max_timestamp, _NO_DELTAS
    add = chunk.append
    for _ in repeat(None, count):
        byte = body[position]
        if byte < 0x80:
            end = position + 1 + low_bits[byte]
            position += 2  # the attributes byte of a record is unused
        elif (second := body[position + 1]) < 0x80:
            end = position + 2 + low_bits[byte] + high_bits[second]
            position += 3
        else:
            length, position = read_length(body, position)
            end = position + length
            position += 1

        byte = body[position]
        if byte < 0x80:
            timestamp = base_timestamp + zigzag[byte]
            position += 1
        else:
            delta, position = read_varlong(body, position)
            timestamp = base_timestamp if append_time else base_timestamp + delta

        byte = body[position]
        position += 1
        if byte < 0x80:
            offset = base_offset + positive[byte]
        elif (second := body[position]) < 0x80:
            offset = base_offset + positive[byte] + high_bits[second]
            position += 1
        else:
            delta, position = read_length(body, position - 1)
            offset = base_offset + delta

        byte = body[position]
        position += 1
        key: bytes | None
        if byte < 0x80:
            if byte & 1:  # negative: null
                key = None
            else:
                key_end = position + low_bits[byte]
                key = body[position:key_end]
                position = key_end
        else:
            length, position = read_varint(body, position - 1)
            key = body[position : position + length] if length >= 0 else None
            position += max(length, 0)

        byte = body[position]
        position += 1
        if byte < 0x80:
            value_end = position + low_bits[byte]
        elif (second := body[position]) < 0x80:
            position += 1
            value_end = position + low_bits[byte] + high_bits[second]
        else:
            length, position = read_varint(body, position - 1)
            value_end = position + length
        if value_end + 1 == end and not body[value_end]:
            add((offset, timestamp, key, body[position:value_end], ()))
        else:
            value, headers = _read_value_and_headers(body, position, value_end, end)
            add((offset, timestamp, key, value, headers))
        position = end
    return position


def _read_value_and_headers(body: bytes, position: int, value_end: int, end: int) -> tuple[bytes | None, Headers]:
    """The rest of a record with no value (`value_end` lies before `position`), or with headers, or corrupt."""
    value: bytes | None = None
    if value_end >= position:
        value = body[position:value_end]
        position = value_end
    count, position = read_length(body, position)
    headers: list[Header] = []
    for _ in repeat(None, count):
        length, position = read_length(body, position)
        name = body[position : position + length]
        position += length
        length, position = read_varint(body, position)
        headers.append((name, body[position : position + length] if length >= 0 else None))
        position += max(length, 0)
    if position != end or end > len(body):
        raise CorruptBatch("the fields of a record do not fill its declared length")
    return value, tuple(headers)
