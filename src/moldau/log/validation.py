"""What a leader checks before a batch enters the log, and the few changes the topic's settings may demand.

Usually that is the header and the checksum, and the bytes stay as the producer made them. Records are looked at only
if the topic is compacted (every record needs a key), bounds timestamps from below, or has another codec.
"""

from typing import NamedTuple

from moldau.log.config import LONG_MAX, LogConfig, TimestampType
from moldau.log.errors import (
    CorruptRecord,
    InvalidRecord,
    InvalidTimestamp,
    RecordTooLarge,
    UnsupportedCompressionType,
)
from moldau.log.producer_state import AppendOrigin
from moldau.records import (
    BatchHeader,
    Codec,
    CorruptBatch,
    DecompressedTooLarge,
    EndTransactionMarker,
    RecordsError,
    check_crc,
    iter_batches,
    iter_records,
    read_end_transaction_marker,
    read_header,
    recompress,
    stamp_log_append_time,
)
from moldau.records.batch import CODEC_MASK

WritableBuffer = bytearray | memoryview
_KNOWN_CODECS = max(Codec)


class ValidBatch(NamedTuple):
    buffer: WritableBuffer
    header: BatchHeader
    size: int
    max_timestamp: int
    log_append_time: int


def validate_for_leader(buffer: WritableBuffer, config: LogConfig, origin: AppendOrigin, now_ms: int) -> ValidBatch:
    """The one batch of a produce request, checked and brought into the topic's shape."""
    try:
        header = read_header(buffer)
        size = header[1] + 12  # header.size_bytes, without the call
        if size != len(buffer):
            buffer = _only_batch(buffer, size)
        if size > config.max_message_bytes and origin is not AppendOrigin.RAFT_LEADER:
            raise RecordTooLarge(
                f"the batch has {size} bytes, the topic takes {config.max_message_bytes}: "
                "raise max.message.bytes, or lower the producer's max.request.size"
            )
        check_crc(buffer, 0, header)
    except CorruptBatch as error:
        raise CorruptRecord(str(error)) from error
    if origin is AppendOrigin.CLIENT:
        _check_client(header)
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidRecord(
            f"the batch says {header.record_count} records, its offsets say {header.last_offset_delta + 1}"
        )
    codec = header.attributes & CODEC_MASK
    if codec > _KNOWN_CODECS:
        raise UnsupportedCompressionType(f"compression type {codec} does not exist")
    if config.compact or config.message_timestamp_before_max_ms != LONG_MAX:
        _check_records(buffer, header, config, now_ms)
    target = config.compression_type.codec
    if target is not None and codec != target and not header.is_control:
        buffer = _recompress(buffer, target, config)
        header = read_header(buffer)
        size = header.size_bytes
        if size > config.max_message_bytes:
            raise RecordTooLarge(
                f"the batch has {size} bytes after recompression with {target.name.lower()}, "
                f"the topic takes {config.max_message_bytes}"
            )
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        stamp_log_append_time(buffer, 0, now_ms)
        return ValidBatch(buffer, header, size, now_ms, now_ms)
    if header.max_timestamp - now_ms > config.message_timestamp_after_max_ms:
        raise InvalidTimestamp(
            f"timestamp {header.max_timestamp} is more than message.timestamp.after.max.ms="
            f"{config.message_timestamp_after_max_ms} ahead of the broker's clock: check the producer's clock"
        )
    if header.is_log_append_time:
        raise InvalidTimestamp("the batch claims LogAppendTime, but the topic's message.timestamp.type is CreateTime")
    return ValidBatch(buffer, header, size, header.max_timestamp, -1)


def _only_batch(buffer: WritableBuffer, size: int) -> WritableBuffer:
    """Cut off what a client left behind its batch; a second batch is an error, as in Kafka."""
    if len(buffer) < size:
        raise CorruptRecord(f"the batch says {size} bytes, only {len(buffer)} came: the request was cut short")
    if next(iter_batches(buffer, size), None) is not None:
        raise InvalidRecord("a produce request must hold exactly one record batch per partition")
    return memoryview(buffer)[:size]


def _check_client(header: BatchHeader) -> None:
    if header.base_offset != 0:
        raise InvalidRecord(f"the base offset of a produced batch must be 0, not {header.base_offset}")
    if header.is_control:
        raise InvalidRecord("clients must not write control records")
    if header.record_count == 0:
        raise InvalidRecord("the batch is empty")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidRecord(f"producer {header.producer_id} sent sequence number {header.base_sequence}")


def _check_records(buffer: WritableBuffer, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """The checks that need the records: keys on a compacted topic, timestamps not too old."""
    if header.is_control:
        return
    need_key = config.compact
    oldest = now_ms - config.message_timestamp_before_max_ms
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        oldest = -1
    keyless: list[tuple[int, str]] = []
    too_old: list[tuple[int, str]] = []
    try:
        for index, record in enumerate(iter_records(buffer, 0, header, config.max_decompressed_bytes)):
            if need_key and record.key is None:
                keyless.append((index, "a compacted topic needs a key in every record"))
            if 0 <= record.timestamp < oldest:
                too_old.append((index, f"timestamp {record.timestamp} is before {oldest}"))
    except CorruptBatch as error:
        raise CorruptRecord(str(error)) from error
    except RecordsError as error:
        raise InvalidRecord(str(error)) from error
    if keyless:
        raise InvalidRecord("a compacted topic needs a key in every record", tuple(keyless))
    if too_old:
        raise InvalidTimestamp("records are older than message.timestamp.before.max.ms allows", tuple(too_old))


def _recompress(buffer: WritableBuffer, codec: Codec, config: LogConfig) -> bytearray:
    """The same records under another codec. They are not parsed: only the section they are in is packed anew."""
    try:
        return recompress(buffer, 0, codec, max_bytes=config.max_decompressed_bytes)
    except DecompressedTooLarge as error:
        raise RecordTooLarge(str(error)) from error
    except RecordsError as error:
        raise CorruptRecord(str(error)) from error


def read_marker(buffer: bytes | bytearray | memoryview, header: BatchHeader) -> EndTransactionMarker | None:
    """The transaction marker in a control batch; None if the cleaner has emptied it, or it is no marker."""
    if not header.record_count:
        return None
    try:
        return read_end_transaction_marker(buffer, 0, header)
    except RecordsError as error:
        raise CorruptRecord(f"the control batch at offset {header.base_offset} holds no marker: {error}") from error
