"""The batches of a producer that a snapshot leaves out.

Snapshots, in Kafka's format, keep the last batch of each producer, but a client may repeat any of its last five: it
does when the answers to several got lost, for instance with the leader. If that leader, or another replica, was started
again meanwhile, only the log itself still knows the others. It is asked when a repeated batch would be refused for its
sequence number, once per producer, and only its last few MiB.
"""

from collections.abc import Sequence

from moldau.log.producers.producer_state import BATCHES_KEPT, BatchMetadata, ProducerEntry
from moldau.log.segment import Segment

_BYTES_MAX = 4 << 20


def recall_batches(entry: ProducerEntry, segments: Sequence[Segment]) -> None:
    """Put back what `entry` had before its first known batch, as far as it lies near the end of the log."""
    entry.is_from_snapshot = False
    if not entry.batches:
        return
    end_offset = entry.batches[0].first_offset
    found: list[BatchMetadata] = []
    left = _BYTES_MAX
    for segment in reversed(segments):
        if left <= 0 or len(found) + len(entry.batches) >= BATCHES_KEPT:
            break
        if segment.base_offset >= end_offset:
            continue
        place = segment.find(end_offset)
        end = segment.size if place is None else place.position
        start = segment.offset_index.position_before(end - left)
        found = _batches_of(entry, segment, start, end_offset) + found
        left -= end - start
    room = BATCHES_KEPT - len(entry.batches)
    entry.batches.extendleft(reversed(found[-room:] if room else []))


def _batches_of(entry: ProducerEntry, segment: Segment, position: int, end_offset: int) -> list[BatchMetadata]:
    found = []
    for _, header in segment.headers(position):
        if header.base_offset >= end_offset:
            break
        if header.producer_id == entry.producer_id and header.producer_epoch == entry.epoch and not header.is_control:
            delta = header.last_offset - header.base_offset
            found.append(BatchMetadata(header.last_sequence, header.last_offset, delta, header.max_timestamp))
    return found
