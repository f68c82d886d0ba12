"""The cleaner's own look at records: key, tombstone or not, and which bytes; values are never touched.

What it finds comes as columns, because compaction asks about whole batches at once and lists are compared, looked up
and cut without a step of Python for each record. A record keeps its bytes when others of its batch go, because they
count from the batch's base offset and base timestamp, which stay. So a cleaned batch is a new header and some of the
old bytes.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NamedTuple

from moldau.log.cleaner.chunks import BatchFields
from moldau.records import HEADER_BYTES, LOG_OVERHEAD_BYTES, BatchHeader, Codec, CorruptBatch, compress
from moldau.records.batch import HEADER, MAGIC, MIN_BATCH_LENGTH, renew_crc
from moldau.records.varint import HIGH_BITS, LOW_BITS, ZIGZAG, read_length, read_varint, read_varlong

SHORT_KEY_BYTES = 47
_SHORT_KEY_BYTE = 2 * SHORT_KEY_BYTES + 1  # first bytes below, if even, announce a short key


class ScannedRecords(NamedTuple):
    """The records of one or more batches in order, one column each. A mark is twice the offset, plus one for a
    tombstone."""

    body: bytes
    marks: list[int]
    keys: list[bytes | None]
    timestamp_deltas: list[int]
    ends: list[int]  # in `body`, where the next one begins
    odd_keys: list[int]  # indexes of keys that are null or longer than SHORT_KEY_BYTES


def no_records(body: bytes) -> ScannedRecords:
    return ScannedRecords(body, [], [], [], [], [])


def scan_records(body: bytes, count: int, base_offset: int) -> ScannedRecords:
    """Every record of an expanded batch. CorruptBatch if they do not fill it exactly."""
    found = no_records(body)
    as_batch: BatchFields = (base_offset, len(body) + MIN_BATCH_LENGTH, MAGIC, 0, 0, 0, 0, count)
    scan_batches(found, [as_batch], -HEADER_BYTES)
    return found


def scan_batches(found: ScannedRecords, batches: Iterable[BatchFields], start: int) -> None:
    """Add the records of batches that follow each other in the body, the first at `start`."""
    try:
        _scan(found, batches, start)
    except LookupError:
        raise CorruptBatch("a record reaches beyond its batch, or has a negative length") from None


def _scan(found: ScannedRecords, batches: Iterable[BatchFields], batch_end: int) -> None:
    """The hot loop of compaction, hence inlined: varints of one or two bytes are read through tables."""
    low_bits, high_bits, zigzag = LOW_BITS, HIGH_BITS, ZIGZAG
    body = found.body
    add_mark, add_key, add_end = found.marks.append, found.keys.append, found.ends.append
    add_timestamp = found.timestamp_deltas.append
    for base_offset, batch_length, _, _, _, _, _, count in batches:
        position, base_mark = batch_end + HEADER_BYTES, base_offset << 1
        batch_end += LOG_OVERHEAD_BYTES + batch_length
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
                add_timestamp(zigzag[byte])
                position += 1
            else:
                delta, position = read_varlong(body, position)
                add_timestamp(delta)

            byte = body[position]  # zigzag makes an offset even and twice as large: a mark already
            if byte < 0x80:
                mark = base_mark + byte
                position += 1
            elif (second := body[position + 1]) < 0x80:
                mark = base_mark + (byte & 0x7F) + (second << 7)
                position += 2
            else:
                delta, position = read_length(body, position)
                mark = base_mark + (delta << 1)

            byte = body[position]
            position += 1
            if byte < _SHORT_KEY_BYTE and not byte & 1:
                key_end = position + (byte >> 1)
                add_key(body[position:key_end])
            else:
                length, position = read_varint(body, position - 1)
                key_end = position + max(length, 0)
                found.odd_keys.append(len(found.keys))
                add_key(body[position:key_end] if length >= 0 else None)
            if mark & 1 or not key_end < end <= batch_end:
                raise CorruptBatch("the fields of a record do not fit its declared length")
            # The value's length: negative, which is odd in its first byte, means null.
            add_mark(mark + (body[key_end] & 1))
            add_end(end)
            position = end
        if position != batch_end:
            raise CorruptBatch(f"{batch_end - position} bytes follow the last of {count} records")


def rebuild(header: BatchHeader, scanned: ScannedRecords, kept: Sequence[bool]) -> bytearray:
    """The batch with only the `kept` of its records: same offsets, same base timestamp, same codec."""
    body, ends = scanned.body, scanned.ends
    pieces = [body[start:end] for start, end, keep in zip([0, *ends], ends, kept, strict=False) if keep]
    records = b"".join(pieces)
    if header.codec is not Codec.NONE:
        records = compress(header.codec, records)
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time:
        deltas = scanned.timestamp_deltas
        max_timestamp = header.base_timestamp + max([d for d, keep in zip(deltas, kept, strict=True) if keep])
    batch = bytearray(HEADER_BYTES)
    batch += records
    changed = header._replace(
        batch_length=len(batch) - LOG_OVERHEAD_BYTES, max_timestamp=max_timestamp, record_count=len(pieces)
    )
    HEADER.pack_into(batch, 0, *changed)
    renew_crc(batch, 0)
    return batch
