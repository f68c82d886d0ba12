"""Transaction coordination on this node: a shard for every partition of `__transaction_state` it leads.

The shards are pure (`moldau.transactions`); this carries out their effects: appends their records, tells them when
these are committed, writes the markers that end a transaction, and wakes them when something is due.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from moldau.broker.coordinator_log import coordinator_batch, read_batches
from moldau.broker.group_coordinator import TOPIC as OFFSETS_TOPIC
from moldau.broker.partition import Partition
from moldau.broker.replicas import PartitionUnavailable
from moldau.broker.txn_markers import Marker, write_marker
from moldau.controller.delta import ImageDelta
from moldau.controller.features import TRANSACTION_VERSION
from moldau.groups import partition_for_group
from moldau.log.errors import LogError
from moldau.log.producer_state import AppendOrigin
from moldau.timers.wheel import TimerHandle
from moldau.transactions import (
    Append,
    Effects,
    Now,
    RequestContext,
    TopicPartition,
    TransactionConfig,
    TransactionRequest,
    TransactionShard,
    TxnMarker,
)
from moldau.wire import ErrorCode, Struct

if TYPE_CHECKING:
    from moldau.broker.broker import Broker

_log = logging.getLogger(__name__)

TOPIC = "__transaction_state"

Answer = Callable[[Struct], None]


class TransactionCoordinator:
    """Belongs to the event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._shards: dict[int, _ActiveShard] = {}
        self._next_request_id = 0

    @property
    def shards(self) -> list[TransactionShard]:
        return [shard.state for _, shard in sorted(self._shards.items())]

    def partition_for(self, transactional_id: str) -> int:
        topic = self._broker.image.topics.get(TOPIC)
        default = self._broker.config.get_int("transaction.state.log.num.partitions")
        return partition_for_group(transactional_id, len(topic.partitions) if topic else default)

    def shard_for(self, transactional_id: str) -> TransactionShard | None:
        shard = self._shards.get(self.partition_for(transactional_id))
        return None if shard is None else shard.state

    def apply(self, delta: ImageDelta) -> None:
        """Leadership of the transaction log may have changed, and the level of transaction.version."""
        for change in delta.partitions:
            if change.topic.name == TOPIC:
                self._follow_leadership(change.partition_id)
        if any(change.key == TRANSACTION_VERSION for change in delta.features):
            for shard in self._shards.values():
                shard.state.transaction_version = self._transaction_version()

    def _transaction_version(self) -> int:
        return self._broker.image.features.get(TRANSACTION_VERSION, 0)

    def load_all(self) -> None:
        """Take charge of every partition this node leads already."""
        topic = self._broker.image.topics.get(TOPIC)
        for index in topic.partitions if topic is not None else ():
            self._follow_leadership(index)

    def _follow_leadership(self, index: int) -> None:
        partition = self._broker.replicas.get(TOPIC, index)
        current = self._shards.get(index)
        leads = partition is not None and partition.is_leader
        if current is not None and (not leads or current.leader_epoch != current.partition.leader_epoch):
            del self._shards[index]
            current.drop()
        if leads and index not in self._shards:
            assert partition is not None
            self._load(partition)

    def _load(self, partition: Partition) -> None:
        broker = self._broker
        state = TransactionShard(
            partition.leader_epoch, _config_of(broker), broker.producer_ids.allocator, self._transaction_version()
        )
        for batch in read_batches(partition):
            for key, value in batch.records:
                state.replay(key, value)
        shard = _ActiveShard(broker, partition, state)
        self._shards[partition.index] = shard
        effects = state.finish_load(now_of(broker))
        for reason in state.unreadable:
            _log.error("skipped a record of %r that cannot be read: %s", partition, reason)
        shard.carry_out(effects)

    def handle(
        self,
        transactional_id: str,
        request: TransactionRequest,
        api_version: int,
        answer: Answer,
        *,
        group_id: str = "",
    ) -> bool:
        """Give a request to the shard of the id; `answer` is called with its response, now or later.

        False if this node does not coordinate the id.
        """
        shard = self._shards.get(self.partition_for(transactional_id))
        if shard is None:
            return False
        self._next_request_id += 1
        offsets_partition = self._broker.groups.partition_for(group_id) if group_id else -1
        context = RequestContext(self._next_request_id, api_version, offsets_partition)
        shard.answers[context.request_id] = answer
        shard.carry_out(shard.state.handle(request, context, now_of(self._broker)))
        self._broker.producer_ids.prefetch()
        return True

    def stop(self) -> None:
        for shard in self._shards.values():
            shard.drop()
        self._shards.clear()


def now_of(broker: Broker) -> Now:
    return Now(broker.clock.monotonic_ms(), broker.clock.wall_ms())


class _ActiveShard:
    """A shard, its partition, its timer, and the requests it has not answered."""

    def __init__(self, broker: Broker, partition: Partition, state: TransactionShard) -> None:
        self._broker = broker
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state = state
        self.answers: dict[int, Answer] = {}
        self._timer: TimerHandle | None = None
        self._is_dropped = False
        self._pending: deque[Effects] = deque()
        self._is_running = False

    def carry_out(self, effects: Effects) -> None:
        """Effects lead to results, and results to more effects: one after the other, never nested."""
        self._pending.append(effects)
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._pending and not self._is_dropped:
                self._carry_out_one(self._pending.popleft())
        finally:
            self._is_running = False
        if not self._is_dropped:
            self._wake_at(self.state.next_deadline_ms)

    def _carry_out_one(self, effects: Effects) -> None:
        for append in effects.appends:
            self._append(append)
        for response in effects.responses:
            answer = self.answers.pop(response.request_id, None)
            if answer is not None:
                answer(response.message)
        for marker in effects.markers:
            self._write_markers(marker)
        for abandoned in effects.abandoned:
            _log.error(
                "%s: no marker for %s: %s", abandoned.transactional_id, abandoned.partition, abandoned.error.name
            )

    def _append(self, append: Append) -> None:
        batch = coordinator_batch(append.records, self._broker.clock.wall_ms())
        try:
            if not self.partition.is_leader:
                raise PartitionUnavailable(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # noqa: TRY301 - one place answers
            if not self.partition.has_enough_replicas:
                raise PartitionUnavailable(ErrorCode.NOT_ENOUGH_REPLICAS)  # noqa: TRY301 - as above
            info = self.partition.append(batch, AppendOrigin.COORDINATOR)
        except (PartitionUnavailable, LogError) as error:
            self.on_append(append.token, ErrorCode(error.code))
            return
        waiting = _Committing(self, append.token, info.last_offset + 1)
        if waiting.is_ready():
            waiting.on_complete(expired=False)
        else:
            deadline_ms = self._broker.clock.monotonic_ms() + append.timeout_ms
            self._broker.produce_purgatory.watch(waiting, [self.partition.key], deadline_ms)

    def on_append(self, token: int, error: ErrorCode) -> None:
        if not self._is_dropped:
            self.carry_out(self.state.on_append(token, error, now_of(self._broker)))

    def _write_markers(self, marker: TxnMarker) -> None:
        """Here every partition is led by this node, or is gone."""
        results: dict[TopicPartition, ErrorCode] = {}
        gone: list[TopicPartition] = []
        for place in marker.partitions:
            if self._broker.image.partition(place.topic, place.partition) is None:
                gone.append(place)
                continue
            wanted = Marker(
                marker.producer_id,
                marker.producer_epoch,
                marker.coordinator_epoch,
                marker.committed,
                marker.transaction_version,
            )
            results[place] = write_marker(self._broker, place.topic, place.partition, wanted)
        now = now_of(self._broker)
        if gone:
            self.carry_out(self.state.on_partitions_deleted(marker.transactional_id, marker.token, gone, now))
        if results:
            self.carry_out(self.state.on_marker_results(marker.transactional_id, marker.token, results, now))

    def _wake_at(self, deadline_ms: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            self._timer = self._broker.wheel.add(deadline_ms, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.carry_out(self.state.tick(now_of(self._broker)))

    def drop(self) -> None:
        """No longer ours: answer whoever waits."""
        for response in self.state.resign().responses:
            answer = self.answers.pop(response.request_id, None)
            if answer is not None:
                answer(response.message)
        self._is_dropped = True
        self._wake_at(None)


class _Committing:
    """An append that waits for the high watermark."""

    __slots__ = ("_required_offset", "_shard", "_token")

    def __init__(self, shard: _ActiveShard, token: int, required_offset: int) -> None:
        self._shard = shard
        self._token = token
        self._required_offset = required_offset

    def is_ready(self) -> bool:
        return self._shard.partition.log.high_watermark >= self._required_offset

    def on_complete(self, expired: bool) -> None:
        self._shard.on_append(self._token, ErrorCode.NONE if self.is_ready() else ErrorCode.REQUEST_TIMED_OUT)


def _config_of(broker: Broker) -> TransactionConfig:
    config = broker.config
    return TransactionConfig(
        max_timeout_ms=config.get_int("transaction.max.timeout.ms"),
        transactional_id_expiration_ms=config.get_int("transactional.id.expiration.ms"),
        abort_timed_out_interval_ms=config.get_int("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
        remove_expired_interval_ms=config.get_int("transaction.remove.expired.transaction.cleanup.interval.ms"),
        partition_verification_enable=config.get_bool("transaction.partition.verification.enable"),
        request_timeout_ms=config.get_int("request.timeout.ms"),
    )


__all__ = ["OFFSETS_TOPIC", "TOPIC", "TransactionCoordinator", "now_of"]
