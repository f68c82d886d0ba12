"""Group coordination on this node: a shard for every partition of `__consumer_offsets` it leads.

The shards are pure (`moldau.groups`); this carries out their effects: appends their records, holds their answers back
until these are committed, and wakes them when they asked for it.

Invariants
- One request's trouble is its own. Records that cannot be written are taken back by the shard; an answer that cannot be
  encoded is an error to its client; neither keeps another from its answer, nor the shard from being woken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from moldau.broker.config.group import group_values
from moldau.broker.coordinators.group_metadata import topics_delta, view_of
from moldau.broker.coordinators.log import coordinator_batch, read_batches
from moldau.broker.coordinators.pending import PendingAppends
from moldau.broker.coordinators.shards import LedShards, Loading, append_records, when_committed
from moldau.broker.replicas.manager import PartitionUnavailable
from moldau.broker.replicas.partition import Partition
from moldau.broker.wake_up import RETRY_MS, WakeUp
from moldau.controller.acls import AclResource, Operation
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
from moldau.groups.effects import Entry, Prepared, Record, Response
from moldau.groups.regex import resolve
from moldau.log.errors import LogError
from moldau.records import BatchOptions
from moldau.security.principal import Principal
from moldau.wire import ErrorCode, MalformedFrame, Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.shards import Needs as ShardsNeeds
    from moldau.broker.parts import HasAuthorizer, HasConfig, HasImage, HasLoop, HasRandom, HasTime, HasTurns
    from moldau.groups.state import ShardState

    class Needs(ShardsNeeds, HasAuthorizer, HasConfig, HasImage, HasLoop, HasRandom, HasTime, HasTurns, Protocol):
        """What this file may touch."""


_log = logging.getLogger(__name__)

TOPIC = "__consumer_offsets"
_MINUTE_MS = 60_000
# Generations and sessions of classic groups are in memory only: Kafka, too, tells of them at once.
_TOLD_AT_ONCE = (m.HeartbeatRequest,)
_RECORDS_PER_BATCH = 1_000  # where records need not stay together

Answer = Callable[[Message], None]


class GroupCoordinator:
    """Belongs to the event loop."""

    def __init__(self, broker: Needs) -> None:
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

    @property
    def states(self) -> list[ShardState]:
        """What the active shards know, for metrics: to be read only."""
        return [shard.state.state for shard in self._shards]

    def apply(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Leadership of the offsets topic may have changed, topics that groups read, and settings."""
        if delta.configs:
            self._reconfigure()
        self._shards.apply(delta)
        if self._shards and (delta.topics_created or delta.topics_deleted or delta.partitions):
            view, changes = view_of(image), topics_delta(delta)
            deleted = [(topic.name, topic.topic_id) for topic in delta.topics_deleted]
            for shard in self._shards:
                shard.run(partial(shard.state.on_metadata, view, changes, self.now()))
                if deleted:
                    shard.run(partial(shard.state.on_topics_deleted, deleted, self.now()))

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

    def handle(
        self,
        call: Call,
        group_id: str,
        request: Message,
        answer: Answer,
        *,
        guard: object | None = None,
        commit: LongCommit | None = None,
    ) -> None:
        """Give a request to the group's shard; `answer` is called with its response, now or later.

        `guard` is the log's, taken before the transaction coordinator was asked about this request. `commit` is what
        `prepare` made of it.
        """
        self.handle_in(
            self.partition_for(group_id), call, request, answer, group_id=group_id, guard=guard, commit=commit
        )

    async def prepare(
        self, group_id: str, request: Message, pieces: Iterable[list[Any]], options: BatchOptions | None = None
    ) -> LongCommit | ErrorCode:
        """What a commit of very many partitions will write, made while others have their turn; `pieces` are its topics.
        Or why it cannot be: what is too large for one batch is found out before much is made of it."""
        broker = self._broker
        shard = self._shards.get(self.partition_for(group_id))
        if shard is None:
            return self._shards.why_missing(self.partition_for(group_id))
        made = Prepared([], [], [])
        size, now = 0, self.now()
        for piece in pieces:
            await broker.turns.next_turn()
            part = shard.state.prepare(request, piece, now)
            size += sum(len(record.key) + len(record.value or b"") for record in part.records)
            if size > shard.partition.log.config.max_message_bytes:
                return error_after_failed_append(ErrorCode.RECORD_LIST_TOO_LARGE)
            made.records.extend(part.records)
            made.entries.extend(part.entries)
            if made.results and part.results and made.results[-1].name == part.results[0].name:  # of a topic cut in two
                made.results[-1].partitions += part.results.pop(0).partitions
            made.results.extend(part.results)
        work = partial(coordinator_batch, made.records, now.wall_ms, options)
        async with broker.long_look:
            return LongCommit(made, await broker.loop.run_in_executor(broker.executor, work))

    def handle_in(
        self,
        index: int,
        call: Call,
        request: Message,
        answer: Answer,
        *,
        group_id: str | None = None,
        guard: object | None = None,
        commit: LongCommit | None = None,
    ) -> None:
        """The same, for a shard; `group_id`: the only group that the request is about."""
        shard = self._shards.get(index)
        if shard is None:
            answer(refusal(request, self._shards.why_missing(index)))
            return
        self._next_request_id += 1
        context = RequestContext(
            self._next_request_id, call.version, call.client_id or "", call.client_host, str(call.principal)
        )
        shard.requests[context.request_id] = _Request(request, answer, call, group_id)
        is_of_one = group_id is not None
        if commit is None:
            shard.run(partial(shard.state.handle, request, context, self.now()), is_of_one, guard)
        else:
            event = partial(shard.state.handle, request, context, self.now(), commit.prepared)
            shard.run(event, is_of_one, guard, commit.batch)

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


class LongCommit(NamedTuple):
    """A commit of very many partitions, ready to be decided about."""

    prepared: Prepared
    batch: bytearray
    """Of its records."""


class _Request(NamedTuple):
    """Not answered yet."""

    message: Message
    answer: Answer
    call: Call
    group_id: str | None


class _ActiveShard:
    """A shard, its partition, its timer, and the requests it has not answered."""

    def __init__(self, coordinator: GroupCoordinator, broker: Needs, partition: Partition, state: GroupShard) -> None:
        self._coordinator = coordinator
        self._broker = broker
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state = state
        self.requests: dict[int, _Request] = {}
        self._wake_up = WakeUp(broker.wheel, self._tick)
        self._pending = PendingAppends(partition.log.log_end_offset)
        self._is_dropped = False

    def start(self) -> None:
        """The log is replayed. What changed in the cluster while it was is caught up with first."""
        now = self._coordinator.now()
        self.state.configure(_config_of(self._broker))
        self.run(partial(self.state.on_metadata, view_of(self._broker.image), TopicsDelta(), now))
        self.run(partial(self.state.on_loaded, now))

    def run(
        self,
        event: Callable[[], Effects],
        is_of_one: bool = False,
        guard: object | None = None,
        batch: bytearray | None = None,
    ) -> None:
        """Let something happen to the shard, and carry out what follows from it. `is_of_one`: to one of its groups.
        `batch`: its records, if there will be any."""
        if self._is_dropped:
            return
        try:
            self._carry_out(event(), is_of_one, guard, batch)
        except Exception:  # ours. The shard must be woken all the same: others wait for it.
            _log.exception("an event of %r failed", self.partition)
            self._wake_up.at(self._broker.clock.monotonic_ms() + RETRY_MS)

    def _carry_out(self, effects: Effects, is_of_one: bool, guard: object | None, batch: bytearray | None) -> None:
        for failure in effects.failures:
            _log.error("an event of %r failed and was taken back", self.partition, exc_info=failure)
        error = self._append(effects, is_of_one, guard, batch)
        if error is not None:
            effects = self.state.on_append_failed(error)
        self._wake_up.at(effects.next_deadline_ms)
        if error is not None:
            self._answer(effects.responses)  # a refusal tells nothing of what is not committed
        elif effects.responses:
            self._answer_when_committed(effects.responses)
        for wanted in effects.regex_resolutions:
            self._resolve(wanted)

    def _resolve(self, wanted: RegexResolution) -> None:
        """Matching ten thousand names takes a while: in a thread."""
        view = view_of(self._broker.image)
        names = tuple(filter(self._seen_by(wanted.context), view.topic_names()))

        def on_done(future: asyncio.Future[dict[str, frozenset[str]]]) -> None:
            if self._is_dropped or future.cancelled():
                return
            found = None if future.exception() is not None else future.result()
            now = self._coordinator.now()
            self.run(partial(self.state.on_regexes_resolved, wanted.group_id, found, view.version, now))

        self._broker.loop.run_in_executor(self._broker.executor, resolve, wanted.regexes, names).add_done_callback(
            on_done
        )

    def _seen_by(self, client: RequestContext) -> Callable[[str], bool] | None:
        """Which topics that client may know of; None is all of them."""
        authorizer = self._broker.authorizer
        if authorizer is None:
            return None
        principal, host = Principal.parse(client.principal), client.client_host.removeprefix("/")
        return partial(authorizer.allows, principal, host, Operation.DESCRIBE, AclResource.TOPIC)

    def _append(
        self, effects: Effects, is_of_one: bool, guard: object | None, batch: bytearray | None
    ) -> ErrorCode | None:
        """Write the records and let them take effect; or say why not, and then nothing has happened."""
        options = None
        if effects.producer is not None:
            producer = effects.producer
            options = BatchOptions(
                producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, transactional=True
            )
        for records, entries in _batches(effects):
            try:
                end_offset = append_records(self._broker, self.partition, records, options, guard, batch=batch)
            except (LogError, PartitionUnavailable) as error:
                _log.info("%r refused %d records: %s", self.partition, len(records), error)
                return ErrorCode(error.code)
            except Exception:  # ours: a record that cannot be built
                _log.exception("%d records cannot be written to %r", len(records), self.partition)
                return ErrorCode.UNKNOWN_SERVER_ERROR
            keys = [record.key for record in (records[:1] if is_of_one else records)]
            self._pending.appended(keys, end_offset, self.partition.log.high_watermark)
            self.state.on_appended(entries, effects.producer)
        return None

    def _answer_when_committed(self, responses: Sequence[Response]) -> None:
        """Each when what its own group has written is."""
        waiting: dict[int, list[Response]] = {}
        for response in responses:
            request = self.requests.get(response.request_id)
            if request is not None:
                is_soft = isinstance(request.message, _TOLD_AT_ONCE)
                end_offset = 0 if is_soft else self._pending.end_for(request.group_id)
                waiting.setdefault(end_offset, []).append(response)
        timeout_ms = self._broker.config.get_int("offsets.commit.timeout.ms")
        for end_offset, some in waiting.items():
            when_committed(self._broker, self.partition, end_offset, timeout_ms, partial(self._committed, some))

    def _committed(self, responses: Sequence[Response], is_committed: bool) -> None:
        if is_committed:
            self._answer(responses)
        else:
            self._refuse(responses, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def on_transaction_end(self, producer_id: int, *, committed: bool) -> None:
        self.state.on_transaction_end(producer_id, committed=committed)
        self._pending.appended_for_all(self.partition.log.log_end_offset)

    def _answer(self, responses: Sequence[Response]) -> None:
        for request_id, message in responses:
            found = self.requests.pop(request_id, None)
            if found is not None:
                _tell(found, message)

    def _refuse(self, responses: Sequence[Response], error: ErrorCode) -> None:
        for request_id, _ in responses:
            found = self.requests.pop(request_id, None)
            if found is not None:
                _tell(found, refusal(found.message, error))

    def _tick(self) -> None:
        self.run(partial(self.state.tick, self._coordinator.now()))

    def drop(self, error: ErrorCode) -> None:
        """No longer ours: answer whoever waits."""
        if self._is_dropped:
            return
        self._answer(self.state.on_unloaded(error).responses)
        self._is_dropped = True
        self._wake_up.at(None)
        waiting, self.requests = self.requests, {}
        for request in waiting.values():
            _tell(request, refusal(request.message, error))


def _tell(request: _Request, message: Message) -> None:
    """Answer, whatever happens: others wait for their turn."""
    try:
        request.answer(message)
    except Exception:
        _log.exception("%r cannot be answered", request.call)
        try:
            request.answer(refusal(request.message, ErrorCode.UNKNOWN_SERVER_ERROR))
        except Exception:
            _log.exception("%r cannot be refused either", request.call)
            with contextlib.suppress(RuntimeError):  # it was answered, but something after that failed
                request.call.slot.close("the answer cannot be written")


def _batches(effects: Effects) -> Iterator[tuple[Sequence[Record], Sequence[Entry]]]:
    """One batch, unless each record stands for itself. With each, what takes effect with it."""
    if effects.atomic:
        if effects.records:
            yield effects.records, effects.entries
        return
    for first in range(0, len(effects.records), _RECORDS_PER_BATCH):
        last = first + _RECORDS_PER_BATCH
        yield effects.records[first:last], effects.entries[first:last]


def _config_of(broker: Needs) -> GroupConfig:
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
