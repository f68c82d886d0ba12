"""What is checked before a batch enters the log, and the few changes a leader's topic settings may demand.

A follower checks only that the bytes are whole and continue its log: the leader has checked the rest. For a leader,
usually that is the header, the checksum and the first record's length, and the bytes stay as the producer made them.
Records are looked at only if the topic is compacted (every record needs a key), bounds timestamps from below, or has
another codec. That may take long (`takes_long`): then it is done off the loop, and the batch comes back as
`CheckedBatch`.

Invariant: a batch expands to `LogConfig.accepted_bytes_max` at most; at most `RECORD_ERRORS_MAX` records are blamed.
"""

import contextlib
import time
from dataclasses import dataclass
from itertools import islice

from moldau.log.config import LogConfig
from moldau.log.errors import (
    CorruptRecord,
    InvalidRecord,
    InvalidTimestamp,
    LogError,
    NotOneBatch,
    RecordTooLarge,
    UnexpectedAppendOffset,
    UnsupportedCompressionType,
)
from moldau.log.origin import AppendOrigin
from moldau.records import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
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
from moldau.records.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    MAGIC,
    MAGIC_AT,
    MIN_BATCH_LENGTH,
    RECORD_BYTES_MIN,
    HeaderFields,
    as_header,
    may_hold,
    unpack_header,
)
from moldau.records.checksum import crc32c
from moldau.records.reader import read_body

WritableBuffer = bytearray | memoryview
_CLIENT = AppendOrigin.CLIENT  # looking into an Enum takes as long as unpacking a header
LAST_CODEC = int(max(Codec))
_LENGTH_MIN = 14  # of any format Kafka ever had: shorter is damage
RECORD_ERRORS_MAX = 1_000
# A batch with more records, or that expands to more bytes, is not looked through on the loop.
_QUICK_RECORDS = 500
_QUICK_BYTES = 64 * 1024
_NAMED_RECORDS = 5_000
_NAMED_BYTES = 4 * 1024 * 1024
# A thread that reads records lets the loop have the interpreter now and then: it would wait for a switch otherwise.
_RECORDS_PER_BREATH = 2_000
_BREATH_SECONDS = 0.0001


@dataclass(slots=True, frozen=True)
class CheckedBatch:
    """A batch that was found valid under these settings; under others it must be looked at again."""

    config: LogConfig
    valid: "ValidBatch"


# The batch to write, its header's fields, its size, its largest timestamp, and the append time or -1.
ValidBatch = tuple[WritableBuffer, HeaderFields, int, int, int]


def validate_for_leader(
    buffer: WritableBuffer, config: LogConfig, origin: AppendOrigin, now_ms: int, *, stamps: bool = True
) -> ValidBatch:
    """The one batch of a produce request, checked and brought into the topic's shape. Without `stamps`, the time of the
    append is left to who appends it later (`stamp_valid`).

    Every append comes through here, so the header is unpacked once and stays a plain tuple: a `BatchHeader` is made
    only by those who must explain or rewrite something.
    """
    if len(buffer) < HEADER_BYTES:
        raise _unreadable(buffer)
    fields: HeaderFields = unpack_header(buffer)
    base_offset, length, _, magic, crc, attributes, delta, _, max_timestamp, producer_id, _, sequence, count = fields
    if magic != MAGIC or length < MIN_BATCH_LENGTH:
        raise _unreadable(buffer)
    size = LOG_OVERHEAD_BYTES + length
    if size != len(buffer):
        buffer = _only_batch(buffer, size)
    if size > config.max_message_bytes and origin is not AppendOrigin.RAFT_LEADER:
        raise _too_large(size, config)
    view = buffer if type(buffer) is memoryview else memoryview(buffer)
    if crc32c(view[ATTRIBUTES_AT:]) != crc:
        raise _unreadable(buffer)
    if origin is _CLIENT and (
        base_offset or attributes & CONTROL_FLAG or not count or (producer_id >= 0 and sequence < 0)
    ):
        raise _refuse_client(as_header(fields))
    if count != delta + 1 or count < 0:
        raise InvalidRecord(f"the batch says {count} records, its offsets say {delta + 1}")
    codec = attributes & CODEC_MASK
    if codec > LAST_CODEC:
        raise UnsupportedCompressionType(f"compression type {codec} does not exist")
    if count and not (count * RECORD_BYTES_MIN <= config.accepted_bytes_max if codec else may_hold(view, size, count)):
        raise InvalidRecord(f"the batch says {count} records: its {size} bytes cannot be those")
    if not config.takes_batches_as_they_are:
        return _bring_into_shape(buffer, as_header(fields), config, now_ms, stamps=stamps)
    if max_timestamp - now_ms > config.message_timestamp_after_max_ms or attributes & LOG_APPEND_TIME_FLAG:
        raise _bad_timestamp(buffer, as_header(fields), config, now_ms)
    return buffer, fields, size, max_timestamp, -1


def stamp_valid(valid: ValidBatch, now_ms: int) -> ValidBatch:
    """The time of the append, where the topic wants that one."""
    buffer, fields, size, _, _ = valid
    stamp_log_append_time(buffer, 0, now_ms)
    return buffer, fields, size, now_ms, now_ms


def _bring_into_shape(
    buffer: WritableBuffer, header: BatchHeader, config: LogConfig, now_ms: int, *, stamps: bool
) -> ValidBatch:
    """For topics that look into their records, choose the codec, or stamp the time."""
    target = config.target_codec
    recompresses = target is not None and header.attributes & CODEC_MASK != target and not header.is_control
    if config.must_read_records or recompresses:
        _check_records(buffer, header, config, now_ms)
    if target is not None and recompresses:
        buffer = _recompress(buffer, target, config)
        header = read_header(buffer)
        if header.size_bytes > config.max_message_bytes:
            raise _too_large(header.size_bytes, config)
    valid = (buffer, header, header.size_bytes, header.max_timestamp, -1)
    if config.stamps_append_time:
        return stamp_valid(valid, now_ms) if stamps else valid
    if header.max_timestamp - now_ms > config.message_timestamp_after_max_ms or header.is_log_append_time:
        raise _bad_timestamp(buffer, header, config, now_ms)
    return valid


def takes_long(buffer: WritableBuffer, config: LogConfig) -> bool:
    """Whether a producer's batch is better checked off the loop (`check_at_leisure`)."""
    if config.takes_batches_as_they_are or len(buffer) < HEADER_BYTES:
        return False
    header = as_header(unpack_header(buffer))
    codec = header.attributes & CODEC_MASK
    if header.magic != MAGIC or codec > LAST_CODEC or not 0 < header.record_count == header.last_offset_delta + 1:
        return False  # refused without a look at the records
    if not config.must_read_records and config.target_codec in (None, codec):
        return False
    if header.record_count > _QUICK_RECORDS or len(buffer) > _QUICK_BYTES:
        return True
    try:
        read_body(buffer, 0, header, _QUICK_BYTES)
    except DecompressedTooLarge:
        return True
    except RecordsError:
        pass  # refused soon
    return False


def check_at_leisure(buffer: WritableBuffer, config: LogConfig, now_ms: int) -> CheckedBatch | LogError:
    """`validate_for_leader` for a thread. What it found wrong is returned, for whoever appends to raise. Now is not the
    time of the append: others may come first."""
    try:
        return CheckedBatch(config, validate_for_leader(buffer, config, _CLIENT, now_ms, stamps=False))
    except LogError as error:
        return error


def validate_for_follower(
    buffer: bytes | bytearray | memoryview, log_end_offset: int, leader_epoch: int | None
) -> list[tuple[int, BatchHeader]]:
    """Where the whole batches of a fetched buffer lie, up to the first of an epoch newer than `leader_epoch`."""
    batches = []
    next_offset = log_end_offset
    try:
        for position, header in iter_batches(buffer):
            check_crc(buffer, position, header)
            if leader_epoch is not None and header.leader_epoch > leader_epoch:
                break
            if header.base_offset < next_offset:
                raise UnexpectedAppendOffset(
                    f"batch at offset {header.base_offset} does not continue the log at {next_offset}",
                    header.base_offset,
                    header.last_offset,
                )
            next_offset = header.next_offset
            batches.append((position, header))
    except CorruptBatch as error:
        raise CorruptRecord(str(error)) from error
    return batches


def _too_large(size: int, config: LogConfig) -> RecordTooLarge:
    return RecordTooLarge(
        f"the batch has {size} bytes, the topic takes {config.max_message_bytes}: "
        "raise max.message.bytes, or lower the producer's max.request.size"
    )


def _only_batch(buffer: WritableBuffer, size: int) -> WritableBuffer:
    """Cut off what a client left behind its batch; a second batch is an error, as in Kafka."""
    if len(buffer) < size:
        raise NotOneBatch(f"the batch says {size} bytes, only {len(buffer)} came: the request was cut short")
    if next(iter_batches(buffer, size), None) is not None:
        raise NotOneBatch("a produce request must hold exactly one record batch per partition")
    return memoryview(buffer)[:size]


def _unreadable(buffer: WritableBuffer) -> LogError:
    """What is wrong with a batch that cannot be read, found out by looking again, this time closely.

    As Kafka tells them apart: no whole batch, or one of an older format, is invalid; a damaged one is corrupt."""
    try:
        check_crc(buffer, 0, read_header(buffer))
    except CorruptBatch as found:
        error = found
    if len(buffer) < LOG_OVERHEAD_BYTES:
        return NotOneBatch(f"a produce request must hold one record batch per partition: {error}")
    length = int.from_bytes(buffer[LOG_OVERHEAD_BYTES - 4 : LOG_OVERHEAD_BYTES], "big", signed=True)
    if length < _LENGTH_MIN:
        return CorruptRecord(str(error))
    if len(buffer) <= MAGIC_AT or buffer[MAGIC_AT] < MAGIC:
        return NotOneBatch(str(error))
    if buffer[MAGIC_AT] == MAGIC and len(buffer) < LOG_OVERHEAD_BYTES + length:
        return NotOneBatch(str(error))
    return CorruptRecord(str(error))


def _bad_timestamp(buffer: WritableBuffer, header: BatchHeader, config: LogConfig, now_ms: int) -> InvalidTimestamp:
    """Names the records that are to blame."""
    if header.max_timestamp - now_ms <= config.message_timestamp_after_max_ms:
        return InvalidTimestamp(
            "the batch claims LogAppendTime, but the topic's message.timestamp.type is CreateTime: send create times"
        )
    newest = now_ms + config.message_timestamp_after_max_ms
    too_new: list[tuple[int, str]] = []
    with contextlib.suppress(RecordsError):  # then the header alone is to blame
        # It is refused anyway, on the loop: naming the records is a service to those who sent a usual number of them.
        for index, record in enumerate(islice(iter_records(buffer, 0, header, _NAMED_BYTES), _NAMED_RECORDS)):
            if record.timestamp > newest:
                too_new.append((index, f"timestamp {record.timestamp} is after {newest}"))
                if len(too_new) == RECORD_ERRORS_MAX:
                    break
    return InvalidTimestamp(
        f"timestamp {header.max_timestamp} is more than message.timestamp.after.max.ms="
        f"{config.message_timestamp_after_max_ms} ahead of the broker's clock: check the producer's clock",
        tuple(too_new),
    )


def _refuse_client(header: BatchHeader) -> InvalidRecord:
    if header.base_offset != 0:
        return InvalidRecord(f"the base offset of a produced batch must be 0, not {header.base_offset}")
    if header.is_control:
        return InvalidRecord("clients must not write control records")
    if header.record_count == 0:
        return InvalidRecord("the batch is empty")
    return InvalidRecord(f"producer {header.producer_id} sent sequence number {header.base_sequence}")


def _check_records(buffer: WritableBuffer, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """The checks that need the records: that they are some, keys on a compacted topic, timestamps not too old.

    If there are many this is a thread's work: now and then it lets go of the interpreter, for the loop to go on.
    """
    if header.is_control:
        return
    need_key = config.compact
    oldest = now_ms - config.message_timestamp_before_max_ms
    if config.stamps_append_time:
        oldest = -1
    keyless: list[tuple[int, str]] = []
    too_old: list[tuple[int, str]] = []
    try:
        for index, record in enumerate(iter_records(buffer, 0, header, config.accepted_bytes_max)):
            if need_key and record.key is None:
                keyless.append((index, "a compacted topic needs a key in every record"))
            if 0 <= record.timestamp < oldest:
                too_old.append((index, f"timestamp {record.timestamp} is before {oldest}"))
            if len(keyless) >= RECORD_ERRORS_MAX or len(too_old) >= RECORD_ERRORS_MAX:
                break
            if index % _RECORDS_PER_BREATH == _RECORDS_PER_BREATH - 1:
                time.sleep(_BREATH_SECONDS)
    except RecordsError as error:
        raise InvalidRecord(str(error)) from error
    if keyless:
        raise InvalidRecord("a compacted topic needs a key in every record", tuple(keyless))
    if too_old:
        raise InvalidTimestamp("records are older than message.timestamp.before.max.ms allows", tuple(too_old))


def _recompress(buffer: WritableBuffer, codec: Codec, config: LogConfig) -> bytearray:
    """The same records under another codec. They are not parsed: only the section they are in is packed anew."""
    try:
        return recompress(buffer, 0, codec, max_bytes=config.accepted_bytes_max)
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
