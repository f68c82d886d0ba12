"""Deadlines of a shard, by key. Time comes as an argument; nothing here looks at a clock.

A group's members push their session deadline forward with every heartbeat, so moving a deadline later is the common
case: it only changes the table, and the heap entry is corrected when it surfaces.

Invariant: the heap holds at most about two entries per timer. Entries of timers that were cancelled or moved stay in it
until they surface, or until they are the majority: then the heap is made anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

_SPARE_ENTRIES = 32  # of timers that are gone, whatever the number of those that are there


class TimerKind(Enum):
    CLASSIC_SESSION = "classic session"
    CLASSIC_INITIAL_JOIN = "classic initial join"
    CLASSIC_JOIN = "classic join"
    CLASSIC_SYNC = "classic sync"
    CONSUMER_SESSION = "consumer session"
    CONSUMER_REBALANCE = "consumer rebalance"
    CONSUMER_JOIN = "classic member of a consumer group must join"
    CONSUMER_SYNC = "classic member of a consumer group must sync"
    EXPIRY = "expiry"


class TimerKey(NamedTuple):
    group_id: str
    kind: TimerKind
    member_id: str = ""


class Timer(NamedTuple):
    key: TimerKey
    detail: tuple[int, ...]
    """What the timer was set for (a generation, an epoch), to tell whether it still matters when it fires."""


class _Deadline(NamedTuple):
    ms: float
    detail: tuple[int, ...]
    sequence: int
    """That of its latest entry in the heap."""


Deadlines = Mapping[TimerKey, _Deadline]
"""The timers of a group, to be restored."""


class Timers:
    """At most one deadline per key; timers come due in deadline order, then in the order they were set."""

    __slots__ = ("_by_group", "_deadlines", "_heap", "_sequence")

    def __init__(self) -> None:
        self._deadlines: dict[TimerKey, _Deadline] = {}
        self._by_group: dict[str, set[TimerKey]] = {}
        self._heap: list[tuple[float, int, TimerKey]] = []
        self._sequence = 0

    def __contains__(self, key: TimerKey) -> bool:
        return key in self._deadlines

    def __len__(self) -> int:
        return len(self._deadlines)

    def all_keys(self) -> Collection[TimerKey]:
        """All that are set, for tests and metrics."""
        return self._deadlines.keys()

    def schedule(self, key: TimerKey, deadline_ms: float, *detail: int) -> None:
        """Set or replace the deadline of this key."""
        former = self._deadlines.get(key)
        if former is not None and deadline_ms >= former.ms:
            self._deadlines[key] = _Deadline(deadline_ms, detail, former.sequence)
            return
        self._by_group.setdefault(key.group_id, set()).add(key)
        self._push(key, deadline_ms, detail)

    def cancel(self, key: TimerKey) -> None:
        if self._deadlines.pop(key, None) is not None:
            self._forget(key)

    def cancel_group(self, group_id: str) -> None:
        for key in self._by_group.pop(group_id, ()):
            del self._deadlines[key]

    def of_group(self, group_id: str) -> Deadlines:
        """As they are now, for `restore_group`."""
        return {key: self._deadlines[key] for key in self._by_group.get(group_id, ())}

    def restore_group(self, group_id: str, deadlines: Deadlines) -> None:
        """Make the timers of a group what they were."""
        self.cancel_group(group_id)
        for key, (deadline_ms, detail, _) in deadlines.items():
            self.schedule(key, deadline_ms, *detail)

    def next_deadline_ms(self) -> float | None:
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: float) -> Timer | None:
        """The first timer that is due, removed; None when there is none."""
        self._drop_stale()
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        _, _, key = heappop(self._heap)
        detail = self._deadlines.pop(key).detail
        self._forget(key)
        return Timer(key, detail)

    def _forget(self, key: TimerKey) -> None:
        keys = self._by_group[key.group_id]
        keys.discard(key)
        if not keys:
            del self._by_group[key.group_id]

    def _push(self, key: TimerKey, deadline_ms: float, detail: tuple[int, ...]) -> None:
        self._sequence += 1
        self._deadlines[key] = _Deadline(deadline_ms, detail, self._sequence)
        heappush(self._heap, (deadline_ms, self._sequence, key))
        if len(self._heap) > 2 * len(self._deadlines) + _SPARE_ENTRIES:
            self._heap = [(each.ms, each.sequence, key) for key, each in self._deadlines.items()]
            heapify(self._heap)

    def _drop_stale(self) -> None:
        """Make the top of the heap tell the truth: drop cancelled entries, move postponed ones."""
        while self._heap:
            deadline_ms, sequence, key = self._heap[0]
            current = self._deadlines.get(key)
            if current is None or current.sequence != sequence:
                heappop(self._heap)
            elif current.ms == deadline_ms:
                return
            else:  # postponed, and this was its only entry
                heappop(self._heap)
                self._push(key, current.ms, current.detail)
