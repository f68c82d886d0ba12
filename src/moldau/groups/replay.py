"""Applying records to the state of a shard: when it is loaded, and for every record it writes itself.

The same code runs in both cases, which is what makes a loaded shard equal to the one that wrote the log. The
exception is the classic group: while it lives its object is ahead of its last record, so `emit` is not used for
GroupMetadata.

Compaction may have removed any record but the last of its key, and a group may have changed its type since: a record
that does not fit the group as it is now is skipped, a newer one will tell.
"""

from __future__ import annotations

from moldau.groups.classic import ClassicGroup, group_from_record
from moldau.groups.consumer import ConsumerGroup
from moldau.groups.effects import Entry
from moldau.groups.offsets import CommittedOffset, OffsetKey
from moldau.groups.records import encode_entry
from moldau.groups.state import ShardState
from moldau.groups.undo import save
from moldau.wire import messages as m
from moldau.wire.message import Message

NO_PRODUCER = -1


def emit(state: ShardState, key: Message, value: Message | None) -> None:
    """Write a record about a group and let it take effect."""
    group_id: str = key.group if isinstance(key, m.GroupMetadataKey) else key.group_id  # type: ignore[attr-defined]  # as below
    save(state, group_id)
    state.records.append(encode_entry(key, value))
    apply(state, Entry(key, value))


def emit_later(state: ShardState, key: m.OffsetCommitKey, value: m.OffsetCommitValue | None) -> None:
    """Write a record that takes effect once it is in the log (`GroupShard.on_appended`)."""
    state.records.append(encode_entry(key, value))
    state.entries.append(Entry(key, value))


def apply(state: ShardState, entry: Entry, producer_id: int = NO_PRODUCER) -> None:
    key, value = entry
    if isinstance(key, m.OffsetCommitKey) or isinstance(key, m.LegacyOffsetCommitKey):  # noqa: SIM101 - a union is slow
        _apply_offset(state, OffsetKey(key.group, key.topic, key.partition), value, producer_id)
    elif isinstance(key, m.GroupMetadataKey):
        _apply_classic(state, key.group, value)
    elif isinstance(key, m.ConsumerGroupMetadataKey):
        if value is None:
            if isinstance(state.groups.get(key.group_id), ConsumerGroup):
                del state.groups[key.group_id]
        else:
            assert isinstance(value, m.ConsumerGroupMetadataValue)
            group = _consumer_group(state, key.group_id, create=True)
            if group is not None:
                group.apply_metadata(value)
    else:
        _apply_to_consumer_group(state, key, value)


def _apply_offset(state: ShardState, key: OffsetKey, value: Message | None, producer_id: int) -> None:
    if value is None:
        state.offsets.delete(key)
        return
    if isinstance(value, m.LegacyOffsetCommitValue):
        committed = CommittedOffset(
            value.offset, -1, value.metadata, value.commit_timestamp, sequence=state.offsets.next_sequence()
        )
    else:
        assert isinstance(value, m.OffsetCommitValue)
        committed = CommittedOffset(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            value.topic_id,
            state.offsets.next_sequence(),
        )
    if key.group_id not in state.groups:
        # A group of which only offsets are left in the log: it is Empty, since when nobody knows.
        state.groups[key.group_id] = ClassicGroup(key.group_id)
    if producer_id == NO_PRODUCER:
        state.offsets.commit(key, committed)
    else:
        state.offsets.commit_pending(producer_id, key, committed)


def _apply_classic(state: ShardState, group_id: str, value: Message | None) -> None:
    if value is None:
        if isinstance(state.groups.get(group_id), ClassicGroup):
            del state.groups[group_id]
        return
    assert isinstance(value, m.GroupMetadataValue)
    state.groups[group_id] = group_from_record(group_id, value)


def _apply_to_consumer_group(state: ShardState, key: Message, value: Message | None) -> None:
    group_id: str = key.group_id  # type: ignore[attr-defined]  # every remaining key type has one
    group = _consumer_group(state, group_id, create=value is not None)
    if group is None:
        return
    # The value's type follows from the key's: `records.decode_entry` pairs them.
    if isinstance(key, m.ConsumerGroupMemberMetadataKey):
        assert value is None or isinstance(value, m.ConsumerGroupMemberMetadataValue)
        group.apply_member(key.member_id, value)
    elif isinstance(key, m.ConsumerGroupCurrentMemberAssignmentKey):
        assert value is None or isinstance(value, m.ConsumerGroupCurrentMemberAssignmentValue)
        group.apply_current(key.member_id, value)
    elif isinstance(key, m.ConsumerGroupTargetAssignmentMemberKey):
        assert value is None or isinstance(value, m.ConsumerGroupTargetAssignmentMemberValue)
        group.apply_target(key.member_id, value)
    elif isinstance(key, m.ConsumerGroupTargetAssignmentMetadataKey):
        assert value is None or isinstance(value, m.ConsumerGroupTargetAssignmentMetadataValue)
        group.apply_target_metadata(value)
    elif isinstance(key, m.ConsumerGroupRegularExpressionKey):
        assert value is None or isinstance(value, m.ConsumerGroupRegularExpressionValue)
        group.apply_regex(key.regular_expression, value)
    elif isinstance(key, m.ConsumerGroupPartitionMetadataKey):
        group.has_partition_metadata_record = value is not None


def _consumer_group(state: ShardState, group_id: str, *, create: bool) -> ConsumerGroup | None:
    """The consumer group; a group that only stored offsets becomes one. None: it is classic, or not to be created."""
    group = state.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        return group
    if not create or (group is not None and not group.is_simple):
        return None
    made = ConsumerGroup(group_id)
    state.groups[group_id] = made
    return made
