"""Offsets nobody needs any more, and groups with nothing left: removed by tombstones, a bounded number at a time.

An offset expires `offsets.retention.minutes` after the group became Empty (KIP-211), or after its commit if the group
reads other topics by now or only stores offsets. A commit that asked for a retention time of its own keeps to that.
While a transaction has a commit pending for a partition, its offset stays. An Empty group without offsets goes too.
"""

from __future__ import annotations

from collections.abc import Iterable

from moldau.groups import migration
from moldau.groups.classic import ClassicGroup, ClassicState
from moldau.groups.consumer import ConsumerGroup
from moldau.groups.offsets import NO_EXPIRY, CommittedOffset
from moldau.groups.records import offset_key
from moldau.groups.replay import emit_later
from moldau.groups.state import Group, ShardState
from moldau.groups.timers import TimerKind
from moldau.wire.primitives import ZERO_UUID

_RECORDS_PER_STEP = 500


def schedule_expiry(state: ShardState) -> None:
    state.schedule(TimerKind.EXPIRY, "", "", state.config.offsets_retention_check_interval_ms)


def expire_some(state: ShardState) -> None:
    """One step of an expiry round. Steps follow each other at once; rounds after
    `offsets.retention.check.interval.ms`.
    """
    if not state.expiry_queue:
        state.expiry_queue = list(state.groups)
    while state.expiry_queue and len(state.records) < _RECORDS_PER_STEP:
        group = state.groups.get(state.expiry_queue[-1])
        if group is None or _expire_group(state, group):
            state.expiry_queue.pop()
    if state.expiry_queue:
        state.schedule(TimerKind.EXPIRY, "", "", 0)
    else:
        schedule_expiry(state)


def delete_topic_offsets(state: ShardState, topics: Iterable[tuple[str, bytes]]) -> None:
    """Topics (name, id) were deleted: forget their offsets, but not those of a new topic of the same name."""
    deleted = dict(topics)
    doomed = {
        key: None
        for key, topic_id in state.offsets.entries()
        if key.topic in deleted and topic_id in {ZERO_UUID, deleted[key.topic]}
    }
    for key in doomed:
        emit_later(state, offset_key(*key), None)


def _expire_group(state: ShardState, group: Group) -> bool:
    """True when the group is done with for this round."""
    group_id = group.group_id
    expired = [] if _keeps_offsets(group) else _expired(state, group)
    for topic, index in expired:
        if len(state.records) >= _RECORDS_PER_STEP:
            return False
        emit_later(state, offset_key(group_id, topic, index), None)
    committed = sum(map(len, state.offsets.topics_of(group_id).values()))
    bare = len(expired) == committed and not state.offsets.has_open_transactions(group_id)
    pending = isinstance(group, ClassicGroup) and bool(group.pending_members)
    if bare and not pending and group.is_empty:
        migration.erase_group(state, group)
    return True


def _keeps_offsets(group: Group) -> bool:
    """Offsets of a classic group in a rebalance, or of one whose topics cannot be told, do not expire."""
    if isinstance(group, ConsumerGroup) or group.protocol_type is None or group.state is ClassicState.EMPTY:
        return False
    return not (
        group.state is ClassicState.STABLE and group.uses_consumer_protocol and group.subscribed_topics is not None
    )


def _expired(state: ShardState, group: Group) -> list[tuple[str, int]]:
    return [
        (topic, index)
        for topic, partitions in state.offsets.topics_of(group.group_id).items()
        if not group.is_subscribed_to(topic)
        for index, committed in partitions.items()
        if _is_expired(state, group, committed) and not state.offsets.is_pending(group.group_id, topic, index)
    ]


def _is_expired(state: ShardState, group: Group, committed: CommittedOffset) -> bool:
    now_ms = state.now.wall_ms
    if committed.expire_timestamp_ms != NO_EXPIRY:
        return now_ms >= committed.expire_timestamp_ms
    since_ms = committed.commit_timestamp_ms
    was_used = isinstance(group, ClassicGroup) and group.protocol_type is not None
    if was_used and group.state is ClassicState.EMPTY and group.state_timestamp_ms != -1:
        since_ms = group.state_timestamp_ms
    return now_ms - since_ms >= state.config.offsets_retention_ms
