"""Control batches: one or more records that steer readers instead of carrying data.

The key says what it is: a version and a type, both int16. Transaction markers end a producer's transaction on a
partition; the other types belong to KRaft, and their values are messages of `moldau.wire`, bytes to this room.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from moldau.records.batch import BatchHeader, Buffer
from moldau.records.builder import BatchBuilder, BatchOptions
from moldau.records.errors import CorruptBatch
from moldau.records.reader import Record, iter_records

_KEY = struct.Struct(">hh")
_END_TRANSACTION_VALUE = struct.Struct(">hi")
_VERSION = 0


class ControlType(IntEnum):
    """Types by the number in the key; readers skip numbers they do not know."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class EndTransactionMarker(NamedTuple):
    committed: bool
    coordinator_epoch: int


def control_key(control_type: ControlType) -> bytes:
    return _KEY.pack(_VERSION, control_type)


def read_control_type(key: bytes | None) -> ControlType:
    """The type in a control record's key; UNKNOWN for one from a newer Kafka."""
    if key is None or len(key) < _KEY.size:
        raise CorruptBatch("a control record's key is shorter than its version and type")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptBatch(f"a control record's key has version {version}")
    try:
        return ControlType(number)
    except ValueError:
        return ControlType.UNKNOWN


def build_end_transaction_marker(
    marker: EndTransactionMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """The batch that commits or aborts what `producer_id` wrote to this partition. It has no sequence number."""
    builder = BatchBuilder(
        BatchOptions(
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=True,
            control=True,
        )
    )
    key = control_key(ControlType.COMMIT if marker.committed else ControlType.ABORT)
    builder.append(timestamp_ms, key, _END_TRANSACTION_VALUE.pack(_VERSION, marker.coordinator_epoch))
    return builder.finish()


def build_control_batch(
    values: list[tuple[ControlType, bytes]], *, timestamp_ms: int, base_offset: int = 0, leader_epoch: int = -1
) -> bytearray:
    """KRaft's control records, in one batch."""
    builder = BatchBuilder(BatchOptions(base_offset=base_offset, leader_epoch=leader_epoch, control=True))
    for control_type, value in values:
        builder.append(timestamp_ms, control_key(control_type), value)
    return builder.finish()


def read_control_records(
    buffer: Buffer, position: int, header: BatchHeader | None = None
) -> list[tuple[ControlType, Record]]:
    """The records of a control batch with their types."""
    return [(read_control_type(record.key), record) for record in iter_records(buffer, position, header)]


def read_end_transaction_marker(
    buffer: Buffer, position: int, header: BatchHeader | None = None
) -> EndTransactionMarker | None:
    """The marker in a control batch, or None if it holds another type, or nothing (the cleaner emptied it)."""
    record = next(iter_records(buffer, position, header), None)
    if record is None:
        return None
    control_type = read_control_type(record.key)
    if control_type not in {ControlType.ABORT, ControlType.COMMIT}:
        return None
    if record.value is None or len(record.value) < _END_TRANSACTION_VALUE.size:
        raise CorruptBatch("a transaction marker's value is shorter than its version and coordinator epoch")
    version, coordinator_epoch = _END_TRANSACTION_VALUE.unpack_from(record.value)
    if version < 0:
        raise CorruptBatch(f"a transaction marker's value has version {version}")
    return EndTransactionMarker(control_type is ControlType.COMMIT, coordinator_epoch)
