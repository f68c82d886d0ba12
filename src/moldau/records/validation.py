"""What a leader checks in a batch before it appends it: first by the header, and only if it must by the records.

The header checks are the whole story for most topics. The records are looked at when a rule is about them: keys on
compacted topics, timestamps out of bounds. Kafka's error for each is in the name of the exception; all bad records are
reported together, as a Produce response lists them.
"""

from typing import NamedTuple

from moldau.records.batch import NO_SEQUENCE, NO_TIMESTAMP, BatchHeader, Buffer
from moldau.records.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from moldau.records.errors import InvalidRecord, InvalidTimestamp, RecordError
from moldau.records.reader import iter_chunks, read_body

_MAX_RECORD_ERRORS = 100  # in one response; the rest of a bad batch is not worth listing


class TimestampBounds(NamedTuple):
    """The create times a topic accepts, both ends included (message.timestamp.before.max.ms and .after.max.ms)."""

    earliest: int
    latest: int


class CheckedRecords(NamedTuple):
    """What looking at the records found out."""

    max_timestamp: int
    offset_of_max_timestamp: int  # the first record that has it


def check_produced_header(header: BatchHeader) -> None:
    """Refuse a batch that no well-behaved producer sends (the CRC, and the size, are for others to check)."""
    if header.base_offset != 0:
        raise InvalidRecord(f"a producer's batch must have base offset 0, not {header.base_offset}")
    if header.record_count == 0:
        raise InvalidRecord("the batch has no records")
    if header.last_offset_delta != header.record_count - 1:
        raise InvalidRecord(
            f"the batch says {header.record_count} records, its last offset delta {header.last_offset_delta} says "
            f"{header.last_offset_delta + 1}"
        )
    if header.is_control:
        raise InvalidRecord("clients may not write control batches: transactions are ended with EndTxn")
    if header.has_producer_id:
        if header.base_sequence <= NO_SEQUENCE:
            raise InvalidRecord(f"sequence {header.base_sequence} of producer id {header.producer_id} is negative")
    elif header.is_transactional:
        raise InvalidRecord("a transactional batch needs a producer id: call InitProducerId first")


def check_produced_records(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    *,
    require_keys: bool = False,
    timestamp_bounds: TimestampBounds | None = None,
    max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> CheckedRecords:
    """Read every record: CorruptBatch if that fails, InvalidRecord or InvalidTimestamp if one breaks a rule."""
    max_timestamp, offset_of_max_timestamp = NO_TIMESTAMP, header.last_offset
    errors: list[RecordError] = []
    first_error = InvalidRecord
    index = 0
    for chunk in iter_chunks(read_body(buffer, position, header, max_bytes), header):
        for offset, timestamp, key, _, _ in chunk:
            if offset != header.base_offset + index:
                errors.append(RecordError(index, f"offset delta {offset - header.base_offset}, not {index}"))
            elif key is None and require_keys:
                errors.append(RecordError(index, "a compacted topic needs a key on every record"))
            elif timestamp_bounds is not None and not _is_within(timestamp, timestamp_bounds):
                if not errors:
                    first_error = InvalidTimestamp
                errors.append(RecordError(index, f"timestamp {timestamp} is not within {_describe(timestamp_bounds)}"))
            if timestamp > max_timestamp:
                max_timestamp, offset_of_max_timestamp = timestamp, offset
            index += 1
        if len(errors) >= _MAX_RECORD_ERRORS:
            break
    if errors:
        raise first_error(f"{errors[0].message} (record {errors[0].batch_index})", errors[:_MAX_RECORD_ERRORS])
    return CheckedRecords(max_timestamp, offset_of_max_timestamp)


def _is_within(timestamp: int, bounds: TimestampBounds) -> bool:
    return timestamp == NO_TIMESTAMP or bounds.earliest <= timestamp <= bounds.latest


def _describe(bounds: TimestampBounds) -> str:
    return f"{bounds.earliest} to {bounds.latest}, which the topic's message.timestamp.*.max.ms allow"
