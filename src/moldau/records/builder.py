"""Records into a batch.

Invariants of every batch that leaves here: offsets grow, the last offset delta is that of the last record (or of the
record the cleaner took from behind it), the maximum timestamp is the largest one, the CRC holds. The result is a
bytearray, so that the log can stamp it in place.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from moldau.records.batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Buffer,
    read_header,
    renew_crc,
)
from moldau.records.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES, Codec, compress
from moldau.records.errors import InvalidRecord
from moldau.records.reader import Headers, Record, RecordTuple, read_body
from moldau.records.varint import encode_varint, sized_table, varint_table

_NULL = encode_varint(-1)
_MAX_INT32 = 2**31 - 1


@dataclass(slots=True, frozen=True)
class BatchOptions:
    """Everything about a batch but its records. The defaults make a plain batch, as a simple producer would send it."""

    base_offset: int = 0
    codec: Codec = Codec.NONE
    level: int | None = None
    leader_epoch: int = NO_LEADER_EPOCH
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    transactional: bool = False
    control: bool = False
    log_append_time_ms: int | None = None  # every record then has this timestamp
    delete_horizon_ms: int | None = None

    @property
    def attributes(self) -> int:
        return (
            self.codec
            | (LOG_APPEND_TIME_FLAG if self.log_append_time_ms is not None else 0)
            | (TRANSACTIONAL_FLAG if self.transactional else 0)
            | (CONTROL_FLAG if self.control else 0)
            | (DELETE_HORIZON_FLAG if self.delete_horizon_ms is not None else 0)
        )


_PLAIN = BatchOptions()


class BatchBuilder:
    """Takes records one by one (`append`) or many at a time (`extend`), and gives the batch (`finish`)."""

    __slots__ = (
        "_base_timestamp",
        "_count",
        "_max_timestamp",
        "_measured_parts",
        "_next_offset",
        "_options",
        "_parts",
        "_size_bytes",
    )

    def __init__(self, options: BatchOptions = _PLAIN) -> None:
        self._options = options
        self._parts: list[Buffer] = []
        self._size_bytes = HEADER_BYTES
        self._measured_parts = 0
        self._count = 0
        self._next_offset = options.base_offset
        self._base_timestamp = options.delete_horizon_ms
        self._max_timestamp = NO_TIMESTAMP

    @property
    def record_count(self) -> int:
        return self._count

    @property
    def next_offset(self) -> int:
        return self._next_offset

    @property
    def size_bytes(self) -> int:
        """Size of the batch if it were finished now without compression."""
        self._size_bytes += sum(map(len, self._parts[self._measured_parts :]))
        self._measured_parts = len(self._parts)
        return self._size_bytes

    def append(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
        """Add a record at the next offset; returns that offset."""
        offset = self._next_offset
        self.extend(((offset, timestamp, key, value, headers),))
        return offset

    def extend(self, records: Iterable[RecordTuple | Record]) -> None:
        """Add records that know their offsets, which must grow and may have gaps (the cleaner leaves some).

        All or nothing: a record that cannot be added leaves the builder as it was. Records of common sizes are put
        together from tables; those with headers or long fields take the general road of `_encode_record`. Neighbours
        mostly share a timestamp, so its encoding is kept from one to the next.
        """
        varints, sized = varint_table(), sized_table()
        base_offset, next_offset = self._options.base_offset, self._next_offset
        base_timestamp, max_timestamp = self._base_timestamp, self._max_timestamp
        parts: list[Buffer] = []
        count = 0
        last_timestamp: int | None = None
        prefix, prefix_size = b"", 0  # attributes and timestamp delta; the size has room for the header count
        for record in records:
            offset, timestamp, key, value, headers = record
            if offset < next_offset:
                raise InvalidRecord(f"offset {offset} does not follow {next_offset - 1}: offsets in a batch must grow")
            next_offset = offset + 1
            count += 1
            if timestamp != last_timestamp:
                if base_timestamp is None:
                    base_timestamp = timestamp
                max_timestamp = max(max_timestamp, timestamp)
                last_timestamp = timestamp
                prefix = b"\0" + encode_varint(timestamp - base_timestamp)
                prefix_size = len(prefix) + 1
            delta = offset - base_offset
            if headers:
                parts.append(_encode_record(prefix, delta, *record[2:]))
                continue
            size = prefix_size + (1 if delta < 64 else 2)
            try:
                if key is None:
                    key_varint, key = _NULL, b""
                    size += 1
                else:
                    key_varint = varints[len(key)]
                    size += sized[len(key)]
                if value is None:
                    value_varint, value = _NULL, b""
                    size += 1
                else:
                    value_varint = varints[len(value)]
                    size += sized[len(value)]
                parts += (varints[size], prefix, varints[delta], key_varint, key, value_varint, value, b"\0")
            except IndexError:
                parts.append(_encode_record(prefix, delta, *record[2:]))
        self._parts += parts
        self._count += count
        self._next_offset = next_offset
        self._base_timestamp, self._max_timestamp = base_timestamp, max_timestamp

    def finish(self, last_offset: int | None = None) -> bytearray:
        """The batch. The cleaner names the `last_offset` of the original, which may be gone from the records.

        The builder stays as it is and may go on; a batch of no records is a header alone.
        """
        options = self._options
        if last_offset is None:
            last_offset = max(self._next_offset - 1, options.base_offset)
        last_offset_delta = last_offset - options.base_offset
        if last_offset < self._next_offset - 1 or not 0 <= last_offset_delta <= _MAX_INT32:
            raise InvalidRecord(
                f"last offset {last_offset} does not suit a batch of offsets from {options.base_offset}"
            )
        body = self._parts
        if options.codec:
            body = [compress(options.codec, b"".join(body), options.level)]
        batch = bytearray().join([bytes(HEADER_BYTES), *body])
        append_time_ms = options.log_append_time_ms
        HEADER.pack_into(
            batch,
            0,
            options.base_offset,
            len(batch) - LOG_OVERHEAD_BYTES,
            options.leader_epoch,
            MAGIC,
            0,
            options.attributes,
            last_offset_delta,
            NO_TIMESTAMP if self._base_timestamp is None else self._base_timestamp,
            self._max_timestamp if append_time_ms is None else append_time_ms,
            options.producer_id,
            options.producer_epoch,
            options.base_sequence,
            self._count,
        )
        renew_crc(batch, 0)
        return batch


def _encode_record(prefix: bytes, delta: int, key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """One record of any shape; `prefix` is its attributes and timestamp delta."""
    parts = [prefix, encode_varint(delta), *_encode_field(key), *_encode_field(value), encode_varint(len(headers))]
    for name, header_value in headers:
        parts += (*_encode_field(name), *_encode_field(header_value))
    body = b"".join(parts)
    return encode_varint(len(body)) + body


def _encode_field(data: bytes | None) -> tuple[bytes, bytes]:
    return (_NULL, b"") if data is None else (encode_varint(len(data)), data)


def build_batch(records: Iterable[RecordTuple | Record], options: BatchOptions = _PLAIN) -> bytearray:
    """A batch of records that know their offsets; `options.base_offset` is the offset of the batch itself."""
    builder = BatchBuilder(options)
    builder.extend(records)
    return builder.finish()


def empty_batch(header: BatchHeader) -> bytearray:
    """What the cleaner keeps of a batch whose records are all gone but whose producer state still matters."""
    batch = bytearray(HEADER_BYTES)
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_FLAG)
    emptied = header._replace(
        batch_length=HEADER_BYTES - LOG_OVERHEAD_BYTES,
        attributes=attributes,
        base_timestamp=NO_TIMESTAMP,
        record_count=0,
    )
    HEADER.pack_into(batch, 0, *emptied)
    renew_crc(batch, 0)
    return batch


def recompress(
    buffer: Buffer,
    position: int,
    codec: Codec,
    level: int | None = None,
    max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> bytearray:
    """The batch at `position` under another compression type, its records untouched (broker-side compression.type)."""
    header = read_header(buffer, position)
    body = compress(codec, read_body(buffer, position, header, max_bytes), level)
    batch = bytearray().join([bytes(HEADER_BYTES), body])
    changed = header._replace(
        batch_length=len(batch) - LOG_OVERHEAD_BYTES, attributes=(header.attributes & ~CODEC_MASK) | codec
    )
    HEADER.pack_into(batch, 0, *changed)
    renew_crc(batch, 0)
    return batch
