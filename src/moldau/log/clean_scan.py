"""The cleaner's own look at records: key, tombstone or not, and which bytes; values are never touched.

A record keeps its bytes when others of its batch go, because they count from the batch's base offset and base
timestamp, which stay. So a cleaned batch is a new header and some of the old bytes.
"""

from itertools import repeat

from moldau.records import HEADER_BYTES, LOG_OVERHEAD_BYTES, BatchHeader, Codec, CorruptBatch, compress
from moldau.records.batch import HEADER, renew_crc
from moldau.records.varint import HIGH_BITS, LOW_BITS, ZIGZAG, read_length, read_varint, read_varlong

# offset delta, timestamp delta, key, whether it is a tombstone, first byte, byte behind the last
ScannedRecord = tuple[int, int, bytes | None, bool, int, int]


def scan_records(body: bytes, count: int) -> list[ScannedRecord]:
    """Every record of an expanded batch. CorruptBatch if they do not fill it exactly."""
    found: list[ScannedRecord] = []
    try:
        position = _scan(body, count, found)
    except LookupError:
        raise CorruptBatch("a record reaches beyond its batch, or has a negative length") from None
    if position != len(body):
        raise CorruptBatch(f"{len(body) - position} bytes follow the last of {count} records")
    return found


def _scan(body: bytes, count: int, found: list[ScannedRecord]) -> int:
    """The hot loop of compaction, hence inlined: varints of one or two bytes are read through tables."""
    low_bits, high_bits, zigzag = LOW_BITS, HIGH_BITS, ZIGZAG
    add = found.append
    position = 0
    size = len(body)
    for _ in repeat(None, count):
        start = position
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
            timestamp_delta = zigzag[byte]
            position += 1
        else:
            timestamp_delta, position = read_varlong(body, position)

        byte = body[position]
        position += 1
        if byte < 0x80:
            offset_delta = zigzag[byte]
        else:
            offset_delta, position = read_length(body, position - 1)

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
        if not start < position < end <= size or offset_delta < 0:
            raise CorruptBatch("the fields of a record do not fit its declared length")
        # The value's length: negative, which is odd in its first byte, means null.
        add((offset_delta, timestamp_delta, key, bool(body[position] & 1), start, end))
        position = end
    return position


def rebuild(header: BatchHeader, body: bytes, kept: list[ScannedRecord]) -> bytearray:
    """The batch with only the `kept` of its records: same offsets, same base timestamp, same codec."""
    records = b"".join([body[record[4] : record[5]] for record in kept])
    if header.codec is not Codec.NONE:
        records = compress(header.codec, records)
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time:
        max_timestamp = header.base_timestamp + max(record[1] for record in kept)
    batch = bytearray(HEADER_BYTES)
    batch += records
    changed = header._replace(
        batch_length=len(batch) - LOG_OVERHEAD_BYTES, max_timestamp=max_timestamp, record_count=len(kept)
    )
    HEADER.pack_into(batch, 0, *changed)
    renew_crc(batch, 0)
    return batch
