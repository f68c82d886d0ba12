"""A coordinator shard: all groups of one partition of `__consumer_offsets`.

The broker that leads the partition runs it: it replays the log into the shard, calls `on_loaded`, and from then on
hands it requests, ticks, metadata changes and ends of transactions, one at a time, and carries out the effects (see
`effects.Effects`).

Invariants
- Every call takes the time and returns effects; nothing happens in between.
- What is durable changes only through records returned in effects (or replayed); a shard loaded from the log has the
  same offsets, consumer groups, and classic groups as of their last stable generation.
- Records that cannot be written cost nobody anything but the request, or the timer, they belong to: what it did is
  taken back (`undo`). The same holds if a handler fails for a mistake of ours.
- Every request handed in is answered exactly once, at once or later; `on_unloaded` answers what still waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from moldau.groups import (
    classic_join,
    classic_rebalance,
    classic_requests,
    consumer_fence,
    consumer_heartbeat,
    describe,
    expiry,
    offset_requests,
)
from moldau.groups.classic import ClassicGroup
from moldau.groups.config import NO_OVERRIDES, GroupConfig, GroupOverrides
from moldau.groups.consumer import ConsumerGroup, MemberState
from moldau.groups.consumer_regexes import apply_resolution
from moldau.groups.consumer_steps import restart_session, watch_revocation
from moldau.groups.effects import Effects, Entry, GroupFailure, Now, Prepared, Producer, RequestContext
from moldau.groups.metadata import MetadataImage, TopicsDelta
from moldau.groups.records import decode_entry
from moldau.groups.refusals import error_after_failed_append, refusal
from moldau.groups.replay import NO_PRODUCER, apply
from moldau.groups.state import ShardState
from moldau.groups.timers import Timer, TimerKind
from moldau.groups.undo import undo
from moldau.seams.randomness import Random
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Message

_TIMERS_PER_TICK = 200

_HANDLERS: Mapping[str, Callable[[ShardState, Any, RequestContext], None]] = {
    "JoinGroupRequest": classic_join.join_group,
    "SyncGroupRequest": classic_requests.sync_group,
    "HeartbeatRequest": classic_requests.heartbeat,
    "LeaveGroupRequest": classic_requests.leave_group,
    "OffsetCommitRequest": offset_requests.commit_offsets,
    "TxnOffsetCommitRequest": offset_requests.commit_transactional_offsets,
    "OffsetFetchRequest": offset_requests.fetch_offsets,
    "OffsetDeleteRequest": offset_requests.delete_offsets,
    "DescribeGroupsRequest": describe.describe_groups,
    "ConsumerGroupDescribeRequest": describe.describe_consumer_groups,
    "ListGroupsRequest": describe.list_groups,
    "DeleteGroupsRequest": describe.delete_groups,
    "ConsumerGroupHeartbeatRequest": consumer_heartbeat.consumer_group_heartbeat,
}


class GroupShard:
    """See the module. `overrides` gives the settings of a single group (config resource GROUP)."""

    __slots__ = ("_state",)

    def __init__(
        self,
        config: GroupConfig,
        random: Random,
        image: MetadataImage,
        overrides: Callable[[str], GroupOverrides] = lambda _: NO_OVERRIDES,
    ) -> None:
        self._state = ShardState(config, random, overrides, image, Now(0, 0))

    @property
    def state(self) -> ShardState:
        """For tests and metrics: to be read only."""
        return self._state

    def configure(self, config: GroupConfig) -> None:
        """Settings changed: they hold from the next event on. Deadlines that are set already stay."""
        self._state.config = config

    def replay(self, key: bytes, value: bytes | None, producer_id: int = NO_PRODUCER) -> None:
        """Apply a record of the log, in log order. `producer_id` is that of a transactional batch. MalformedFrame on
        bad bytes.
        """
        entry = decode_entry(key, value)
        if entry is not None:
            apply(self._state, entry, producer_id)

    def on_transaction_end(self, producer_id: int, *, committed: bool) -> None:
        """A marker of this producer is in the log: while loading, and after the broker wrote one (WriteTxnMarkers)."""
        self._state.offsets.end_transaction(producer_id, committed)

    def on_appended(self, entries: Iterable[Entry], producer: Producer | None) -> None:
        """Records are in the log: those of `Effects.entries` among them take effect now."""
        producer_id = NO_PRODUCER if producer is None else producer.producer_id
        for entry in entries:
            apply(self._state, entry, producer_id)

    def on_append_failed(self, error: ErrorCode) -> Effects:
        """The records of the last event could not be written. What it did is taken back; these effects, without
        records, are carried out instead of its own."""
        undo(self._state, error_after_failed_append(error))
        return self._finish()

    def on_loaded(self, now: Now) -> Effects:
        """The log was replayed to its end: start sessions and expiry. Members have a whole session to make themselves
        heard.
        """
        state = self._begin(now)
        state.new_topics_version = state.image.version
        for group in tuple(state.groups.values()):
            if isinstance(group, ConsumerGroup):
                for member in group.members.values():
                    restart_session(state, group, member)
                    if member.classic is None and member.state is MemberState.UNREVOKED_PARTITIONS:
                        watch_revocation(state, group, member)
                continue
            for classic_member in group.members.values():
                classic_rebalance.restart_session(state, group, classic_member)
            if len(group.members) > state.config.max_size:
                # group.max.size was lowered: rebalance, so that members can commit before some are refused.
                classic_rebalance.prepare_rebalance(state, group)
        expiry.schedule_expiry(state)
        return self._finish()

    def on_unloaded(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> Effects:
        """The partition has another leader, or an append failed: answer whoever waits. The shard is not to be used
        again.
        """
        state = self._begin(self._state.now)
        for group in state.groups.values():
            if isinstance(group, ClassicGroup):
                for member_id in tuple(group.members):
                    classic_rebalance.fail_waiting(state, group, member_id, error)
        return self._finish()

    def prepare(self, request: Message, topics: Sequence[Any], now: Now) -> Prepared:
        """What a commit of these topics of `request` would write and answer. Nothing happens; of a long one, the broker
        puts such pieces together and hands them to `handle`."""
        self._state.now = now
        if isinstance(request, m.OffsetCommitRequest):
            return offset_requests.commit_records(self._state, request, topics, Prepared([], [], []))
        assert isinstance(request, m.TxnOffsetCommitRequest)
        return offset_requests.transactional_commit_records(self._state, request, topics, Prepared([], [], []))

    def handle(self, request: Message, context: RequestContext, now: Now, prepared: Prepared | None = None) -> Effects:
        """A request (highest-version form; the version in `context` decides what the client understands)."""
        state = self._begin(now)
        state.prepared = prepared
        handler = _HANDLERS.get(type(request).__name__)
        if handler is None:
            raise TypeError(f"{type(request).__name__} is not a request to a group coordinator")
        state.request = (context.request_id, request)
        try:
            _handle(handler, state, request, context)
        except Exception as failure:
            undo(state, ErrorCode.UNKNOWN_SERVER_ERROR)
            return self._finish(failures=(failure,))
        return self._finish()

    def tick(self, now: Now) -> Effects:
        """Do what is due, up to the first timer that writes: if its records cannot be written, no other is concerned.
        When there is more to do, `next_deadline_ms` is already past: tick again after the append."""
        state = self._begin(now)
        failures = []
        for _ in range(_TIMERS_PER_TICK):
            timer = state.timers.pop_due(now.monotonic_ms)
            if timer is None:
                break
            state.timer, state.savepoints = timer, {}
            try:
                _on_timer(state, timer)
            except Exception as failure:
                failures.append(failure)
                undo(state, ErrorCode.UNKNOWN_SERVER_ERROR)
            if state.records:
                break
        return self._finish(failures=tuple(failures))

    def on_metadata(self, image: MetadataImage, delta: TopicsDelta, now: Now) -> Effects:
        """The cluster metadata changed. Groups look at their topics with the next heartbeat."""
        state = self._begin(now)
        state.image = image
        if delta.created:
            state.new_topics_version = image.version
        touched = delta.created | delta.changed | delta.deleted
        for name in touched:
            state.topic_hashes.pop(name, None)
        for group in state.groups.values():
            if isinstance(group, ConsumerGroup) and any(map(group.is_subscribed_to, touched)):
                group.metadata_expired = True
        return self._finish()

    def on_topics_deleted(self, topics: Iterable[tuple[str, bytes]], now: Now) -> Effects:
        """Topics (name, id) are gone: their offsets go too. The effects may be split over several batches."""
        state = self._begin(now)
        expiry.delete_topic_offsets(state, topics)
        return self._finish(atomic=False)

    def on_regexes_resolved(
        self, group_id: str, resolved: Mapping[str, frozenset[str]] | None, version: int, now: Now
    ) -> Effects:
        """The answer to `Effects.regex_resolutions`, for the image of this version; None: it failed, try later."""
        state = self._begin(now)
        apply_resolution(state, group_id, resolved, version)
        return self._finish()

    def _begin(self, now: Now) -> ShardState:
        state = self._state
        state.now = now
        state.records = []
        state.responses = []
        state.regex_resolutions = []
        state.producer = None
        state.entries = []
        state.savepoints = {}
        state.request = None
        state.timer = None
        state.prepared = None
        return state

    def _finish(self, *, atomic: bool = True, failures: tuple[Exception, ...] = ()) -> Effects:
        state = self._state
        return Effects(
            tuple(state.records),
            tuple(state.responses),
            tuple(state.regex_resolutions),
            state.timers.next_deadline_ms(),
            state.producer,
            tuple(state.entries),
            atomic,
            failures,
        )


def _handle(
    handler: Callable[[ShardState, Any, RequestContext], None],
    state: ShardState,
    request: Message,
    context: RequestContext,
) -> None:
    try:
        handler(state, request, context)
    except GroupFailure as failure:
        # Handlers refuse before they change anything; a refusal after records were written would lose them.
        if state.records:
            raise AssertionError(f"{type(request).__name__} was refused half-way") from failure
        state.respond(context.request_id, refusal(request, failure.error, failure.message))


def _on_timer(state: ShardState, timer: Timer) -> None:
    if timer.key.kind is TimerKind.EXPIRY:
        expiry.expire_some(state)
    elif timer.key.kind in {
        TimerKind.CONSUMER_SESSION,
        TimerKind.CONSUMER_REBALANCE,
        TimerKind.CONSUMER_JOIN,
        TimerKind.CONSUMER_SYNC,
    }:
        consumer_fence.on_timer(state, timer)
    else:
        classic_rebalance.on_timer(state, timer)
