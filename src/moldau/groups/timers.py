"""Deadlines of a shard, by key. Time comes as an argument; nothing here looks at a clock.

A group's members push their session deadline forward with every heartbeat, so moving a deadline later is the common
case: it only changes the table, and the heap entry is corrected when it surfaces. The heap therefore holds about one
entry per timer.
"""

from __future__ import annotations

from enum import Enum
from heapq import heappop, heappush
from typing import NamedTuple


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


class Timers:
    """At most one deadline per key; timers come due in deadline order, then in the order they were set."""

    __slots__ = ("_by_group", "_deadlines", "_heap", "_sequence")

    def __init__(self) -> None:
        self._deadlines: dict[TimerKey, tuple[float, tuple[int, ...]]] = {}
        self._by_group: dict[str, set[TimerKey]] = {}
        self._heap: list[tuple[float, int, TimerKey]] = []
        self._sequence = 0

    def __contains__(self, key: TimerKey) -> bool:
        return key in self._deadlines

    def __len__(self) -> int:
        return len(self._deadlines)

    def schedule(self, key: TimerKey, deadline_ms: float, *detail: int) -> None:
        """Set or replace the deadline of this key."""
        former = self._deadlines.get(key)
        self._deadlines[key] = (deadline_ms, detail)
        if former is None:
            self._by_group.setdefault(key.group_id, set()).add(key)
        if former is None or deadline_ms < former[0]:
            self._push(deadline_ms, key)

    def cancel(self, key: TimerKey) -> None:
        if self._deadlines.pop(key, None) is not None:
            self._forget(key)

    def cancel_group(self, group_id: str) -> None:
        for key in self._by_group.pop(group_id, ()):
            del self._deadlines[key]

    def next_deadline_ms(self) -> float | None:
        self._settle()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: float) -> Timer | None:
        """The first timer that is due, removed; None when there is none."""
        self._settle()
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        _, _, key = heappop(self._heap)
        _, detail = self._deadlines.pop(key)
        self._forget(key)
        return Timer(key, detail)

    def _forget(self, key: TimerKey) -> None:
        keys = self._by_group[key.group_id]
        keys.discard(key)
        if not keys:
            del self._by_group[key.group_id]

    def _push(self, deadline_ms: float, key: TimerKey) -> None:
        self._sequence += 1
        heappush(self._heap, (deadline_ms, self._sequence, key))

    def _settle(self) -> None:
        """Make the top of the heap tell the truth: drop cancelled entries, move postponed ones."""
        while self._heap:
            deadline_ms, _, key = self._heap[0]
            current = self._deadlines.get(key)
            if current is not None and current[0] == deadline_ms:
                return
            heappop(self._heap)
            # A later deadline has no entry of its own yet; an earlier one was pushed when it was set.
            if current is not None and current[0] > deadline_ms:
                self._push(current[0], key)
