"""Group coordination on this node: a shard for every partition of `__consumer_offsets` it leads.

The shards are pure (`moldau.groups`); this carries out their effects: appends their records, holds their answers back
until these are committed, and wakes them when they asked for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from moldau.broker.config.group import group_values
from moldau.broker.coordinator_log import read_batches
from moldau.broker.coordinator_shards import LedShards, Loading, append_records, when_committed
from moldau.broker.group_metadata import topics_delta, view_of
from moldau.broker.partition import Partition
from moldau.broker.replicas import PartitionUnavailable
from moldau.broker.wake_up import WakeUp
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
    TopicsDelta,
    error_after_failed_append,
    refusal,
)
from moldau.groups.config import NO_OVERRIDES
from moldau.groups.effects import Record
from moldau.groups.regex import resolve
from moldau.log.errors import LogError
from moldau.records import BatchOptions
from moldau.wire import ErrorCode, MalformedFrame, Message

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.calls import Call

_log = logging.getLogger(__name__)

TOPIC = "__consumer_offsets"
_MINUTE_MS = 60_000
_RECORDS_PER_BATCH = 1_000  # where records need not stay together

Answer = Callable[[Message], None]


class GroupCoordinator:
    """Belongs to the event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._shards: LedShards[_ActiveShard] = LedShards(
            broker, TOPIC, "offsets.topic.num.partitions", self._load, lambda shard: shard.start()
        )
        self._next_request_id = 0
        self._config = broker.config
        self._overrides: dict[str, GroupOverrides] = {}

    def partition_for(self, group_id: str) -> int:
        return self._shards.partition_for(group_id)

    def shard_indexes(self) -> list[int]:
        return self._shards.indexes

    def apply(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Leadership of the offsets topic may have changed, topics that groups read, and settings."""
        if delta.configs:
            self._reconfigure()
        self._shards.apply(delta)
        if self._shards and (delta.topics_created or delta.topics_deleted or delta.partitions):
            view, changes = view_of(image), topics_delta(delta)
            deleted = [(topic.name, topic.topic_id) for topic in delta.topics_deleted]
            for shard in self._shards:
                shard.carry_out(shard.state.on_metadata(view, changes, self.now()))
                if deleted:
                    shard.carry_out(shard.state.on_topics_deleted(deleted, self.now()))

    def _reconfigure(self) -> None:
        """What was derived from settings is derived anew. Timers that run keep their time: members restart them."""
        self._overrides.clear()
        if self._config is not self._broker.config:
            self._config = self._broker.config
            config = _config_of(self._broker)
            for shard in self._shards:
                shard.state.configure(config)

    def load_all(self) -> None:
        """Take charge of every partition this node leads already."""
        self._shards.follow_all()

    def _load(self, partition: Partition) -> Loading[_ActiveShard]:
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
            yield
        return _ActiveShard(self, broker, partition, state)

    def _overrides_of(self, group_id: str) -> GroupOverrides:
        """The group's own settings, within the bounds this broker sets now."""
        settings = self._broker.image.config(ResourceType.GROUP, group_id)
        if not settings:
            return NO_OVERRIDES
        found = self._overrides.get(group_id)
        if found is None:
            values = group_values(settings, self._broker.config)

            def number(name: str) -> int | None:
                value = values[name]
                return value if name in settings and isinstance(value, int) else None

            found = self._overrides[group_id] = GroupOverrides(
                number("consumer.session.timeout.ms"),
                number("consumer.heartbeat.interval.ms"),
                number("consumer.assignment.interval.ms"),
            )
        return found

    def reload(self, shard: _ActiveShard, error: ErrorCode) -> None:
        """An append failed: what the shard believes may not be in the log."""
        self._shards.reload(shard, error)

    def handle(
        self, call: Call, group_id: str, request: Message, answer: Answer, *, guard: object | None = None
    ) -> None:
        """Give a request to the group's shard; `answer` is called with its response, now or later.

        `guard` is the log's, taken before the transaction coordinator was asked about this request.
        """
        self.handle_in(self.partition_for(group_id), call, request, answer, guard=guard)

    def handle_in(
        self, index: int, call: Call, request: Message, answer: Answer, *, guard: object | None = None
    ) -> None:
        shard = self._shards.get(index)
        if shard is None:
            answer(refusal(request, self._shards.why_missing(index)))
            return
        self._next_request_id += 1
        context = RequestContext(
            self._next_request_id, call.version, call.client_id or "", call.client_host, call.principal
        )
        shard.requests[context.request_id] = (request, answer)
        try:
            effects = shard.state.handle(request, context, self.now())
        except Exception:  # half done: what the shard believes is not in the log. The caller answers.
            del shard.requests[context.request_id]
            self.reload(shard, ErrorCode.NOT_COORDINATOR)
            raise
        shard.carry_out(effects, guard)

    def on_transaction_marker(self, index: int, producer_id: int, *, committed: bool) -> None:
        """A marker was written to the offsets partition: pending offsets become visible, or vanish.

        A shard that is being loaded finds the marker in the log.
        """
        shard = self._shards.get(index)
        if shard is not None:
            shard.on_transaction_end(producer_id, committed=committed)

    def now(self) -> Now:
        clock = self._broker.clock
        return Now(clock.monotonic_ms(), clock.wall_ms())

    def stop(self) -> None:
        self._shards.stop()


class _ActiveShard:
    """A shard, its partition, its timer, and the requests it has not answered."""

    def __init__(self, coordinator: GroupCoordinator, broker: Broker, partition: Partition, state: GroupShard) -> None:
        self._coordinator = coordinator
        self._broker = broker
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state = state
        self.requests: dict[int, tuple[Message, Answer]] = {}
        self._wake_up = WakeUp(broker.wheel, self._tick)
        # Answers wait until the high watermark is here: for what was replayed, too.
        self._appended_to = partition.log.log_end_offset
        self._is_dropped = False

    def start(self) -> None:
        """The log is replayed. What changed in the cluster while it was is caught up with first."""
        now = self._coordinator.now()
        self.state.configure(_config_of(self._broker))
        self.carry_out(self.state.on_metadata(view_of(self._broker.image), TopicsDelta(), now))
        self.carry_out(self.state.on_loaded(now))

    def carry_out(self, effects: Effects, guard: object | None = None) -> None:
        if self._is_dropped:
            return
        for records in _batches(effects):
            error = self._append(effects, records, guard)
            if error is not None:
                if effects.producer is not None:
                    self._refuse(effects, error)  # not applied yet: nothing else is lost
                else:
                    self._coordinator.reload(self, error)
                return
        if effects.responses:
            self._answer_when_committed(effects)
        self._wake_up.at(effects.next_deadline_ms)
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

        self._broker.loop.run_in_executor(self._broker.executor, resolve, wanted.regexes, names).add_done_callback(
            on_done
        )

    def _append(self, effects: Effects, records: Sequence[Record], guard: object | None) -> ErrorCode | None:
        options = None
        if effects.producer is not None:
            producer = effects.producer
            options = BatchOptions(
                producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, transactional=True
            )
        try:
            self._appended_to = append_records(self._broker, self.partition, records, options, guard)
        except (LogError, PartitionUnavailable) as error:
            _log.error("cannot write to %r: %s", self.partition, error)
            return error_after_failed_append(ErrorCode(error.code))
        if effects.producer is not None:
            self.state.on_transactional_append(records, effects.producer.producer_id)
        return None

    def _answer_when_committed(self, effects: Effects) -> None:
        def then(is_committed: bool) -> None:
            if is_committed:
                self._answer(effects)
            else:
                self._refuse(effects, ErrorCode.COORDINATOR_NOT_AVAILABLE)

        timeout_ms = self._broker.config.get_int("offsets.commit.timeout.ms")
        when_committed(self._broker, self.partition, self._appended_to, timeout_ms, then)

    def on_transaction_end(self, producer_id: int, *, committed: bool) -> None:
        self.state.on_transaction_end(producer_id, committed=committed)
        self._appended_to = self.partition.log.log_end_offset

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

    def _tick(self) -> None:
        self.carry_out(self.state.tick(self._coordinator.now()))

    def drop(self, error: ErrorCode) -> None:
        """No longer ours: answer whoever waits."""
        if self._is_dropped:
            return
        self._answer(self.state.on_unloaded(error))
        self._is_dropped = True
        self._wake_up.at(None)
        waiting, self.requests = self.requests, {}
        for request, answer in waiting.values():
            answer(refusal(request, error))


def _batches(effects: Effects) -> Iterator[Sequence[Record]]:
    """One batch, unless each record stands for itself."""
    records = effects.records
    size = max(len(records), 1) if effects.atomic else _RECORDS_PER_BATCH
    for first in range(0, len(records), size):
        yield records[first : first + size]


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
