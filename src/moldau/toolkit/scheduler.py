"""Which record is handled next, and what may be committed: a value that is told of events and asked for decisions.

It knows no client, thread, loop or clock: records that arrived, handlers that ended, partitions that came and went,
and the time are told to it; it answers which entry to start, which partitions to pause, and what to commit.

Invariants:
- A commit never passes a record that is not finished, and offset and map are of one moment.
- Entries of one lane (a key, or a partition) are started in offset order and one after the other.
- An entry belongs to one assignment of its partition (`Part`); once that is over, nothing it reports counts.
- Entries held, those that wait for a time or behind another included, are bounded: full partitions are paused.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from moldau.toolkit import offset_map
from moldau.toolkit.offset_map import Anchor, Noted

Order = Literal["none", "key", "partition"]
Where = tuple[str, int]

_WHOLE_PARTITION = b""  # the lane of order="partition"; there it is the only one


@dataclass(slots=True, frozen=True)
class Limits:
    """How much may be held between its arrival and its end before no more is read.

    What was on its way then still comes, and that is no more than the limit again: a handler never holds twice as many
    entries as these, of a partition or in all. Bytes may pass that by what the client had fetched in advance
    (`queued.max.messages.kbytes`).
    """

    entries: int = 10_000
    bytes: int = 64 * 1024 * 1024
    entries_per_partition: int = 5_000


class Entry(msgspec.Struct, eq=False, gc=False):
    """One record between its arrival and its end.

    Every record is one of these, so it is as cheap as an object can be, and the collector of cycles does not know it.
    So nothing an entry leads to may lead back to it for good: `removed` empties its partition, and of what went wrong
    it keeps the kind, not the exception with its frames.
    """

    raw: Any
    offset: int
    key: bytes | None
    size: int
    due_ms: float = 0.0
    attempts: int = 0
    failure: type[BaseException] | None = None
    parked: bool = False
    part: Part = None  # type: ignore[assignment]  # set on arrival


class Part:
    """One partition during one assignment."""

    __slots__ = (
        "alive",
        "anchor",
        "bytes",
        "committed",
        "draining",
        "generation",
        "lanes",
        "map_is_full",
        "next_offset",
        "noted",
        "paused",
        "running",
        "unfinished",
        "where",
    )

    def __init__(self, where: Where, generation: int, start: int, noted: Noted) -> None:
        self.where = where
        self.generation = generation
        self.next_offset = start
        self.noted = deque(noted.finished)
        self.anchor: Anchor | None = noted.anchor
        self.unfinished: dict[int, Entry] = {}  # in offset order, since records arrive so
        self.lanes: dict[bytes, deque[Entry] | None] = {}  # lanes in use, and who waits behind
        self.running = 0
        self.bytes = 0
        self.alive = True
        self.draining = False
        self.paused = False
        self.map_is_full = False
        self.committed: tuple[int, str] | None = None


class Scheduler:
    """The entries of one handler on one set of partitions."""

    def __init__(self, order: Order = "key", limits: Limits | None = None) -> None:
        self.order = order
        self.limits = limits or Limits()
        self.parts: dict[Where, Part] = {}
        self.is_stopping = False
        self._ready: deque[Entry] = deque()
        self._delayed: list[tuple[float, int, Entry]] = []
        self._number = 0  # keeps the heap stable, and entries uncompared

    # How much there is. It is counted by partition: every record passes there, and few ask for the sum.

    @property
    def running(self) -> int:
        """Entries that were taken, and have not been reported."""
        return sum(part.running for part in self.parts.values())

    @property
    def held(self) -> int:
        """Entries between their arrival and their end."""
        return sum(len(part.unfinished) for part in self.parts.values())

    @property
    def held_bytes(self) -> int:
        return sum(part.bytes for part in self.parts.values())

    # Partitions come and go.

    def assigned(self, where: Where, generation: int, start: int, noted: Noted = offset_map.NOTHING) -> Part:
        """The partition is ours from `start` on; an earlier assignment of it, if any, is over."""
        self.removed(where)
        part = self.parts[where] = Part(where, generation, start, noted)
        return part

    def draining(self, wheres: Iterable[Where]) -> None:
        """Start nothing of these any more: they are about to be given back."""
        for where in wheres:
            if (part := self.parts.get(where)) is not None:
                part.draining = True

    def removed(self, where: Where) -> list[Entry]:
        """The partition was given back or lost. Returns what was not finished; its reports will not count."""
        part = self.parts.pop(where, None)
        if part is None:
            return []
        part.alive = False
        self._ready = deque(entry for entry in self._ready if entry.part.alive)
        self._delayed = [item for item in self._delayed if item[2].part.alive]
        heapq.heapify(self._delayed)
        unfinished = list(part.unfinished.values())
        part.unfinished.clear()
        part.lanes.clear()
        return unfinished

    # Records arrive.

    def arrived(self, where: Where, generation: int, entries: Sequence[Entry], now_ms: float) -> int:
        """Take entries in, in offset order. Returns how many; others are of another assignment, or were finished."""
        part = self.parts.get(where)
        if part is None or part.generation != generation:
            return 0
        taken = size = 0
        ready, lanes, unfinished = self._ready, part.lanes, part.unfinished
        by_key, by_partition = self.order == "key", self.order == "partition"
        next_offset, noted = part.next_offset, part.noted
        for entry in entries:
            offset = entry.offset
            if offset < next_offset:
                continue
            next_offset = offset + 1
            if noted and self._is_noted(part, offset):
                continue
            entry.part = part
            unfinished[offset] = entry
            taken += 1
            size += entry.size
            lane = entry.key if by_key else _WHOLE_PARTITION if by_partition else None
            if lane is not None:
                if lane in lanes:
                    behind = lanes[lane]
                    if behind is None:
                        lanes[lane] = behind = deque()
                    behind.append(entry)
                    continue
                lanes[lane] = None
            if entry.due_ms > now_ms:
                self._delay(entry)
            else:
                ready.append(entry)
        part.next_offset = next_offset
        part.bytes += size
        return taken

    def reached(self, where: Where, generation: int, offset: int) -> None:
        """Everything before `offset` was read; what did not arrive (markers of transactions) is no record."""
        part = self.parts.get(where)
        if part is not None and part.generation == generation:
            part.next_offset = max(part.next_offset, offset)

    @staticmethod
    def _is_noted(part: Part, offset: int) -> bool:
        while part.noted and part.noted[0][1] <= offset:
            part.noted.popleft()
        return bool(part.noted) and part.noted[0][0] <= offset

    # What to start.

    def take(self, now_ms: float) -> Entry | None:
        """The next entry to hand to the handler, or None."""
        if self._delayed:
            self._wake(now_ms)
        if self.is_stopping:
            return None
        ready = self._ready
        while ready:
            entry = ready.popleft()
            part = entry.part
            if part.alive and not part.draining:
                part.running += 1
                return entry
        return None

    def take_batch(self, now_ms: float, size: int) -> list[Entry]:
        """Up to `size` entries for one call; those of one lane follow each other in it."""
        batch: list[Entry] = []
        while len(batch) < size and (entry := self.take(now_ms)) is not None:
            batch.append(entry)
            lane = self._lane(entry)
            behind = entry.part.lanes[lane] if lane is not None else None
            while behind and len(batch) < size and behind[0].due_ms <= now_ms:
                batch.append(behind.popleft())
                entry.part.running += 1
        return batch

    def ready_count(self, now_ms: float) -> int:
        """How many entries could be started now (a little more, if partitions are being given back)."""
        if self._delayed:
            self._wake(now_ms)
        return 0 if self.is_stopping else len(self._ready)

    def batch_count(self, now_ms: float, size: int) -> int:
        """How many entries `take_batch` would give, up to `size`."""
        count = 0
        if self.ready_count(now_ms):
            for entry in self._ready:
                lane = self._lane(entry)
                behind = entry.part.lanes.get(lane) if lane is not None else None
                count += 1 + len(behind or ())
                if count >= size:
                    return size
        return count

    def next_due_ms(self) -> float | None:
        """When a waiting entry is due."""
        return self._delayed[0][0] if self._delayed else None

    # How it ended.

    def finished(self, entry: Entry) -> bool:
        """The handler is done with it for good (or it went to another topic). False: too late, not ours any more."""
        part = entry.part
        if not part.alive:
            return False
        part.running -= 1
        # `acknowledged` and `released`, written out: every record passes here.
        if part.unfinished.pop(entry.offset, None) is not None:
            part.bytes -= entry.size
        order = self.order
        lane = entry.key if order == "key" else _WHOLE_PARTITION if order == "partition" else None
        if lane is not None:
            lanes = part.lanes
            behind = lanes[lane]
            if behind:
                following = behind.popleft()
                if following.due_ms > 0:
                    self._delay(following)
                else:
                    self._ready.append(following)
            else:
                del lanes[lane]
        return True

    def acknowledged(self, entry: Entry) -> bool:
        """It may be committed; its lane is not touched. False: not ours any more, or said before."""
        part = entry.part
        if not part.alive or part.unfinished.pop(entry.offset, None) is None:
            return False
        part.bytes -= entry.size
        return True

    def returned(self, entry: Entry) -> None:
        """The handler ended, but somebody will acknowledge later: the lane goes on, the commit does not."""
        if entry.part.alive:
            entry.part.running -= 1
            self.released(entry)

    def released(self, entry: Entry) -> None:
        """The next of its lane may start."""
        lane = self._lane(entry)
        if lane is None:
            return
        lanes = entry.part.lanes
        behind = lanes.pop(lane)
        if behind:
            lanes[lane] = behind
            self._queue(behind.popleft())

    def again(self, entry: Entry, due_ms: float, *, parked: bool = False) -> bool:
        """It failed and is to be started again then; its lane waits behind it. False: not ours any more."""
        part = entry.part
        if not part.alive:
            return False
        part.running -= 1
        entry.due_ms = due_ms
        entry.parked = parked
        self._delay(entry)
        return True

    def batch_ended(self, batch: Sequence[Entry], again: dict[int, float]) -> None:
        """A call with several entries ended; `again` says by index which are to be repeated, and when."""
        lanes: dict[tuple[Part, bytes], list[Entry]] = {}
        for index, entry in enumerate(batch):
            part = entry.part
            if not part.alive:
                continue
            part.running -= 1
            if index in again:
                entry.due_ms = again[index]
            else:
                self.acknowledged(entry)
            lane = self._lane(entry)
            if lane is not None:
                repeated = lanes.setdefault((part, lane), [])
                if index in again:
                    repeated.append(entry)
            elif index in again:
                self._delay(entry)
        for (part, lane), repeated in lanes.items():
            if not repeated:
                self._release(part, lane)
                continue
            behind = part.lanes[lane] or deque()
            behind.extendleft(reversed(repeated[1:]))
            part.lanes[lane] = behind
            self._delay(repeated[0])

    def cancelled(self, entry: Entry) -> None:
        """The handler was cancelled: the entry stays unfinished, and so does its lane."""
        if entry.part.alive:
            entry.part.running -= 1

    def _release(self, part: Part, lane: bytes) -> None:
        behind = part.lanes.pop(lane)
        if behind:
            part.lanes[lane] = behind
            self._queue(behind.popleft())

    # What to pause and to commit.

    def is_full(self, part: Part, total: tuple[int, int] | None = None) -> bool:
        """Whether the partition should give no more records; it stays so until half of what counts is done.

        Who asks for many partitions says what is held in all, entries and bytes.
        """
        limits = self.limits
        held, held_bytes = total if total is not None else (self.held, self.held_bytes)
        factor = 0.5 if part.paused else 1.0
        return (
            self.is_stopping
            or part.draining
            or len(part.unfinished) >= limits.entries_per_partition * factor
            or held >= limits.entries * factor
            or held_bytes >= limits.bytes * factor
            or self._has_full_map(part)
        )

    def _has_full_map(self, part: Part) -> bool:
        # A gap costs two numbers, and there are no more gaps than finished or unfinished records beyond the first
        # unfinished one; only when that could be too much is the map made.
        unfinished = part.unfinished
        finished = part.next_offset - next(iter(unfinished), part.next_offset) - len(unfinished)
        worst = 8 * (min(len(unfinished), finished) + len(part.noted))
        if worst < offset_map.FULL_BYTES:
            part.map_is_full = False
        else:
            text = self._snapshot(part, 4 * offset_map.FULL_BYTES)[1]
            part.map_is_full = len(text) >= offset_map.FULL_BYTES * (0.75 if part.map_is_full else 1.0)
        return part.map_is_full

    def snapshot(self, part: Part) -> tuple[int, str]:
        """The offset to commit and the metadata beside it, both of this moment."""
        return self._snapshot(part, offset_map.LIMIT_BYTES)

    @staticmethod
    def _snapshot(part: Part, limit: int) -> tuple[int, str]:
        offset, ranges = offset_map.finished_beyond(part.unfinished, part.next_offset, part.noted)
        return offset, offset_map.encode(offset, ranges, part.anchor, limit)

    def to_commit(self) -> dict[Where, tuple[int, str]]:
        """What changed since the last commit that succeeded."""
        found = {}
        for where, part in self.parts.items():
            now = self.snapshot(part)
            if now != part.committed:
                found[where] = now
        return found

    def is_whole(self, where: Where, told: tuple[int, str]) -> bool:
        """Whether this snapshot of a partition, of now, tells everything that is finished."""
        part = self.parts[where]
        offset, ranges = offset_map.finished_beyond(part.unfinished, part.next_offset, part.noted)
        return offset == told[0] and list(offset_map.decode(*told).finished) == ranges

    def parked(self) -> list[tuple[Entry, int]]:
        """The entries that hold back their key until a later attempt, and how many wait behind each."""
        found = []
        for _, _, entry in self._delayed:
            lane = self._lane(entry)
            if entry.parked and entry.part.alive and lane is not None:
                found.append((entry, len(entry.part.lanes.get(lane) or ())))
        return found

    # Inside.

    def _lane(self, entry: Entry) -> bytes | None:
        order = self.order
        return entry.key if order == "key" else _WHOLE_PARTITION if order == "partition" else None

    def _queue(self, entry: Entry) -> None:
        if entry.due_ms > 0:
            self._delay(entry)
        else:
            self._ready.append(entry)

    def _delay(self, entry: Entry) -> None:
        self._number += 1
        heapq.heappush(self._delayed, (entry.due_ms, self._number, entry))

    def _wake(self, now_ms: float) -> None:
        while self._delayed and self._delayed[0][0] <= now_ms:
            self._ready.append(heapq.heappop(self._delayed)[2])
