"""Taking back what one event did, when its records cannot be written: too few replicas, too large, a disk that fails.

Offsets need none of this: their records take effect when they are in the log (`replay.emit_later`). A group is changed
at once, since one step of a handler builds on the other; so it is copied before the first change that writes.

Invariants
- Whatever writes a record about a group saves the group first: `emit` does, and before it nothing of the group has
  changed that matters. Classic groups change before they write: their handlers save by themselves.
- After `undo` the shard is what it was before the event, but for answers that had nothing to do with the records, and
  for a timer, which comes again a little later. Only the request at hand is refused; who waited before waits on.
"""

from __future__ import annotations

from moldau.groups.classic import ClassicGroup
from moldau.groups.consumer import ConsumerGroup
from moldau.groups.effects import Response
from moldau.groups.refusals import refusal
from moldau.groups.state import Savepoint, ShardState
from moldau.wire.errors import ErrorCode

RETRY_TIMER_MS = 500
"""As Kafka's coordinators: a timer whose records could not be written."""


def save(state: ShardState, group_id: str) -> None:
    """Before a group is changed by an event that writes records. The first time counts."""
    if group_id not in state.savepoints:
        group = state.groups.get(group_id)
        copy = None if group is None else group.copy()
        state.savepoints[group_id] = Savepoint(copy, state.timers.of_group(group_id))


def undo(state: ShardState, error: ErrorCode) -> None:
    """Back to before the event at hand. `error` is for the request, if it was one."""
    still_waiting: set[int] = set()
    for group_id, (group, timers) in state.savepoints.items():
        if group is None:
            state.groups.pop(group_id, None)
        else:
            state.groups[group_id] = group
        if isinstance(group, ClassicGroup):
            still_waiting.update(group.awaiting_join.values(), group.awaiting_sync.values())
        state.timers.restore_group(group_id, timers)
    state.savepoints = {}
    for wanted in state.regex_resolutions:
        asking = state.groups.get(wanted.group_id)
        if isinstance(asking, ConsumerGroup):
            asking.regex_resolution_pending = False
    if state.timer is not None:
        state.timers.schedule(state.timer.key, state.now.monotonic_ms + RETRY_TIMER_MS, *state.timer.detail)
    if state.request is not None:
        request_id, request = state.request
        still_waiting.add(request_id)
    state.responses = [response for response in state.responses if response.request_id not in still_waiting]
    if state.request is not None:
        state.responses.append(Response(request_id, refusal(request, error)))
    state.records, state.entries, state.regex_resolutions, state.producer = [], [], [], None
