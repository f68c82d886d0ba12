"""One member's next step towards its target assignment (KIP-848): give up first, take afterwards.

A member that owns partitions it should not have is told to give them up, and stays at its epoch until it says it has.
Only then does it move to the target's epoch and get the partitions nobody owns any more; while others still own some,
it keeps asking.

Pure: a member value and what the group says go in, a member value comes out. Partitions keep the epoch they were
assigned at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace

from moldau.groups.consumer import ConsumerMember, MemberState
from moldau.groups.effects import GroupFailure
from moldau.groups.records import Epochs, TopicPartition
from moldau.wire.errors import ErrorCode


@dataclass(slots=True, frozen=True)
class Goal:
    """Where a member is going."""

    epoch: int
    partitions: Set[TopicPartition]
    subscribed_topic_ids: Collection[bytes]
    """Only topics the member subscribes to now count: the target may be older than its subscription."""
    subscription_changed: bool
    owners: Mapping[TopicPartition, str]
    owned: Set[TopicPartition] | None
    """What the member says it owns; None: it did not say."""


def reconcile(member: ConsumerMember, goal: Goal) -> ConsumerMember:
    """The member after this step; the same value when there is nothing to do."""
    if member.state is MemberState.STABLE and member.member_epoch == goal.epoch:
        return _drop_unsubscribed(member, goal) if goal.subscription_changed else member
    if member.state is MemberState.UNREVOKED_PARTITIONS and _still_owns(goal, member.pending_revocation):
        return _drop_unsubscribed(member, goal) if goal.subscription_changed else member
    if member.state is MemberState.UNKNOWN and goal.owned != frozenset():
        raise GroupFailure(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"A newer broker left member {member.member_id} in a state unknown here: "
            "give up all partitions and join again.",
        )
    return _advance(member, goal)


def _still_owns(goal: Goal, partitions: Epochs) -> bool:
    """A member that does not say what it owns has not confirmed anything."""
    return goal.owned is None or any(partition in partitions for partition in goal.owned)


def _advance(member: ConsumerMember, goal: Goal) -> ConsumerMember:
    wanted = {partition for partition in goal.partitions if partition[0] in goal.subscribed_topic_ids}
    kept = {partition: epoch for partition, epoch in member.assigned.items() if partition in wanted}
    to_revoke = {partition: epoch for partition, epoch in member.assigned.items() if partition not in wanted}
    if to_revoke and _still_owns(goal, to_revoke):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            previous_member_epoch=member.member_epoch,
            assigned=kept,
            pending_revocation=to_revoke,
        )
    missing = wanted - kept.keys()
    # Its own partitions are free to it: what it has just given up may be in its target again.
    free = {partition for partition in missing if goal.owners.get(partition, member.member_id) == member.member_id}
    return replace(
        member,
        state=MemberState.STABLE if len(free) == len(missing) else MemberState.UNRELEASED_PARTITIONS,
        member_epoch=goal.epoch,
        previous_member_epoch=member.member_epoch,
        assigned=kept | dict.fromkeys(free, goal.epoch),
        pending_revocation={},
    )


def _drop_unsubscribed(member: ConsumerMember, goal: Goal) -> ConsumerMember:
    """The subscription shrank, and a new target is yet to come: take back what the member no longer reads."""
    dropped = {
        partition: epoch
        for partition, epoch in member.assigned.items()
        if partition[0] not in goal.subscribed_topic_ids
    }
    if not dropped:
        return member
    kept = {partition: epoch for partition, epoch in member.assigned.items() if partition not in dropped}
    to_revoke = {**member.pending_revocation, **dropped}
    if not _still_owns(goal, to_revoke):
        return replace(member, previous_member_epoch=member.member_epoch, assigned=kept)
    return replace(
        member,
        state=MemberState.UNREVOKED_PARTITIONS,
        previous_member_epoch=member.member_epoch,
        assigned=kept,
        pending_revocation=to_revoke,
    )
