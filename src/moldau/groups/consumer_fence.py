"""Members that leave a consumer group, or are made to: their partitions become free, and the group gets a new epoch."""

from __future__ import annotations

from collections.abc import Sequence

from moldau.groups import migration
from moldau.groups.consumer import ConsumerGroup, ConsumerMember
from moldau.groups.consumer_steps import bump_epoch, cancel_member_timers, erase_member
from moldau.groups.replay import emit
from moldau.groups.state import ShardState
from moldau.groups.timers import Timer, TimerKind
from moldau.wire import messages as m


def fence_members(state: ShardState, group: ConsumerGroup, members: Sequence[ConsumerMember]) -> None:
    if not members:
        return
    if migration.can_downgrade(state, group, members):
        leaving = {member.member_id for member in members}
        migration.downgrade(state, group, leaving, rebalance=True)
        return
    for member in members:
        erase_member(state, group, member.member_id)
        cancel_member_timers(state, group.group_id, member.member_id)
    for regex in tuple(group.resolved_regexes):
        if regex not in group.regex_subscribers:
            key = m.ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=regex)
            emit(state, key, None)
    bump_epoch(state, group)


def on_timer(state: ShardState, timer: Timer) -> None:
    """A session is over, or a member took too long to give up partitions, to join or to sync."""
    group = state.groups.get(timer.key.group_id)
    if not isinstance(group, ConsumerGroup):
        return
    member = group.members.get(timer.key.member_id)
    if member is None:
        return
    if timer.key.kind is TimerKind.CONSUMER_REBALANCE and member.member_epoch != timer.detail[0]:
        return  # it has moved on since
    fence_members(state, group, [member])
