"""More ways to break a node, after the table of issue 13 (A1-A16): what was mended there is undone here, one at a time.

See `broken`; `variants` says how soon the simulator must notice each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch


def take_gaps_for_losses() -> Iterator[None]:
    """Compaction leaves gaps between segments, and recovery removes what follows one (A3)."""
    from moldau.log.cleaner import cleaner
    from moldau.log.cleaner.filter import CleanFilter
    from moldau.log.recovery.recovery import _Opening

    def without_ends(newest: Any, now_ms: Any, retention_ms: Any, _: Any, *more: Any, **named: Any) -> Any:
        return CleanFilter(newest, now_ms, retention_ms, frozenset(), *more, **named)

    with (
        patch.object(cleaner, "CleanFilter", without_ends),
        patch.object(_Opening, "_is_loss", lambda _, end, following: following != end),
    ):
        yield


def vote_without_memory() -> Iterator[None]:
    """A fixed voter with an empty disk takes part as if it had promised nothing (A4)."""
    from moldau.raft.replica import Raft

    start = Raft.start

    def not_blank(self: Any, now_ms: float, state: Any, *, is_blank: bool = False) -> None:
        start(self, now_ms, state, is_blank=False)

    with patch.object(Raft, "start", not_blank):
        yield


def let_jobs_outlive_their_log() -> Iterator[None]:
    """A job does not ask at its end whether its log is still the one it was made for (A5)."""
    from moldau.log.incarnation import Incarnation

    with (
        patch.object(Incarnation, "is_over", property(lambda _: False)),
        patch.object(Incarnation, "check", lambda _: None),
        patch.object(Incarnation, "is_disk_error", lambda _, error: isinstance(error, OSError)),
    ):
        yield


def undo_deletions_by_moves() -> Iterator[None]:
    """A replica that was moved begins where it began when the move did (A6)."""
    from moldau.log.partition_log import PartitionLog

    take = PartitionLog.take_place_of

    def with_the_old_start(self: Any, log: Any) -> None:
        start = self.log_start_offset
        take(self, log)
        self.log_start_offset = start

    with patch.object(PartitionLog, "take_place_of", with_the_old_start):
        yield


def believe_in_flushes_that_began() -> Iterator[None]:
    """What a flush will do counts from its beginning on (A7)."""
    from moldau.log.durability import Durability

    begin = Durability.begin_flush

    def at_once(self: Any, segments: Any, snapshots: Any, epochs: Any, *more: Any, **named: Any) -> Any:
        ticket = begin(self, segments, snapshots, epochs, *more, **named)
        self.end_flush(ticket, epochs, self.last_flush_ms)
        return ticket

    with patch.object(Durability, "begin_flush", at_once):
        yield


def start_with_damaged_metadata() -> Iterator[None]:
    """What was flushed and is damaged is cut off as if a crash had torn it (A9)."""
    with patch("moldau.broker.quorum.metadata_log.check_flushed", lambda *_: None):
        yield


def fetch_before_the_flush() -> Iterator[None]:
    """A voter fetches, and is counted, with an end it has not flushed (A10)."""
    from moldau.raft import polling
    from moldau.raft.messages import Fetch

    kind = next(each for each in vars(polling).values() if hasattr(each, "_fetch_request"))

    def unflushed(self: Any) -> Any:
        raft = self._raft
        known = -1 if raft.high_watermark is None else raft.high_watermark
        return Fetch(raft.me, raft.epoch, raft.log.end_offset, raft.log.last_epoch, known)

    with patch.object(kind, "_fetch_request", unflushed):
        yield


def tell_an_old_high_watermark() -> Iterator[None]:
    """A new leader tells what it knows to be committed before it has committed in its own epoch, and whoever restarts
    takes that for the newest there is (A13)."""
    from moldau.raft.replica import Raft

    def old(self: Any) -> int:
        return -1 if self.high_watermark is None else self.high_watermark

    with patch.object(Raft, "told_high_watermark", property(old)):
        yield


def answer_from_the_uncommitted_image() -> Iterator[None]:
    """A command that finds nothing to do does not wait for what it found (A14)."""
    from moldau.broker.quorum.quorum import MetadataQuorum

    with patch.object(MetadataQuorum, "commit_pending", lambda _: None):
        yield


def tell_before_the_flush() -> Iterator[None]:
    """Where every record is to be flushed, those of coordinators are not."""
    from moldau.broker.replicas.partition import Partition
    from moldau.log.origin import AppendOrigin
    from moldau.log.partition_log import PartitionLog

    needs_flush = PartitionLog.__dict__["needs_flush"].fget
    append = Partition.append

    def unflushed(self: Any, batches: Any, origin: Any = AppendOrigin.CLIENT, *more: Any, **named: Any) -> Any:
        if origin is AppendOrigin.CLIENT:
            return append(self, batches, origin, *more, **named)
        with patch.object(PartitionLog, "needs_flush", False):
            return append(self, batches, origin, *more, **named)

    def of_clients(self: Any) -> bool:
        return not self.topic.startswith("__") and bool(needs_flush(self))

    with (
        patch.object(Partition, "append", unflushed),
        patch.object(PartitionLog, "needs_flush", property(of_clients)),
    ):
        yield


def checkpoint_what_is_not_flushed() -> Iterator[None]:
    from moldau.log.durability import Durability

    with patch.object(Durability, "recovery_point", lambda _, __, log_end_offset: log_end_offset):
        yield


def read_open_transactions() -> Iterator[None]:
    """The last stable offset is the high watermark."""
    from moldau.log.partition_log import PartitionLog

    with patch.object(PartitionLog, "last_stable_offset", property(lambda self: self.high_watermark)):
        yield


def fail_at_an_answer() -> Iterator[None]:
    """The task that sends heartbeats fails at something that it is told, and begins anew (B3)."""
    from moldau.broker.node.registration import BrokerLifecycle

    beat = BrokerLifecycle._beat

    async def until_an_answer(self: Any) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                await beat(self)
        raise ValueError("what is that?")

    with patch.object(BrokerLifecycle, "_beat", until_an_answer):
        yield


def fail_the_shard_with_the_request() -> Iterator[None]:
    """When one request's records cannot be written, the shard is loaded anew, and everybody on it sent away."""
    from moldau.broker.coordinators import groups
    from moldau.wire import ErrorCode

    append = groups._ActiveShard._append

    def load_anew(self: Any) -> None:
        shards, index = self._coordinator._shards, self.partition.index
        if shards._active.get(index) is self:
            del shards._active[index]
            self.drop(ErrorCode.NOT_COORDINATOR)
            self._broker.loop.call_later(0.5, shards._follow, index)

    def with_the_shard(self: Any, *given: Any) -> Any:
        error = append(self, *given)
        if error is not None:
            self._broker.loop.call_soon(load_anew, self)
        return error

    with patch.object(groups._ActiveShard, "_append", with_the_shard):
        yield
