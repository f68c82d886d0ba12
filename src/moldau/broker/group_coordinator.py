"""Group coordination on this node: a shard for every partition of `__consumer_offsets` it leads.

The shards are pure (`moldau.groups`); this carries out their effects: appends their records, holds their answers back
until these are committed, wakes them when they asked for it, and loads or drops them as leadership comes and goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from moldau.broker.coordinator_log import coordinator_batch, read_batches
from moldau.broker.group_metadata import topics_delta, view_of
from moldau.broker.partition import Partition
from moldau.controller.delta import ImageDelta
from moldau.controller.image import ClusterImage, ResourceType
from moldau.groups import (
    Effects,
    GroupConfig,
    GroupOverrides,
    GroupShard,
    MigrationPolicy,
    Now,
    RegexResolution,
    RequestContext,
    error_after_failed_append,
    partition_for_group,
    refusal,
)
from moldau.groups.regex import resolve
from moldau.log.errors import LogError
from moldau.log.producer_state import AppendOrigin
from moldau.records import BatchOptions
from moldau.timers.wheel import TimerHandle
from moldau.wire import ErrorCode, MalformedFrame, Message

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.calls import Call

_log = logging.getLogger(__name__)

TOPIC = "__consumer_offsets"
_MINUTE_MS = 60_000

Answer = Callable[[Message], None]


class GroupCoordinator:
    """Belongs to the event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._shards: dict[int, _ActiveShard] = {}
        self._next_request_id = 0

    @property
    def partition_count(self) -> int:
        topic = self._broker.image.topics.get(TOPIC)
        return len(topic.partitions) if topic else self._broker.config.get_int("offsets.topic.num.partitions")

    def partition_for(self, group_id: str) -> int:
        return partition_for_group(group_id, self.partition_count)

    def shard_indexes(self) -> list[int]:
        return sorted(self._shards)

    def apply(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Leadership of the offsets topic may have changed, and topics that groups read."""
        for change in delta.partitions:
            if change.topic.name == TOPIC:
                self._follow_leadership(change.partition_id)
        if self._shards and (delta.topics_created or delta.topics_deleted or delta.partitions):
            view, changes = view_of(image), topics_delta(delta)
            deleted = [(topic.name, topic.topic_id) for topic in delta.topics_deleted]
            for shard in list(self._shards.values()):
                shard.carry_out(shard.state.on_metadata(view, changes, self._now()))
                if deleted:
                    shard.carry_out(shard.state.on_topics_deleted(deleted, self._now()))

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
            current.drop(ErrorCode.NOT_COORDINATOR)
        if leads and index not in self._shards:
            assert partition is not None
            self._load(partition)

    def _load(self, partition: Partition) -> None:
        broker = self._broker
        state = GroupShard(_config_of(broker), broker.random, view_of(broker.image), self._overrides_of)
        for batch in read_batches(partition):
            header = batch.header
            if batch.marker is not None:
                state.on_transaction_end(header.producer_id, committed=batch.marker.committed)
            for key, value in batch.records:
                try:
                    if header.is_transactional:
                        state.replay(key, value, header.producer_id)
                    else:
                        state.replay(key, value)
                except MalformedFrame as error:
                    _log.error("skipping a record of %r that cannot be read: %s", partition, error)
        shard = _ActiveShard(self, broker, partition, state)
        self._shards[partition.index] = shard
        shard.carry_out(state.on_loaded(self._now()))

    def _overrides_of(self, group_id: str) -> GroupOverrides:
        settings = self._broker.image.config(ResourceType.GROUP, group_id)

        def number(name: str) -> int | None:
            return int(settings[name]) if name in settings else None

        return GroupOverrides(
            number("consumer.session.timeout.ms"),
            number("consumer.heartbeat.interval.ms"),
            number("consumer.assignment.interval.ms"),
        )

    def reload(self, shard: _ActiveShard, error: ErrorCode) -> None:
        """An append failed: what the shard believes may not be in the log. Start again from what is."""
        index = shard.partition.index
        if self._shards.get(index) is shard:
            del self._shards[index]
            shard.drop(error)
            self._broker.loop.call_later(0.1, self._follow_leadership, index)

    def handle(self, call: Call, group_id: str, request: Message, answer: Answer) -> None:
        """Give a request to the group's shard; `answer` is called with its response, now or later."""
        self.handle_in(self.partition_for(group_id), call, request, answer)

    def handle_in(self, index: int, call: Call, request: Message, answer: Answer) -> None:
        shard = self._shards.get(index)
        if shard is None:
            answer(refusal(request, ErrorCode.NOT_COORDINATOR))
            return
        self._next_request_id += 1
        context = RequestContext(
            self._next_request_id, call.version, call.client_id or "", call.client_host, call.principal
        )
        shard.requests[context.request_id] = (request, answer)
        shard.carry_out(shard.state.handle(request, context, self._now()))

    def on_transaction_marker(self, index: int, producer_id: int, *, committed: bool) -> None:
        """A marker was written to the offsets partition: pending offsets become visible, or vanish."""
        shard = self._shards.get(index)
        if shard is not None:
            shard.state.on_transaction_end(producer_id, committed=committed)

    def _now(self) -> Now:
        clock = self._broker.clock
        return Now(clock.monotonic_ms(), clock.wall_ms())

    def now(self) -> Now:
        return self._now()

    def stop(self) -> None:
        for shard in self._shards.values():
            shard.drop(ErrorCode.NOT_COORDINATOR)
        self._shards.clear()


class _ActiveShard:
    """A shard, its partition, its timer, and the requests it has not answered."""

    def __init__(self, coordinator: GroupCoordinator, broker: Broker, partition: Partition, state: GroupShard) -> None:
        self._coordinator = coordinator
        self._broker = broker
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state = state
        self.requests: dict[int, tuple[Message, Answer]] = {}
        self._timer: TimerHandle | None = None
        self._appended_to = 0  # answers wait until the high watermark is here
        self._is_dropped = False

    def carry_out(self, effects: Effects) -> None:
        if self._is_dropped:
            return
        if effects.records:
            error = self._append(effects)
            if error is not None:
                if effects.producer is not None:
                    self._refuse(effects, error)  # not applied yet: nothing else is lost
                else:
                    self._coordinator.reload(self, error)
                return
        if effects.responses:
            self._answer_when_committed(effects)
        self._wake_at(effects.next_deadline_ms)
        for wanted in effects.regex_resolutions:
            self._resolve(wanted)

    def _resolve(self, wanted: RegexResolution) -> None:
        """Matching ten thousand names takes a while: in a thread."""
        view = view_of(self._broker.image)
        names = tuple(view.topic_names())

        def on_done(future: asyncio.Future[dict[str, frozenset[str]]]) -> None:
            if self._is_dropped or future.cancelled():
                return
            found = None if future.exception() is not None else future.result()
            now = self._coordinator.now()
            self.carry_out(self.state.on_regexes_resolved(wanted.group_id, found, view.version, now))

        self._broker.loop.run_in_executor(None, resolve, wanted.regexes, names).add_done_callback(on_done)

    def _append(self, effects: Effects) -> ErrorCode | None:
        options = guard = None
        if effects.producer is not None:
            # The handler had the transaction verified just before, in the same turn of the loop.
            producer = effects.producer
            guard = self.partition.log.start_verification(producer.producer_id, -1, producer.producer_epoch)
            options = BatchOptions(
                producer_id=effects.producer.producer_id,
                producer_epoch=effects.producer.producer_epoch,
                transactional=True,
            )
        now_ms = self._broker.clock.wall_ms()
        try:
            info = self.partition.append(
                coordinator_batch(effects.records, now_ms, options), AppendOrigin.COORDINATOR, verification_guard=guard
            )
        except LogError as error:
            _log.error("cannot write to %r: %s", self.partition, error)
            return error_after_failed_append(ErrorCode(error.code))
        self._appended_to = info.last_offset + 1
        if effects.producer is not None:
            self.state.on_transactional_append(effects.records, effects.producer.producer_id)
        self._broker.fetch_purgatory.check_and_complete(self.partition.key)
        return None

    def _answer_when_committed(self, effects: Effects) -> None:
        if self.partition.log.high_watermark >= self._appended_to:
            self._answer(effects)
            return
        deadline_ms = self._broker.clock.monotonic_ms() + self._broker.config.get_int("offsets.commit.timeout.ms")
        waiting = _HeldBack(self, effects, self._appended_to)
        self._broker.produce_purgatory.watch(waiting, [self.partition.key], deadline_ms)

    def _answer(self, effects: Effects) -> None:
        for request_id, message in effects.responses:
            found = self.requests.pop(request_id, None)
            if found is not None:
                found[1](message)

    def _refuse(self, effects: Effects, error: ErrorCode) -> None:
        for request_id, _ in effects.responses:
            found = self.requests.pop(request_id, None)
            if found is not None:
                request, answer = found
                answer(refusal(request, error))

    def held_back_done(self, effects: Effects, *, committed: bool) -> None:
        if committed:
            self._answer(effects)
        else:
            self._refuse(effects, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _wake_at(self, deadline_ms: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            self._timer = self._broker.wheel.add(deadline_ms, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.carry_out(self.state.tick(self._coordinator.now()))

    def drop(self, error: ErrorCode) -> None:
        """No longer ours: answer whoever waits."""
        if self._is_dropped:
            return
        self._answer(self.state.on_unloaded(error))
        self._is_dropped = True
        self._wake_at(None)
        waiting, self.requests = self.requests, {}
        for request, answer in waiting.values():
            answer(refusal(request, error))


class _HeldBack:
    """Answers that wait for the high watermark."""

    __slots__ = ("_effects", "_required_offset", "_shard")

    def __init__(self, shard: _ActiveShard, effects: Effects, required_offset: int) -> None:
        self._shard = shard
        self._effects = effects
        self._required_offset = required_offset

    def is_ready(self) -> bool:
        return self._shard.partition.log.high_watermark >= self._required_offset

    def on_complete(self, expired: bool) -> None:
        self._shard.held_back_done(self._effects, committed=self.is_ready())


def _config_of(broker: Broker) -> GroupConfig:
    config = broker.config
    return GroupConfig(
        min_session_timeout_ms=config.get_int("group.min.session.timeout.ms"),
        max_session_timeout_ms=config.get_int("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms=config.get_int("group.initial.rebalance.delay.ms"),
        max_size=config.get_int("group.max.size"),
        offset_metadata_max_bytes=config.get_int("offset.metadata.max.bytes"),
        offsets_retention_ms=config.get_int("offsets.retention.minutes") * _MINUTE_MS,
        offsets_retention_check_interval_ms=config.get_int("offsets.retention.check.interval.ms"),
        consumer_session_timeout_ms=config.get_int("group.consumer.session.timeout.ms"),
        consumer_heartbeat_interval_ms=config.get_int("group.consumer.heartbeat.interval.ms"),
        consumer_max_size=config.get_int("group.consumer.max.size"),
        consumer_assignors=config.get_list("group.consumer.assignors"),
        consumer_migration_policy=MigrationPolicy(config.get_str("group.consumer.migration.policy").lower()),
        consumer_assignment_interval_ms=config.get_int("group.consumer.assignment.interval.ms"),
        consumer_regex_refresh_interval_ms=config.get_int("group.consumer.regex.refresh.interval.ms"),
    )
