"""The leader's side of a follower's fetch: who may ask, what the asking tells, and how much is sent.

A follower that asks for an offset has everything before it. That may move the high watermark, make the follower a
candidate for the ISR, and let deleted records count as deleted. It is noted once per request, not again when a waiting
fetch reads a second time; and not at all for partitions at rest (`moldau.replication.watch`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from moldau.broker.replicas.manager import PartitionUnavailable, follower_key
from moldau.replication.leader import ReplicaRefused
from moldau.replication.selection import ReplicaView, closest_replica
from moldau.replication.throttle import is_throttled
from moldau.wire import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.parts import HasConfig, HasIdentity, HasImage, HasTime
    from moldau.broker.replicas.fetch_sessions import FetchContext
    from moldau.broker.replicas.partition import Partition
    from moldau.broker.replicas.parts import HasReplicas
    from moldau.wire.fetch import FetchedPartition, FetchFrame, FetchPartition, Topic

    class Needs(HasConfig, HasIdentity, HasImage, HasTime, HasReplicas, Protocol):
        """What this file may touch."""


_RACK_AWARE = "RackAwareReplicaSelector"


class FollowerFetch:
    """One fetch of a follower."""

    __slots__ = ("_broker", "_changed", "_context", "_now_ms", "_replica_epoch", "_replica_id", "is_known", "watch")

    def __init__(self, broker: Needs, request: FetchFrame, context: FetchContext) -> None:
        self._broker = broker
        self._context = context
        self._replica_id = request.replica_id
        self._replica_epoch = request.replica_epoch
        self._now_ms = broker.clock.monotonic_ms()
        self._changed: list[Partition] = []
        # Whether what the request tells has been noted.
        self.is_known = False
        self.watch = context.watch
        if self.watch is not None:
            # Where consumers read from followers, these must hear of a new high watermark at once.
            self.watch.wants_marks = is_rack_aware(broker)

    @property
    def key(self) -> tuple[str, int]:
        return follower_key(self._replica_id)

    def check(self, partition: Partition) -> None:
        """Refuse whoever has no replica of the partition."""
        if self._replica_id not in partition.image.replicas or partition.lead is None:
            raise PartitionUnavailable(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def note(self, partition: Partition, wanted: FetchPartition) -> None:
        """The follower has everything before the offset it wants."""
        lead, log = partition.lead, partition.log
        offset = wanted[2]
        if self.is_known or lead is None or not log.log_start_offset <= offset <= log.log_end_offset:
            return
        replica_id = self._replica_id
        start_before = lead.remotes[replica_id].log_start_offset if replica_id in lead.remotes else -1
        try:
            is_news = lead.on_fetch(
                replica_id, self._replica_epoch, offset, wanted[4], log.log_end_offset, self._now_ms, self.watch
            )
        except ReplicaRefused as error:
            raise PartitionUnavailable(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error)) from error
        if (is_news and partition.advance_high_watermark()) or wanted[4] != start_before:
            self._changed.append(partition)
        if replica_id not in lead.isr:
            self._broker.replicas.replication.isr.on_fetch(partition, replica_id)

    def tell(self) -> None:
        """Wake those who waited for what the fetch told."""
        for partition in self._changed:
            self._broker.replicas.wake(partition)

    def note_sent(self, results: Iterable[tuple[Topic, FetchedPartition]]) -> None:
        """The answer leaves: partitions the follower has and knows all of are at rest from now on."""
        watch = self.watch
        if watch is None:
            return
        watch.is_due = False
        for topic, result in results:
            key = (topic, result.partition)
            partition = self._broker.replicas.get(topic, result.partition)
            if partition is None or partition.lead is None or result.error_code or result.diverging_epoch is not None:
                continue
            log, lead = partition.log, partition.lead
            remote = lead.remotes.get(self._replica_id)
            if (
                remote is not None
                and remote.watch is watch
                and remote.log_end_offset == log.log_end_offset
                and self._replica_id in lead.isr
                and self._context.knows(key, log.high_watermark, log.log_start_offset)
            ):
                watch.changed.pop(key, None)  # type: ignore[arg-type]  # topic ids
            elif result.records:
                # Whoever was served goes to the end of the line.
                watch.changed[key] = watch.changed.pop(key, None)  # type: ignore[index,arg-type]  # as above

    # -- throttles

    def _is_throttled(self, partition: Partition) -> bool:
        """Replicas in sync never are: that would only shrink the ISR."""
        lead = partition.lead
        return (
            lead is not None
            and self._replica_id not in lead.isr
            and is_throttled(partition.settings.leader_throttled_replicas, partition.index, self._broker.node_id)
        )

    def holds_back(self, partition: Partition) -> bool:
        """Whether this replica must wait, because throttled ones have had their share."""
        if not partition.settings.leader_throttled_replicas or not self._is_throttled(partition):
            return False
        return self._broker.replicas.replication.leader_quota().is_exceeded(self._broker.clock.monotonic_ms())

    def sent(self, partition: Partition, size_bytes: int) -> None:
        if size_bytes and partition.settings.leader_throttled_replicas and self._is_throttled(partition):
            self._broker.replicas.replication.leader_quota().record(size_bytes, self._broker.clock.monotonic_ms())


def is_rack_aware(broker: Needs) -> bool:
    return (broker.config.get_str_or_none("replica.selector.class") or "").endswith(_RACK_AWARE)


def closer_replica(broker: Needs, partition: Partition, rack: str, offset: int) -> int | None:
    """The in-sync replica in the consumer's rack that has the offset; None if the leader is the one to ask."""
    lead = partition.lead
    if lead is None or not is_rack_aware(broker):
        return None
    now_ms = broker.clock.monotonic_ms()
    own = ReplicaView(broker.node_id, broker.config.get_str_or_none("broker.rack"), partition.log.log_end_offset, 0.0)
    views = [own]
    for remote in lead.remotes.values():
        registered = broker.image.brokers.get(remote.broker_id)
        if (
            registered is not None
            and not registered.fenced
            and remote.broker_id in lead.isr
            and remote.log_start_offset <= offset <= remote.log_end_offset
        ):
            since_ms = now_ms - remote.last_caught_up_ms
            views.append(ReplicaView(remote.broker_id, registered.rack, remote.log_end_offset, since_ms))
    chosen = closest_replica(rack, broker.node_id, views)
    return None if chosen == broker.node_id else chosen
