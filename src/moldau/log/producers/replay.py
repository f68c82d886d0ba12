"""Producer state out of the log: the newest usable snapshot, then every batch after it."""

import contextlib
from collections.abc import Sequence

from moldau.log.errors import CorruptRecord
from moldau.log.producers.producer_state import CompletedTxn, ProducerState
from moldau.log.producers.snapshots import Snapshots
from moldau.log.segment import Segment
from moldau.log.validation import read_marker
from moldau.records import BatchHeader


def replay_batch(state: ProducerState, header: BatchHeader, batch: bytes | memoryview) -> CompletedTxn | None:
    """Put one batch into the state, as replication would; the transaction it ended, not yet completed."""
    if header.producer_id < 0:
        return None
    if not header.is_control:
        state.update_data(header, header.base_offset, header.max_timestamp)
        return None
    marker = read_marker(batch, header)
    return None if marker is None else state.update_marker(header, header.base_offset, marker)


def rebuild_producer_state(
    state: ProducerState,
    snapshots: Snapshots,
    segments: Sequence[Segment],
    *,
    log_start_offset: int,
    log_end_offset: int,
    now_ms: int,
    expiration_ms: int,
) -> None:
    """Make `state` what the log up to `log_end_offset` says."""
    snapshots.remove_outside(log_start_offset, log_end_offset)
    start = snapshots.load_latest(state, log_start_offset, now_ms, expiration_ms)
    for index, segment in enumerate(segments):
        following = segments[index + 1].base_offset if index + 1 < len(segments) else log_end_offset
        if following > start and segment.size:
            # Damage in what was flushed long ago must not keep the node from starting: its readers will be told.
            with contextlib.suppress(CorruptRecord):
                _replay_segment(state, segment, start, log_end_offset)
    state.on_high_watermark(log_end_offset)  # what was on disk is as replicated as it gets
    state.remove_expired(now_ms, expiration_ms)


def _replay_segment(state: ProducerState, segment: Segment, start: int, log_end_offset: int) -> None:
    place = segment.find(max(start, segment.base_offset))
    if place is None:
        return
    for position, header in segment.headers(place.position):
        if header.base_offset < start or header.next_offset > log_end_offset:
            continue
        batch = segment.file.read(position, header.size_bytes) if header.is_control else b""
        completed = replay_batch(state, header, batch)
        if completed is not None:
            state.complete(completed)
