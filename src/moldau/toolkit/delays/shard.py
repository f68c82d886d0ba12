"""What is pending in one partition of the delays, and what becomes of it: pure, commands and time in, steps out.

Whoever owns the partition asks for a step (`plan`), has the cluster carry it out in one transaction, and tells the
shard when that is done (`carry_out`). A step that failed is forgotten, and the shard is as it was before.

What is due soon is in memory, on a timing wheel; the rest is in `far`, on disk. `_until` is the place (time and id)
that parts them, so that memory holds `near_max` messages whatever is pending.

Invariants
- Everything pending before `_until` is near, everything else is far; nothing is both.
- A step delivers nothing that is due after `fire_until_ms`: no message is early, also if the clock is set back.
- What is scheduled once is delivered at most once: a step that delivers it replaces it by nothing, or its next time.
- Commands for one id count in their order: the last one is what is true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from moldau.timers import TimerHandle, TimingWheel
from moldau.toolkit.delays import entry
from moldau.toolkit.delays.cron import next_due_ms
from moldau.toolkit.delays.entry import Delayed
from moldau.toolkit.delays.far import Far, Place, Row
from moldau.toolkit.errors import SetupError, Undecodable

Command = tuple[bytes, bytes | None]
"""An id, and what is to be sent under it; None: nothing (it is cancelled)."""

AHEAD_MS = 60_000
NEAR_MAX = 40_000


@dataclass(slots=True)
class Step:
    """What one transaction does."""

    writes: dict[bytes, bytes | None] = field(default_factory=dict)  # id -> what is pending under it from now on
    deliveries: list[tuple[bytes, Delayed]] = field(default_factory=list)
    scheduled: int = 0
    cancelled: int = 0
    refused: int = 0  # commands nobody can understand


@dataclass(slots=True, frozen=True)
class _Near:
    due_ms: int
    data: bytes
    timer: TimerHandle


class Shard:
    """One partition's delays; belongs to one thread."""

    def __init__(self, far: Far, now_ms: int, *, ahead_ms: int = AHEAD_MS, near_max: int = NEAR_MAX) -> None:
        self._far = far
        self._ahead_ms = ahead_ms
        self._near_max = near_max
        self._wheel = TimingWheel(now_ms, size=64)
        self._near: dict[bytes, _Near] = {}
        self._due: dict[bytes, None] = {}  # the near ones whose time has come, in that order
        self._until: Place = (now_ms + ahead_ms, b"")

    def __len__(self) -> int:
        return len(self._near) + len(self._far)

    @property
    def near(self) -> int:
        """How many are in memory."""
        return len(self._near)

    def has(self, id_: bytes) -> bool:
        return id_ in self._near or self._far.has(id_)

    # Time.

    def advance(self, now_ms: int) -> None:
        """It is this late; earlier than before, if the clock was set back."""
        if now_ms < self._wheel.now_ms:
            self._set_back(now_ms)
        self._look_ahead(now_ms)
        self._wheel.advance(now_ms)

    def next_due_ms(self) -> int | None:
        """When there is something to do at the earliest; never later than something falls due."""
        if self._due:
            return self._wheel.now_ms
        if self._near:
            return self._wheel.next_deadline_ms()
        first = self._far.first()
        return None if first is None else first[0]

    def _set_back(self, now_ms: int) -> None:
        near, self._near, self._due = self._near, {}, {}
        self._wheel = TimingWheel(now_ms, size=64)
        for id_, each in near.items():
            self._add(id_, each.due_ms, each.data)

    def _look_ahead(self, now_ms: int) -> None:
        """Fetch what is due soon, while there is room and something to fetch."""
        room = self._near_max // 2
        while self._until < (now_ms + self._ahead_ms // 2, b"") and len(self._near) <= room:
            end = (now_ms + self._ahead_ms, b"")
            rows = self._far.take(end, room)
            for id_, due_ms, data in rows:
                self._add(id_, due_ms, data)
            self._until = end if len(rows) < room else (rows[-1][1], rows[-1][0] + b"\0")

    # Steps.

    def plan(self, commands: Iterable[Command], fire_until_ms: int, limit: int) -> Step:
        """A step for these commands and what is due; changes nothing here.

        `fire_until_ms` is a time before which every command given so far, these included, was sent: a message that was
        cancelled before it was due is not delivered. At most `limit` due messages are. Commands only change what is
        pending: what they made due already goes with the next step, when everything that was sent with them is known.
        """
        step = Step()
        touched: set[bytes] = set()
        for id_, data in commands:
            if data is None:
                touched.add(id_)
                step.cancelled += (step.writes[id_] is not None) if id_ in step.writes else self.has(id_)
                self._write(step, id_, None)
                continue
            try:
                entry.decode(data)
            except Undecodable:
                step.refused += 1
                continue
            touched.add(id_)
            step.scheduled += 1
            step.writes[id_] = data
        for id_ in self._due:
            if len(step.deliveries) >= limit:
                break
            near = self._near[id_]
            if id_ not in touched and near.due_ms <= fire_until_ms:
                step.writes[id_] = _deliver(step, id_, entry.decode(near.data), fire_until_ms)
        return step

    def _write(self, step: Step, id_: bytes, data: bytes | None) -> None:
        """What is pending under an id from now on; that there is still nothing need not be written."""
        if data is None and not self.has(id_):
            step.writes.pop(id_, None)
        else:
            step.writes[id_] = data

    def carry_out(self, writes: Mapping[bytes, bytes | None]) -> None:
        """These are pending from now on; also for what a partition's topic says when it is taken over."""
        self._far.remove([id_ for id_ in writes if not self._remove_near(id_)])
        rows: list[Row] = []
        for id_, data in writes.items():
            if data is None:
                continue
            due_ms = entry.decode(data).due_ms
            if (due_ms, id_) < self._until:
                self._add(id_, due_ms, data)
            else:
                rows.append((id_, due_ms, data))
        if rows:
            self._far.put(rows)
        if len(self._near) > self._near_max:
            self._make_room()

    def _add(self, id_: bytes, due_ms: int, data: bytes) -> None:
        timer = self._wheel.add(due_ms, partial(self._due.__setitem__, id_, None))
        self._near[id_] = _Near(due_ms, data, timer)

    def _remove_near(self, id_: bytes) -> bool:
        near = self._near.pop(id_, None)
        if near is None:
            return False
        near.timer.cancel()
        self._due.pop(id_, None)
        return True

    def _make_room(self) -> None:
        """The later half goes to disk."""
        later = sorted(((near.due_ms, id_) for id_, near in self._near.items()))[self._near_max // 2 :]
        rows = [(id_, due_ms, self._near[id_].data) for due_ms, id_ in later]
        for _, id_ in later:
            self._remove_near(id_)
        self._far.put(rows)
        self._until = later[0]


def _deliver(step: Step, id_: bytes, delayed: Delayed, now_ms: int) -> bytes | None:
    """Put it into the step; what is pending afterwards: nothing, or its next time. Times that were missed are one."""
    step.deliveries.append((id_, delayed))
    if delayed.cron is None:
        return None
    try:
        due_ms = next_due_ms(delayed.cron, max(delayed.due_ms, now_ms), delayed.zone)
    except SetupError:  # not sent by us
        step.refused += 1
        return None
    later = Delayed(
        due_ms,
        delayed.topic,
        delayed.key,
        delayed.value,
        delayed.headers,
        delayed.partition,
        delayed.cron,
        delayed.zone,
    )
    return entry.encode(later)
