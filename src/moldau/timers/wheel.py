"""A hierarchical timing wheel: a million pending timers, each added, cancelled or fired in constant time.

Level 0 has `size` buckets of one millisecond; each further level has `size` buckets as wide as the whole level below,
and is created when a deadline first needs it. A heap holds only the buckets in use, so time jumps from one occupied
bucket to the next and an idle wheel costs nothing. When a wide bucket comes due its timers move down a level.

Invariants
- At each level, the ticks in use lie in [now + 1, now + size - 1]: a bucket never holds two different ticks.
- A timer never fires before its deadline, and fires on the first `advance` at or after it, in deadline order.
- A timer fires at most once; after `cancel` returned True, never, even if it came due in the same `advance`.
- A cancelled timer is forgotten at once: long timeouts that rarely fire leave nothing behind.
- Callbacks may add and cancel. A timer added already due fires on the next `advance`, so no callback can trap the loop.
- A callback that raises does not take others with it: the exception leaves `advance`, the next call goes on after it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

Callback = Callable[[], None]


class TimerHandle:
    """One pending callback."""

    __slots__ = ("_bucket", "_callback", "_wheel", "deadline_ms")

    def __init__(self, wheel: TimingWheel, deadline_ms: int, callback: Callback) -> None:
        self.deadline_ms = deadline_ms
        self._wheel = wheel
        self._callback: Callback | None = callback
        self._bucket: _Bucket | None = None

    @property
    def is_pending(self) -> bool:
        return self._callback is not None

    def cancel(self) -> bool:
        """True if the callback will now never run; False if it already ran or was cancelled before."""
        if self._callback is None:
            return False
        self._callback = None
        self._wheel._pending -= 1
        bucket = self._bucket
        if bucket is not None:  # else it is due already, and `advance` skips it
            del bucket.timers[self]
            self._bucket = None
        return True


class _Bucket:
    __slots__ = ("expiry_ms", "timers")

    def __init__(self) -> None:
        self.expiry_ms = -1  # -1: not in the heap
        self.timers: dict[TimerHandle, None] = {}  # a dict: insertion order, and removal in constant time

    def __lt__(self, other: _Bucket) -> bool:
        return self.expiry_ms < other.expiry_ms


class _Level:
    __slots__ = ("buckets", "limit_ms", "span_ms", "tick_ms")

    def __init__(self, tick_ms: int, size: int, now_ms: int) -> None:
        self.tick_ms = tick_ms
        self.span_ms = tick_ms * size
        self.buckets = [_Bucket() for _ in range(size)]
        self.limit_ms = now_ms - now_ms % tick_ms + self.span_ms  # deadlines below it fit


class TimingWheel:
    """Timers by absolute deadline, in the milliseconds of whichever monotonic clock the owner advances it with.

    `on_earlier_deadline`, if set, is called when `next_deadline_ms` became earlier, so that a sleeping owner re-arms.
    """

    __slots__ = ("_due", "_heap", "_levels", "_now_ms", "_pending", "_size", "on_earlier_deadline")

    def __init__(self, start_ms: float, *, size: int = 20) -> None:
        if size < 2:
            raise ValueError(f"a wheel needs at least 2 buckets per level, not {size}")
        self._now_ms = math.floor(start_ms)
        self._size = size
        self._levels = [_Level(1, size, self._now_ms)]
        self._heap: list[_Bucket] = []
        self._due: deque[TimerHandle] = deque()
        self._pending = 0
        self.on_earlier_deadline: Callback | None = None

    def __len__(self) -> int:
        """Timers that may still fire."""
        return self._pending

    @property
    def now_ms(self) -> int:
        """The time of the last `advance`."""
        return self._now_ms

    def add(self, deadline_ms: float, callback: Callback) -> TimerHandle:
        """Run `callback` on the first `advance` at or after `deadline_ms` (rounded up to a whole millisecond)."""
        handle = TimerHandle(self, math.ceil(deadline_ms), callback)
        self._pending += 1
        self._place(handle)
        return handle

    def next_deadline_ms(self) -> int | None:
        """When `advance` next has something to do (at the latest: the earliest deadline), or None if nothing waits."""
        if self._has_due():
            return self._now_ms
        heap = self._heap
        while heap:
            if heap[0].timers:
                return heap[0].expiry_ms
            heappop(heap).expiry_ms = -1  # everything in it was cancelled
        return None

    def advance(self, now_ms: float) -> int:
        """Move time to `now_ms` (never backwards) and run what came due. Returns how many callbacks ran."""
        now = math.floor(now_ms)
        heap = self._heap
        while heap and heap[0].expiry_ms <= now:
            bucket = heappop(heap)
            timers = bucket.timers
            self._set_time(bucket.expiry_ms)
            bucket.expiry_ms = -1
            if timers:
                bucket.timers = {}
                for handle in timers:
                    handle._bucket = None
                    self._place(handle)
        self._set_time(now)
        return self._run_due()

    def _has_due(self) -> bool:
        due = self._due
        while due and due[0]._callback is None:
            due.popleft()  # cancelled since
        return bool(due)

    def _run_due(self) -> int:
        ran = 0
        due = self._due
        for _ in range(len(due)):
            handle = due.popleft()
            callback = handle._callback
            if callback is not None:
                handle._callback = None
                self._pending -= 1
                ran += 1
                callback()
        return ran

    def _set_time(self, now_ms: int) -> None:
        if now_ms <= self._now_ms:
            return
        self._now_ms = now_ms
        for level in self._levels:
            level.limit_ms = now_ms - now_ms % level.tick_ms + level.span_ms

    def _place(self, handle: TimerHandle) -> None:
        deadline_ms = handle.deadline_ms
        if deadline_ms <= self._now_ms:
            was_due = self._has_due()
            self._due.append(handle)
            if not was_due and self.on_earlier_deadline is not None:
                self.on_earlier_deadline()
            return
        for level in self._levels:
            if deadline_ms < level.limit_ms:
                break
        else:
            level = self._grow_to(deadline_ms)
        tick = deadline_ms // level.tick_ms
        bucket = level.buckets[tick % self._size]
        bucket.timers[handle] = None
        handle._bucket = bucket
        if bucket.expiry_ms < 0:
            bucket.expiry_ms = tick * level.tick_ms
            heappush(self._heap, bucket)
            if self._heap[0] is bucket and self.on_earlier_deadline is not None:
                self.on_earlier_deadline()

    def _grow_to(self, deadline_ms: int) -> _Level:
        while True:
            level = _Level(self._levels[-1].span_ms, self._size, self._now_ms)
            self._levels.append(level)
            if deadline_ms < level.limit_ms:
                return level
