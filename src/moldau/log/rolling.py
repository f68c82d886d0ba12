"""When a log begins a new segment: the batch does not fit, the index is full, or the first record is old enough."""

from moldau.log.config import LogConfig
from moldau.log.errors import RecordListTooLarge
from moldau.log.index.offset_index import MAX_RELATIVE_OFFSET
from moldau.log.segment import Segment


def must_roll(active: Segment, config: LogConfig, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
    """Whether batches of `size` bytes belong into a new segment. RecordListTooLarge if they fit into none."""
    used = active.size
    if used + size > config.segment_bytes:
        if size > config.segment_bytes:
            raise RecordListTooLarge(
                f"{size} bytes do not fit into a segment of {config.segment_bytes}: raise segment.bytes"
            )
        return used > 0
    if last_offset - active.base_offset > MAX_RELATIVE_OFFSET:
        return True
    if not used:
        return False
    if active.index_full:
        return True
    first = active.first_timestamp
    if first is None:
        first = active.read_first_timestamp()
    waited_ms = max_timestamp - first if first >= 0 else now_ms - active.created_ms
    return waited_ms > config.max_segment_ms - active.roll_jitter_ms
