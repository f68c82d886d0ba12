"""Groups that change their protocol while members are live (KIP-848, online migration), and empty groups that change
it freely.

Upgrade: the first member of the new protocol turns a classic group into a consumer group; its classic members stay
and are served as classic. Downgrade: when the last member of the new protocol is gone, the group becomes classic
again. `group.consumer.migration.policy` says which of the two is allowed.
"""

from __future__ import annotations

from collections.abc import Collection

from moldau.groups import embedded
from moldau.groups.classic import ClassicGroup, ClassicMember, ClassicState
from moldau.groups.classic_rebalance import fail_waiting, prepare_rebalance, restart_session, write_metadata
from moldau.groups.consumer import (
    ClassicMemberData,
    ConsumerGroup,
    ConsumerMember,
    current_value,
    member_value,
)
from moldau.groups.consumer_steps import restart_session as restart_consumer_session
from moldau.groups.effects import GroupFailure
from moldau.groups.metadata import subscription_hash
from moldau.groups.records import TopicPartition, target_assignment_value
from moldau.groups.replay import emit
from moldau.groups.state import Group, ShardState
from moldau.groups.undo import save
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.primitives import MalformedFrame


def erase_group(state: ShardState, group: Group) -> None:
    """Tombstones for everything a group has written, except its offsets. Kafka's order: parts before the whole."""
    group_id = group.group_id
    save(state, group_id)
    state.timers.cancel_group(group_id)
    if isinstance(group, ClassicGroup):
        emit(state, m.GroupMetadataKey(group=group_id), None)
        return
    members = tuple(group.members)
    for member_id in members:
        emit(state, m.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None)
    for member_id in members:
        emit(state, m.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None)
    emit(state, m.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None)
    for member_id in members:
        emit(state, m.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None)
    for regex in tuple(group.resolved_regexes):
        emit(state, m.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), None)
    emit(state, m.ConsumerGroupPartitionMetadataKey(group_id=group_id), None)
    emit(state, m.ConsumerGroupMetadataKey(group_id=group_id), None)


def upgraded(state: ShardState, group: ClassicGroup) -> ConsumerGroup:
    """What the classic group would be as a consumer group. Changes nothing. GroupFailure if that is not possible."""
    reason = None
    if not state.config.consumer_migration_policy.allows_upgrade:
        reason = "group.consumer.migration.policy forbids it"
    elif not group.uses_consumer_protocol:
        reason = "its members are no consumers (protocol type)"
    elif len(group.members) > state.config.consumer_max_size:
        reason = "it has more members than group.consumer.max.size"
    if reason is None:
        try:
            return _as_consumer_group(state, group)
        except MalformedFrame:
            reason = "a member sent a subscription that cannot be read"
        except _CustomAssignor:
            reason = "its assignor keeps data of its own; switch all members to a built-in assignor first"
    raise GroupFailure(
        ErrorCode.GROUP_ID_NOT_FOUND, f"Classic group {group.group_id} cannot become a consumer group: {reason}."
    )


def upgrade(state: ShardState, classic: ClassicGroup, consumer: ConsumerGroup) -> None:
    """Replace a classic group by what `upgraded` made of it. Its members are told to join again."""
    group_id = classic.group_id
    save(state, group_id)
    for member_id in tuple(classic.members):
        fail_waiting(state, classic, member_id, ErrorCode.REBALANCE_IN_PROGRESS)
    erase_group(state, classic)
    for member_id, member in consumer.members.items():
        emit(state, m.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), member_value(member))
    epoch = m.ConsumerGroupMetadataValue(epoch=consumer.group_epoch, metadata_hash=consumer.metadata_hash)
    emit(state, m.ConsumerGroupMetadataKey(group_id=group_id), epoch)
    for member_id, target in consumer.target.items():
        key = m.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
        emit(state, key, target_assignment_value(target))
    target_epoch = m.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=consumer.assignment_epoch)
    emit(state, m.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), target_epoch)
    for member_id, member in consumer.members.items():
        key_of_current = m.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)
        emit(state, key_of_current, current_value(member))
        restart_consumer_session(state, consumer, member)


def can_downgrade(state: ShardState, group: ConsumerGroup, leaving: Collection[ConsumerMember]) -> bool:
    """Once these members are gone, are all that stay classic, and may the group follow them?"""
    staying = len(group.members) - len(leaving)
    classic_staying = group.classic_count - sum(member.classic is not None for member in leaving)
    return (
        0 < staying == classic_staying
        and staying <= state.config.max_size
        and state.config.consumer_migration_policy.allows_downgrade
    )


def downgrade(state: ShardState, group: ConsumerGroup, leaving: Collection[str], *, rebalance: bool) -> None:
    """Turn a consumer group of classic members into a classic group, Stable with the target assignment."""
    classic = _as_classic_group(state, group, leaving)
    erase_group(state, group)
    state.groups[group.group_id] = classic
    write_metadata(state, classic)
    for member in classic.members.values():
        restart_session(state, classic, member)
    if rebalance:
        prepare_rebalance(state, classic)


class _CustomAssignor(Exception):
    """The leader's assignment carries user data, which a server-side assignor would lose."""


def _as_consumer_group(state: ShardState, group: ClassicGroup) -> ConsumerGroup:
    # In its first rebalance a group has selected none yet; and its members may all have left again.
    protocol_name = group.protocol_name or (group.select_protocol() if group.members else None)
    generation = group.generation_id
    made = ConsumerGroup(group.group_id, group_epoch=generation, assignment_epoch=generation)
    names: set[str] = set()
    for member in group.members.values():
        subscription = embedded.decode_subscription(member.metadata(protocol_name))
        names.update(subscription.topics)
        partitions: set[TopicPartition] = set()
        if member.assignment:
            assignment = embedded.decode_assignment(member.assignment)
            if assignment.user_data:
                raise _CustomAssignor
            partitions = embedded.partitions_by_id(assignment.assigned_partitions, state.image)
        made.members[member.member_id] = ConsumerMember(
            member.member_id,
            member_epoch=generation,
            previous_member_epoch=generation,
            instance_id=member.group_instance_id,
            rack_id=subscription.rack_id or None,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=frozenset(subscription.topics),
            assigned=dict.fromkeys(partitions, generation),
            classic=ClassicMemberData(member.session_timeout_ms, member.protocols),
        )
        if member.group_instance_id is not None:
            made.static_members[member.group_instance_id] = member.member_id
        made.target[member.member_id] = frozenset(partitions)
    made.metadata_hash = subscription_hash(names, state.image, state.topic_hashes)
    return made


def _as_classic_group(state: ShardState, group: ConsumerGroup, leaving: Collection[str]) -> ClassicGroup:
    made = ClassicGroup(
        group.group_id,
        state=ClassicState.STABLE,
        state_timestamp_ms=state.now.wall_ms,
        generation_id=group.group_epoch,
    )
    for member in group.members.values():
        if member.member_id in leaving:
            continue
        assert member.classic is not None
        protocols = member.classic.protocols
        target = group.target.get(member.member_id, frozenset())
        version = embedded.assignment_version(metadata for _, metadata in protocols)
        made.add(
            ClassicMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.classic.session_timeout_ms,
                protocols,
                embedded.encode_assignment(target, state.image, version),
            ),
            embedded.PROTOCOL_TYPE,
        )
    made.protocol_name = made.select_protocol()
    made.subscribed_topics = made.read_subscriptions()
    return made
