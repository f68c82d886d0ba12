"""What the topics matched by a group's regular expressions do to the group, once the broker has found them."""

from __future__ import annotations

from collections.abc import Mapping

from moldau.groups.consumer import ConsumerGroup
from moldau.groups.consumer_steps import refresh_metadata
from moldau.groups.replay import emit
from moldau.groups.state import ShardState
from moldau.wire import messages as m


def apply_resolution(
    state: ShardState, group_id: str, resolved: Mapping[str, frozenset[str]] | None, version: int
) -> None:
    group = state.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        return  # deleted or downgraded meanwhile
    group.regex_resolution_pending = False
    if resolved is None:
        return
    changed = False
    for regex, topics in sorted(resolved.items()):
        if regex not in group.regex_subscribers:
            continue  # nobody wants to know any more
        former = group.resolved_regexes.get(regex)
        changed = changed or (former.topics if former is not None else frozenset()) != topics
        emit(
            state,
            m.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex),
            # Written even if nothing changed: it tells when the expression was last looked at.
            m.ConsumerGroupRegularExpressionValue(topics=sorted(topics), version=version, timestamp=state.now.wall_ms),
        )
    group.metadata_expired = True
    refresh_metadata(state, group, must_bump=changed)
