"""A replica on this node: its log, and the role the cluster's image gives it.

As leader of a partition with followers it has a `LeaderState` (`moldau.replication.leader`), which says how far the
high watermark may go. A leader without followers decides alone, and pays for nothing else.

Invariants
- The high watermark never goes back, but for a log that is truncated; consumers never read past it.
- A replica leads only in epochs it was given in this incarnation of its broker.
- `generation` grows whenever the leader, its epoch or the existence of the replica changes: whoever waited for this
  replica and finds another generation asks again who leads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from moldau.broker.config import TopicSettings
from moldau.controller.image import PartitionImage
from moldau.log.origin import AppendOrigin
from moldau.log.partition_log import PartitionLog
from moldau.log.results import Appended
from moldau.log.validation import CheckedBatch
from moldau.replication.follower import follower_high_watermark
from moldau.replication.leader import LeaderState, Role


@dataclass(slots=True)
class ReplicaContext:
    """What all replicas of a node share."""

    node_id: int
    now_ms: Callable[[], float]
    # Whether the image knows this incarnation of the broker. It may not lead what an earlier one led: records are
    # missing that followers have, and others would be written in their place, in the same epoch.
    may_lead: Callable[[], bool]
    lag_max_ms: float
    # Whether the controller would take the replica of this broker, of this broker epoch, into an ISR.
    is_eligible: Callable[[int, int], bool]
    # Fetches of these brokers may be waiting for what was just appended.
    wake_followers: Callable[[Iterable[int]], None]
    # Make the log of this replica durable, off the loop, and call `advance_high_watermark` then.
    flush_soon: Callable[[Partition], None]


class Partition:
    """Belongs to the event loop."""

    __slots__ = (
        "_context",
        "_led_bytes",
        "_led_from",
        "_led_records",
        "bytes_out",
        "failed_fetch_requests",
        "failed_produce_requests",
        "fetch_requests",
        "generation",
        "image",
        "index",
        "is_leader",
        "key",
        "lead",
        "leader_epoch",
        "log",
        "produce_requests",
        "replication_bytes_in",
        "replication_bytes_out",
        "settings",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        log: PartitionLog,
        settings: TopicSettings,
        image: PartitionImage,
        context: ReplicaContext,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.settings = settings
        self._context = context
        self.key = (topic_id, index)  # what waits for this partition is watched under this
        self.generation = 0
        self.is_leader = False
        self.leader_epoch = -1
        # What passed here, for those who watch: as leader, to and from clients; and to and from other replicas.
        self.bytes_out = 0
        self.produce_requests = self.failed_produce_requests = 0
        self.fetch_requests = self.failed_fetch_requests = 0
        self.replication_bytes_in = self.replication_bytes_out = 0
        self._led_records = self._led_bytes = 0  # appended while it led before
        self._led_from = (0, 0)  # where the log ended, and how much it had grown, when this time began
        # Only while leading, and only if there are followers.
        self.lead: LeaderState | None = None
        self.become(image)

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    def become(self, image: PartitionImage) -> None:
        """Take the role the image gives this replica."""
        is_leader = image.leader == self._context.node_id and self._context.may_lead()
        self._count_records(is_leader)
        if is_leader != self.is_leader or image.leader_epoch != self.leader_epoch:
            self._next_generation()
        self.image = image
        self.leader_epoch = image.leader_epoch
        self.is_leader = is_leader
        if not is_leader:
            self.lead = None
            return
        self.log.assign_epoch(image.leader_epoch)
        if len(image.replicas) == 1:
            self.lead = None
        else:
            self._count_followers(image)
        if self.log.needs_flush:
            self._context.flush_soon(self)
        self.advance_high_watermark()

    def _count_records(self, is_leader: bool) -> None:
        """A leader's log only grows: what it appended needs no counter, just where it began."""
        self._led_records, self._led_bytes = self.records_in, self.bytes_in
        if is_leader:
            self._led_from = (self.log.log_end_offset, self.log.grown_bytes)

    @property
    def records_in(self) -> int:
        """How many records were appended here as leader, as far as offsets tell."""
        return self._led_records + (self.log.log_end_offset - self._led_from[0] if self.is_leader else 0)

    @property
    def bytes_in(self) -> int:
        """The same in bytes, as they are stored."""
        return self._led_bytes + (self.log.grown_bytes - self._led_from[1] if self.is_leader else 0)

    def _count_followers(self, image: PartitionImage) -> None:
        context = self._context
        role = Role(image.replicas, image.isr, image.leader_epoch, image.partition_epoch)
        end_offset, now_ms = self.log.log_end_offset, context.now_ms()
        if self.lead is None:
            self.lead = LeaderState(context.node_id, role, end_offset, now_ms, context.is_eligible)
        else:
            self.lead.update(role, end_offset, now_ms)

    def _next_generation(self) -> None:
        self.generation += 1
        self._disturb_followers()

    def _disturb_followers(self) -> None:
        if self.lead is not None:
            self.lead.disturb(self.key, is_due=True)
            self._context.wake_followers(self.lead.remotes)

    def retire(self) -> None:
        """The replica is gone: deleted, or moved to other brokers."""
        self._next_generation()
        self._count_records(False)
        self.is_leader = False
        self.lead = None

    # -- as leader

    def append(
        self,
        batches: bytearray | memoryview,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verification_guard: object | None = None,
        transaction_version: int = 0,
        checked: CheckedBatch | None = None,
    ) -> Appended:
        """Append as leader. What is committed by it becomes readable at once when no other replica is in sync."""
        log = self.log
        self.produce_requests += 1
        appended = log.append_as_leader(
            batches, self.leader_epoch, origin, verification_guard, transaction_version, checked
        )
        needs_flush = log.needs_flush
        if needs_flush:
            self._context.flush_soon(self)
        if self.lead is None and not needs_flush:
            log.update_high_watermark(log.log_end_offset)
        else:
            self._disturb_followers()
            self.advance_high_watermark()
        return appended

    def advance_high_watermark(self) -> bool:
        """Let the high watermark go as far as the in-sync replicas allow. Whether it went.

        Where `flush.messages` demands a flush, this replica counts with what it has flushed, as followers do, who flush
        before they fetch on. So nobody reads, and no coordinator tells, what a loss of all power could take back."""
        log, lead = self.log, self.lead
        before = log.high_watermark
        if lead is None:
            offset = log.log_end_offset
        else:
            context = self._context
            offset = lead.high_watermark(
                log.log_end_offset, context.now_ms(), context.lag_max_ms, self.settings.min_insync_replicas
            )
        if log.needs_flush:
            offset = min(offset, log.flushed_offset)
        if offset <= before or log.update_high_watermark(offset) <= before:
            return False
        if lead is not None:
            lead.disturb(self.key, is_due=False)
        return True

    @property
    def has_enough_replicas(self) -> bool:
        """Whether `acks=all` may be promised."""
        lead = self.lead
        return lead is None or len(lead.isr) >= lead.min_isr(self.settings.min_insync_replicas)

    @property
    def had_enough_replicas(self) -> bool:
        """The same question after an append: those who are about to join count, since they were waited for."""
        lead = self.lead
        return lead is None or len(lead.maximal_isr) >= lead.min_isr(self.settings.min_insync_replicas)

    # -- as follower

    def follow(
        self, records: bytes | bytearray | memoryview, leader_epoch: int, high_watermark: int, log_start_offset: int
    ) -> bool:
        """Append what the leader sent, and take over its marks. Whether more is readable than before."""
        log = self.log
        if records:
            log.append_as_follower(records, leader_epoch)
            self.replication_bytes_in += len(records)
        before = log.high_watermark
        offset = follower_high_watermark(before, high_watermark, log.log_end_offset)
        if offset != before:
            log.update_high_watermark(offset)
        if log_start_offset > log.log_start_offset:
            log.delete_records_before(min(log_start_offset, log.high_watermark))
        return log.high_watermark > before
