"""Shortening a log at its start: which segments have outlived the topic's retention, and how they go.

Whole segments, oldest first, none above the high watermark. The log start offset may lie inside of one.
"""

from collections.abc import Sequence
from typing import Protocol

from moldau.log.config import LogConfig
from moldau.log.durability import Durability
from moldau.log.epoch_cache import EpochCache
from moldau.log.producers.snapshots import Snapshots
from moldau.log.segment import Segment
from moldau.log.segments import Segments


class RetainedLog(Protocol):
    """What of a `PartitionLog` its retention touches."""

    durability: Durability
    epochs: EpochCache
    files: Segments
    high_watermark: int
    log_end_offset: int
    log_start_offset: int
    snapshots: Snapshots

    @property
    def config(self) -> LogConfig: ...

    def roll(self) -> None: ...


def retain(log: RetainedLog, now_ms: int) -> int:
    """Remove the segments that may go; how many."""
    count = deletable_segments(
        log.files.items,
        log.config,
        log_start_offset=log.log_start_offset,
        high_watermark=log.high_watermark,
        log_end_offset=log.log_end_offset,
        now_ms=now_ms,
    )
    if not count:
        return 0
    if count == len(log.files.items):
        log.roll()
    raise_log_start(log, log.files.items[count].base_offset)
    log.files.drop_oldest(count, log.config, log.snapshots)
    log.durability.change_names()
    return count


def raise_log_start(log: RetainedLog, offset: int) -> None:
    if offset > log.log_start_offset:
        log.log_start_offset = offset
        log.epochs.truncate_from_start(offset)


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
