"""The server-side assignors "range" and "uniform", under Kafka's names.

Pure functions from members, their subscriptions and former assignments to the next target assignment. Members and
topics are taken in a fixed order, so the same input gives the same assignment on every broker.

- range: per topic, consecutive partitions to the members in order. Same partitions of topics with equal counts meet
  (joins).
- uniform: every member the same number of partitions, give or take one, and as few moves as possible. When members read
  different topics, partitions move from the fullest to the emptiest subscriber until that no longer helps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace

from moldau.groups.consumer import SubscriptionType
from moldau.groups.records import TopicPartition

_BALANCE_ROUNDS_MAX = 16

TargetAssignment = dict[str, frozenset[TopicPartition]]


@dataclass(slots=True, frozen=True)
class MemberSpec:
    instance_id: str | None
    topic_ids: frozenset[bytes]
    former: frozenset[TopicPartition]
    """Its part of the last target assignment."""


@dataclass(slots=True, frozen=True)
class GroupSpec:
    members: Mapping[str, MemberSpec]
    partition_counts: Mapping[bytes, int]
    """Of every topic any member reads."""
    subscription_type: SubscriptionType


def assign_range(group: GroupSpec) -> TargetAssignment:
    # Static members first, by instance id: a bounced one gets the same range again.
    order = sorted(group.members, key=lambda member_id: _range_order(member_id, group.members[member_id]))
    assignment: dict[str, set[TopicPartition]] = {member_id: set() for member_id in order}
    for topic_id, count in group.partition_counts.items():
        readers = [member_id for member_id in order if topic_id in group.members[member_id].topic_ids]
        start = 0
        for position, member_id in enumerate(readers):
            end = start + count // len(readers) + (position < count % len(readers))
            assignment[member_id].update((topic_id, index) for index in range(start, end))
            start = end
    return _frozen(assignment)


def assign_uniform(group: GroupSpec) -> TargetAssignment:
    if group.subscription_type is SubscriptionType.HOMOGENEOUS:
        return _assign_uniform_same_topics(group)
    return _assign_uniform_different_topics(group)


ASSIGNORS: Mapping[str, Callable[[GroupSpec], TargetAssignment]] = {"uniform": assign_uniform, "range": assign_range}


def _range_order(member_id: str, member: MemberSpec) -> tuple[bool, str]:
    return (True, member_id) if member.instance_id is None else (False, member.instance_id)


def _frozen(assignment: Mapping[str, set[TopicPartition]]) -> TargetAssignment:
    return {member_id: frozenset(partitions) for member_id, partitions in assignment.items()}


def _existing(group: GroupSpec) -> list[TopicPartition]:
    return [
        (topic_id, index)
        for topic_id in sorted(group.partition_counts)
        for index in range(group.partition_counts[topic_id])
    ]


def _keep_former(group: GroupSpec, existing: set[TopicPartition]) -> dict[str, set[TopicPartition]]:
    """What members had and may keep: topics they read, partitions that exist, nothing twice."""
    taken: set[TopicPartition] = set()
    kept: dict[str, set[TopicPartition]] = {}
    for member_id in sorted(group.members):
        member = group.members[member_id]
        kept[member_id] = {
            partition
            for partition in member.former
            if partition in existing and partition[0] in member.topic_ids and partition not in taken
        }
        taken |= kept[member_id]
    return kept


def _assign_uniform_same_topics(group: GroupSpec) -> TargetAssignment:
    partitions = _existing(group)
    assignment = _keep_former(group, set(partitions))
    quota, extra = divmod(len(partitions), len(group.members)) if group.members else (0, 0)
    # The extra partitions go to those who have most, so that least moves.
    by_size = sorted(assignment, key=lambda member_id: -len(assignment[member_id]))
    quotas = {member_id: quota + (position < extra) for position, member_id in enumerate(by_size)}
    for member_id, kept in assignment.items():
        if len(kept) > quotas[member_id]:
            assignment[member_id] = set(sorted(kept)[: quotas[member_id]])
    taken = set[TopicPartition]().union(*assignment.values())
    free = iter([partition for partition in partitions if partition not in taken])
    for member_id, kept in assignment.items():
        kept.update(partition for _, partition in zip(range(quotas[member_id] - len(kept)), free, strict=False))
    return _frozen(assignment)


def _assign_uniform_different_topics(group: GroupSpec) -> TargetAssignment:
    partitions = _existing(group)
    assignment = _keep_former(group, set(partitions))
    readers = {
        topic_id: [member_id for member_id in assignment if topic_id in group.members[member_id].topic_ids]
        for topic_id in group.partition_counts
    }
    # Topics with most partitions per reader first, then those with fewest readers: they leave least choice.
    topics = sorted(
        (topic_id for topic_id, found in readers.items() if found),
        key=lambda topic_id: (
            -group.partition_counts[topic_id] / len(readers[topic_id]),
            len(readers[topic_id]),
            topic_id,
        ),
    )
    taken = set[TopicPartition]().union(*assignment.values())
    for topic_id in topics:
        emptiest_first = [(len(assignment[member_id]), member_id) for member_id in readers[topic_id]]
        heapify(emptiest_first)
        for index in range(group.partition_counts[topic_id]):
            if (topic_id, index) not in taken:
                size, member_id = emptiest_first[0]
                assignment[member_id].add((topic_id, index))
                heapreplace(emptiest_first, (size + 1, member_id))
    for _ in range(_BALANCE_ROUNDS_MAX):
        moves = [_balance_topic(topic_id, readers[topic_id], assignment) for topic_id in topics]
        if not any(moves):
            break
    return _frozen(assignment)


def _balance_topic(topic_id: bytes, readers: list[str], assignment: dict[str, set[TopicPartition]]) -> int:
    """Move partitions of one topic from its fullest readers to its emptiest while they are two or more apart."""
    owned = {
        member_id: sorted(partition for partition in assignment[member_id] if partition[0] == topic_id)
        for member_id in readers
    }
    moves = 0
    while True:
        giver = max(
            (member_id for member_id in readers if owned[member_id]), key=lambda who: len(assignment[who]), default=None
        )
        taker = min(readers, key=lambda who: len(assignment[who]))
        if giver is None or len(assignment[giver]) - len(assignment[taker]) < 2:
            return moves
        partition = owned[giver].pop()
        owned[taker].append(partition)
        assignment[giver].discard(partition)
        assignment[taker].add(partition)
        moves += 1
