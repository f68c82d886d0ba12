"""Which logs are worth cleaning, and up to where.

A log consists of a clean part (already compacted), a dirty part that may be compacted, and a part that may not: the
active segment, everything from the last stable offset on, and records younger than `min.compaction.lag.ms`.

Invariant: what is cleaned ends where the segment begins that holds the first such offset. Segments are cleaned whole,
and of a transaction that is still open nobody knows whether its values count: one of them must not cost a key the value
that was committed before.
"""

from typing import NamedTuple

from moldau.log.partition_log import PartitionLog
from moldau.log.segment import Segment


class LogToClean(NamedTuple):
    log: PartitionLog
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    overdue: bool  # records have been waiting for longer than max.compaction.lag.ms

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        if not self.cleanable_bytes:
            return False
        return self.overdue or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


def log_to_clean(log: PartitionLog, checkpoint: int | None, now_ms: int) -> LogToClean:
    """Where a cleaning of `log` would begin and end; `checkpoint` is where the last one ended."""
    first_dirty = log.log_start_offset if checkpoint is None else checkpoint
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset  # the log was truncated since: begin again
    uncleanable = max(first_dirty, _first_uncleanable(log, first_dirty, now_ms))
    inactive = log.segments[:-1]
    limit = _from(log.segments, uncleanable)[0].base_offset
    clean_bytes = sum(s.size for s in inactive if s.base_offset < first_dirty)
    dirty = [s for s in _from(inactive, first_dirty) if s.base_offset < limit] if first_dirty < limit else []
    overdue = False
    if log.config.max_compaction_lag_ms < now_ms:
        oldest = min((t for t in (s.read_first_timestamp() for s in dirty) if t > 0), default=now_ms)
        overdue = oldest < now_ms - log.config.max_compaction_lag_ms
    clean_bytes -= sum(s.size for s in dirty if s.base_offset < first_dirty)
    return LogToClean(log, first_dirty, limit, clean_bytes, sum(s.size for s in dirty), overdue)


def _from(segments: list[Segment], offset: int) -> list[Segment]:
    """The segment holding `offset` and those after it."""
    first = max((i for i, segment in enumerate(segments) if segment.base_offset <= offset), default=0)
    return segments[first:]


def _first_uncleanable(log: PartitionLog, first_dirty: int, now_ms: int) -> int:
    bound = min(log.last_stable_offset, log.active_segment.base_offset)
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        for segment in _from(log.segments[:-1], first_dirty):
            if segment.largest_timestamp > now_ms - lag_ms:
                return min(bound, segment.base_offset)
    return bound
