"""Record batch v2, seen from outside: header, checksum, and the few fields a broker rewrites in place.

Nothing here looks at records, so nothing here costs more for a big batch than for a small one, except the CRC.
Offsets of fields below are Kafka's own; the CRC covers everything from the attributes to the end of the batch,
so base offset and leader epoch may be stamped without touching it.

Invariant: a `BatchHeader` that left `read_header` has a length of at least the header, magic 2, and no negative
counts; its `size_bytes` may still reach beyond the buffer, which `iter_batches` and `check_crc` refuse.
"""

import struct
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from moldau.records.checksum import crc32c
from moldau.records.codecs import Codec
from moldau.records.errors import CorruptBatch, UnsupportedCompression

Buffer = bytes | bytearray | memoryview
WritableBuffer = bytearray | memoryview

MAGIC = 2
HEADER_BYTES = 61
LOG_OVERHEAD_BYTES = 12  # base offset and batch length: what a reader needs to find the next batch
MIN_BATCH_LENGTH = HEADER_BYTES - LOG_OVERHEAD_BYTES
RECORD_BYTES_MIN = 7  # length, attributes, two deltas, no key, no value, no headers: a byte each

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
NO_TIMESTAMP = -1
MAX_SEQUENCE = 2**31 - 1

CODEC_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET_AND_LENGTH = struct.Struct(">qi")
_PLACE = struct.Struct(">qii")
_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT16 = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")

LEADER_EPOCH_AT = 12
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
MAX_TIMESTAMP_AT = 35
PRODUCER_AT = 43
COVERED_BY_CRC = slice(ATTRIBUTES_AT, None)

assert HEADER.size == HEADER_BYTES


class BatchHeader(NamedTuple):
    """The 61 bytes before the records, in the order they are written."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return LOG_OVERHEAD_BYTES + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; the sequence wraps to 0 after 2^31 - 1."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE

    @property
    def codec(self) -> Codec:
        try:
            return Codec(self.attributes & CODEC_MASK)
        except ValueError:
            raise UnsupportedCompression(f"compression type {self.attributes & CODEC_MASK} does not exist") from None

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_FLAG)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When the cleaner may drop the batch's tombstones and markers; stored as base timestamp (KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None


# The fields of a header in order, before anybody gave them names: for the paths every batch takes.
HeaderFields = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
as_header: partial[BatchHeader] = partial(tuple.__new__, BatchHeader)  # BatchHeader._make without its check
unpack_header = HEADER.unpack_from
pack_place = _PLACE.pack_into  # base offset, batch length, leader epoch: `stamp` for those who know the length


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`; the records after it need not be in the buffer."""
    if position < 0 or len(buffer) - position < HEADER_BYTES:
        raise CorruptBatch(f"{max(0, len(buffer) - position)} bytes are too few for a batch header of {HEADER_BYTES}")
    header = as_header(unpack_header(buffer, position))
    if header[1] < MIN_BATCH_LENGTH or header[3] != MAGIC or header[6] < 0 or header[12] < 0:
        raise CorruptBatch(_what_is_wrong(header))
    return header


def _what_is_wrong(header: BatchHeader) -> str:
    if header.batch_length < MIN_BATCH_LENGTH:
        return f"batch length {header.batch_length} is below the minimum of {MIN_BATCH_LENGTH}"
    if header.magic != MAGIC:
        return f"magic {header.magic} is not {MAGIC}: only record batch v2 is supported, upgrade the client"
    if header.last_offset_delta < 0:
        return f"last offset delta {header.last_offset_delta} is negative"
    return f"record count {header.record_count} is negative"


def may_hold(buffer: Buffer, size_bytes: int, record_count: int) -> bool:
    """Whether the body of an uncompressed batch of `size_bytes` can be so many records, judged by the first of them.

    Does not look at the others, so it costs the same for all batches: a count that lies far, a body that is none and a
    single record that does not fill its batch are found out, not every lie.
    """
    room = size_bytes - HEADER_BYTES - RECORD_BYTES_MIN * (record_count - 1)
    if room < RECORD_BYTES_MIN:
        return False
    byte = buffer[HEADER_BYTES]
    length, taken = byte & 127, 1
    while byte > 127:
        if taken == 4:  # 256 MB: more than a request may have
            return False
        byte = buffer[HEADER_BYTES + taken]
        length |= (byte & 127) << 7 * taken
        taken += 1
    if length & 1:  # negative
        return False
    taken += length >> 1
    return taken >= RECORD_BYTES_MIN and (taken == room if record_count == 1 else taken <= room)


def iter_batches(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Every whole batch from `position` on. A partial one at the end just ends it: fetches may cut a batch off."""
    end = len(buffer)
    while end - position >= LOG_OVERHEAD_BYTES:
        length: int = _OFFSET_AND_LENGTH.unpack_from(buffer, position)[1]
        if length < MIN_BATCH_LENGTH:
            raise CorruptBatch(
                f"batch length {length} at position {position} is below the minimum of {MIN_BATCH_LENGTH}"
            )
        if end - position < LOG_OVERHEAD_BYTES + length:
            return
        yield position, read_header(buffer, position)
        position += LOG_OVERHEAD_BYTES + length


def compute_crc(buffer: Buffer, position: int, size_bytes: int) -> int:
    """CRC-32C of the batch of `size_bytes` at `position`."""
    value: int = crc32c(memoryview(buffer)[position + ATTRIBUTES_AT : position + size_bytes])
    return value


def check_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Raise CorruptBatch unless the whole batch is in the buffer and its bytes match the header's CRC."""
    size_bytes = LOG_OVERHEAD_BYTES + header[1]
    if len(buffer) - position < size_bytes:
        raise CorruptBatch(f"the batch says {size_bytes} bytes, only {len(buffer) - position} are there")
    crc = crc32c(memoryview(buffer)[position + ATTRIBUTES_AT : position + size_bytes])
    if crc != header[4]:
        raise CorruptBatch(f"CRC {crc:#010x} of the batch at offset {header[0]} is not the stored {header[4]:#010x}")


def stamp(buffer: WritableBuffer, position: int, base_offset: int, leader_epoch: int) -> None:
    """Give an appended batch its place in the log. Both fields precede the CRC range, so the CRC stays valid."""
    _INT64.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + LEADER_EPOCH_AT, leader_epoch)


def stamp_log_append_time(buffer: WritableBuffer, position: int, timestamp_ms: int) -> None:
    """Make every record of the batch carry the broker's time (message.timestamp.type=LogAppendTime); renews the CRC."""
    _set_timestamp(buffer, position, LOG_APPEND_TIME_FLAG, timestamp_ms)


def set_max_timestamp(buffer: WritableBuffer, position: int, timestamp_ms: int) -> None:
    """Correct the largest create time, without touching the records; renews the CRC."""
    _set_timestamp(buffer, position, 0, timestamp_ms)


def _set_timestamp(buffer: WritableBuffer, position: int, flag: int, timestamp_ms: int) -> None:
    header = read_header(buffer, position)
    attributes = (header.attributes & ~LOG_APPEND_TIME_FLAG) | flag
    if attributes == header.attributes and timestamp_ms == header.max_timestamp:
        return
    _INT16.pack_into(buffer, position + ATTRIBUTES_AT, attributes)
    _INT64.pack_into(buffer, position + MAX_TIMESTAMP_AT, timestamp_ms)
    renew_crc(buffer, position)


def set_producer(
    buffer: WritableBuffer, position: int, producer_id: int, producer_epoch: int, base_sequence: int
) -> None:
    """Put a producer's identity on a finished batch; renews the CRC."""
    _PRODUCER.pack_into(buffer, position + PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    renew_crc(buffer, position)


def renew_crc(buffer: WritableBuffer, position: int) -> None:
    """Store the CRC of the batch's present bytes: the last step of every change inside the CRC range."""
    header = read_header(buffer, position)
    if len(buffer) - position < header.size_bytes:
        raise CorruptBatch(f"the batch says {header.size_bytes} bytes, only {len(buffer) - position} are there")
    _UINT32.pack_into(buffer, position + CRC_AT, compute_crc(buffer, position, header.size_bytes))
