"""A coordinator's partition of its own topic: replayed when this node comes to lead it, appended to from then on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moldau.broker.replicas.partition import Partition
from moldau.records import BatchHeader, BatchOptions, build_batch, iter_batches, iter_records
from moldau.records.control import EndTransactionMarker, read_end_transaction_marker

_READ_BYTES = 4 << 20


@dataclass(slots=True, frozen=True)
class LoggedBatch:
    """One batch as replayed: records of a coordinator, or the end of a transaction."""

    header: BatchHeader
    records: Sequence[tuple[bytes, bytes | None]]
    marker: EndTransactionMarker | None


def read_batches(partition: Partition) -> Iterator[LoggedBatch]:
    """Everything in the log, in order."""
    log = partition.log
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        region = log.read(offset, _READ_BYTES).region
        if region is None:
            return
        data = region.read()
        for position, header in iter_batches(data):
            offset = header.next_offset
            if header.is_control:
                yield LoggedBatch(header, (), read_end_transaction_marker(data, position, header))
            else:
                records = [(each.key, each.value) for each in iter_records(data, position) if each.key is not None]
                yield LoggedBatch(header, records, None)


def coordinator_batch(
    records: Sequence[tuple[bytes, bytes | None]], timestamp_ms: int, options: BatchOptions | None = None
) -> bytearray:
    return build_batch(
        [(number, timestamp_ms, key, value, ()) for number, (key, value) in enumerate(records)],
        options or BatchOptions(),
    )
