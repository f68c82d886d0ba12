"""Truncating a log at an offset, when another leader never had what follows: segments go, then batches of the last one.

Invariant: at a crash after any step the log is one that recovery takes for what it is. So the recovery point is lowered
on disk before a file is touched, segments go from the last one back, durably before the one that stays is shortened,
and what was derived from the records (epochs, producers, the reader's notes) follows them.
"""

from typing import Protocol

from moldau.log.config import LogConfig
from moldau.log.context import LogContext
from moldau.log.durability import Durability
from moldau.log.epoch_cache import EpochCache
from moldau.log.incarnation import Incarnation
from moldau.log.producers.producer_state import ProducerState
from moldau.log.producers.replay import rebuild_producer_state
from moldau.log.producers.snapshots import Snapshots
from moldau.log.reading import Reader
from moldau.log.segments import Segments


class TruncatableLog(Protocol):
    """What of a `PartitionLog` a truncation touches."""

    context: LogContext
    durability: Durability
    epochs: EpochCache
    files: Segments
    high_watermark: int
    incarnation: Incarnation
    log_end_offset: int
    log_start_offset: int
    producers: ProducerState
    reader: Reader
    snapshots: Snapshots

    @property
    def config(self) -> LogConfig: ...

    @property
    def folder(self) -> str: ...

    @property
    def log_dir(self) -> str: ...

    @property
    def topic_partition(self) -> tuple[str, int]: ...


def truncate(log: TruncatableLog, offset: int) -> bool:
    """Remove everything at or after `offset`; whether there was anything."""
    if offset < 0:
        raise ValueError(f"cannot truncate {log.folder} to {offset}")
    if offset >= log.log_end_offset:
        log.epochs.truncate_from_end(log.log_end_offset)
        return False
    if offset < log.files.first_base_offset:
        start_over(log, offset, offset)
        return True
    if lower_recovery_point(log, offset):
        log.context.before_truncation(log)
    log.files.truncate_from(offset, log.config, log.snapshots)
    log.files.active.truncate_to(offset)
    _set_bounds(log, offset, min(offset, log.log_start_offset))
    log.epochs.truncate_from_end(offset)
    _reload_producers(log)
    log.context.after_truncation(log)
    return True


def start_over(log: TruncatableLog, offset: int, log_start_offset: int) -> None:
    """Throw the whole log away; the next record gets `offset`."""
    if lower_recovery_point(log, offset):
        log.context.before_truncation(log)
    log.files.start_over(offset, log.config, log.snapshots)
    log.durability.start_over(offset)
    _set_bounds(log, offset, log_start_offset)
    log.epochs.clear()
    _reload_producers(log)
    log.context.after_truncation(log)


def lower_recovery_point(log: TruncatableLog, offset: int) -> bool:
    """The first step of a truncation: what jobs under way do no longer counts. Whether the checkpoint must be lowered
    before the next step."""
    log.incarnation = log.incarnation.followed("was truncated")
    return log.durability.truncate_at(offset, log.files)


def _set_bounds(log: TruncatableLog, log_end_offset: int, log_start_offset: int) -> None:
    log.reader.forget()
    log.log_end_offset = log_end_offset
    log.log_start_offset = log_start_offset
    log.high_watermark = max(min(log.high_watermark, log_end_offset), log_start_offset)


def _reload_producers(log: TruncatableLog) -> None:
    rebuild_producer_state(
        log.producers,
        log.snapshots,
        log.files.items,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        now_ms=log.context.clock.wall_ms(),
        expiration_ms=log.config.producer_id_expiration_ms,
    )
