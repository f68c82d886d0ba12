"""What an append asks of the producers' state before a batch is written, and tells it afterwards."""

import contextlib

from moldau.log.errors import CorruptRecord, OutOfOrderSequence
from moldau.log.origin import AppendOrigin
from moldau.log.producers.producer_state import BatchMetadata, ProducerState
from moldau.log.producers.recalled_batches import recall_batches
from moldau.log.segment import Segment
from moldau.log.validation import read_marker
from moldau.records import BatchHeader, EndTransactionMarker
from moldau.records.batch import HeaderFields


def admit_data(
    producers: ProducerState, segments: list[Segment], fields: HeaderFields, origin: AppendOrigin
) -> BatchMetadata | None:
    """None if the batch is its producer's next; the one it repeats if it was written before. Raises what else it is."""
    try:
        return producers.check_data(fields, origin)
    except OutOfOrderSequence:
        entry = producers.producers.get(fields[9])
        if entry is None or not entry.is_from_snapshot:
            raise
    # A snapshot keeps only a producer's last batch: the ones before are in the log.
    with contextlib.suppress(CorruptRecord):  # whoever reads there will be told
        recall_batches(entry, segments)
    return producers.check_data(fields, origin)


def admit_marker(
    producers: ProducerState, buffer: bytearray | memoryview, header: BatchHeader, transaction_version: int
) -> EndTransactionMarker | None:
    """The marker in a control batch, which its producer may write now; None if the batch holds another record."""
    marker = read_marker(buffer, header)
    if marker is not None:
        producers.check_marker(header, marker, transaction_version)
    return marker


def note_batch(
    producers: ProducerState,
    segment: Segment,
    fields: HeaderFields,
    base_offset: int,
    max_timestamp: int,
    marker: EndTransactionMarker | None,
) -> None:
    """It was written into `segment`."""
    aborted = producers.update(fields, base_offset, max_timestamp, marker)
    if aborted is not None:
        segment.txn_index.append(aborted)


def note_run(producers: ProducerState, segment: Segment, view: memoryview, run: list[tuple[int, BatchHeader]]) -> None:
    """Batches of `view`, each with its position there, were written into `segment` as the leader stamped them."""
    for position, header in run:
        if header.producer_id >= 0:
            marker = None
            if header.is_control:
                marker = read_marker(view[position : position + header.size_bytes], header)
            note_batch(producers, segment, header, header.base_offset, header.max_timestamp, marker)
