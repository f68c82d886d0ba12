"""Which segments have outlived the topic's retention: whole ones, oldest first, none above the high watermark."""

from collections.abc import Sequence

from moldau.log.config import LogConfig
from moldau.log.segment import Segment


def deletable_segments(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    log_start_offset: int,
    high_watermark: int,
    log_end_offset: int,
    now_ms: int,
) -> int:
    """How many of the oldest segments may go.

    A segment goes if the next one begins at or before the log start offset; and, with cleanup.policy=delete, if the
    log is larger than retention.bytes without it, or its youngest record is older than retention.ms.
    """
    surplus = 0
    if config.delete and config.retention_bytes >= 0:
        surplus = sum(segment.size for segment in segments) - config.retention_bytes
    count = 0
    for index, segment in enumerate(segments):
        last = index == len(segments) - 1
        if last and not segment.size:
            break
        end_offset = log_end_offset if last else segments[index + 1].base_offset
        if end_offset > high_watermark:
            break
        breached = not last and end_offset <= log_start_offset
        if config.delete:
            breached = breached or (config.retention_bytes >= 0 and surplus - segment.size >= 0)
            breached = breached or (
                config.retention_ms >= 0 and now_ms - segment.largest_timestamp > config.retention_ms
            )
        if not breached:
            break
        surplus -= segment.size
        count += 1
    return count
