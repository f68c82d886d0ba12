"""The scheduler against a small model: random arrivals, ends, failures, rebalances, restarts and stops.

The model knows only lists. It checks after every step what the scheduler promises: order within a lane, a commit that
passes nothing unfinished, nothing repeated after a restart but what was unfinished at the commit, and bounds.
"""

import gc
import random
import weakref
from collections import defaultdict
from collections.abc import Iterable

import pytest

from moldau.toolkit import offset_map
from moldau.toolkit.scheduler import Entry, Limits, Order, Part, Scheduler, Where

LIMITS = Limits(entries=40, bytes=10_000, entries_per_partition=25)
PARTITIONS: list[Where] = [("t", index) for index in range(3)]
KEYS = [None, b"a", b"b", b"c"]


class Model:
    """A topic's log, a group's commits, and one member that comes and goes."""

    def __init__(self, seed: int, order: Order) -> None:
        self.random = random.Random(seed)
        self.order: Order = order
        self.scheduler = Scheduler(order, LIMITS)
        self.log: dict[Where, list[tuple[int, bytes | None]]] = {where: [] for where in PARTITIONS}
        self.end = dict.fromkeys(PARTITIONS, 0)
        self.position = dict.fromkeys(PARTITIONS, 0)
        self.commits: dict[Where, tuple[int, str]] = {}
        self.done: dict[Where, set[int]] = defaultdict(set)  # finished by a handler, ever
        self.covered_by_commit: dict[Where, set[int]] = defaultdict(set)  # finished at the time of the last commit
        self.running: list[Entry] = []
        self.handed_on: set[Entry] = set()  # their handler returned, and somebody else is to acknowledge them
        self.started: dict[Part, list[Entry]] = defaultdict(list)
        self.generation = 0
        self.now = 0.0

    def lane(self, entry: Entry) -> object:
        return entry.key if self.order == "key" else "all" if self.order == "partition" else None

    def produce(self) -> None:
        where = self.random.choice(PARTITIONS)
        for _ in range(self.random.randint(1, 12)):
            self.end[where] += self.random.choice([1, 1, 1, 2, 7])  # compaction leaves gaps
            self.log[where].append((self.end[where] - 1, self.random.choice(KEYS)))

    def assign(self) -> None:
        where = self.random.choice(PARTITIONS)
        if where in self.scheduler.parts:
            return
        self.generation += 1
        offset, text = self.commits.get(where, (0, ""))
        self.scheduler.assigned(where, self.generation, offset, offset_map.decode(offset, text))
        self.position[where] = offset

    def fetch(self) -> None:
        for where, part in list(self.scheduler.parts.items()):
            if self.scheduler.is_full(part):
                part.paused = True
                continue
            part.paused = False
            new = [item for item in self.log[where] if item[0] >= self.position[where]][: self.random.randint(0, 5)]
            if self.random.random() < 0.1 and new:
                new = [new[0], *new]  # told twice
            due = self.now + 20 if self.random.random() < 0.1 else 0.0
            entries = [Entry(None, offset, key, 10, due) for offset, key in new]
            stale = self.random.random() < 0.05
            self.scheduler.arrived(where, part.generation - (1 if stale else 0), entries, self.now)
            if new and not stale:
                self.position[where] = new[-1][0] + 1

    def take(self) -> None:
        if self.random.random() < 0.3:
            taken = self.scheduler.take_batch(self.now, self.random.randint(1, 6))
            batches = [taken] if taken else []
        else:
            single = self.scheduler.take(self.now)
            batches = [[single]] if single is not None else []
        for batch in batches:
            for entry in batch:
                self.check_start(entry, batch)
            self.running.extend(batch)
            if len(batch) > 1:
                self.end_batch(batch)

    def check_start(self, entry: Entry, batch: list[Entry]) -> None:
        where = entry.part.where
        assert entry.part.alive
        assert not entry.part.draining
        assert entry.due_ms <= self.now
        assert entry.offset not in self.covered_by_commit[where], "repeated although its end was committed"
        lane = self.lane(entry)
        if lane is None:
            return
        for other in self.running:
            if other not in batch:
                assert other.part is not entry.part or self.lane(other) != lane, "two of one lane at once"
        earlier = [other for other in self.started[entry.part] if self.lane(other) == lane and other is not entry]
        assert all(other.offset < entry.offset for other in earlier), "out of order"
        unfinished = [o for o in entry.part.unfinished.values() if self.lane(o) == lane and o.offset < entry.offset]
        passed = [other for other in unfinished if other not in batch and other not in self.handed_on]
        assert not passed, "passed one that is not finished"
        if entry not in self.started[entry.part]:
            self.started[entry.part].append(entry)

    def end_batch(self, batch: list[Entry]) -> None:
        again = {}
        for index in range(len(batch)):
            # A later one of the same lane may have succeeded although an earlier is repeated: the handler said so.
            if self.random.random() < 0.2:
                again[index] = self.now + self.random.randint(0, 30)
        failed_lanes = {(id(batch[index].part), self.lane(batch[index])) for index in again}
        for index, entry in enumerate(batch):
            self.running.remove(entry)
            if entry.part.alive and index not in again:
                self.done[entry.part.where].add(entry.offset)
            if (id(entry.part), self.lane(entry)) in failed_lanes and entry in self.started[entry.part]:
                self.started[entry.part].remove(entry)
        self.scheduler.batch_ended(batch, again)

    def end_one(self) -> None:
        if not self.running:
            return
        entry = self.running.pop(self.random.randrange(len(self.running)))
        fate = self.random.random()
        if fate < 0.7:
            if self.scheduler.finished(entry):
                self.done[entry.part.where].add(entry.offset)
        elif fate < 0.9:
            self.scheduler.again(entry, self.now + self.random.randint(0, 50), parked=fate < 0.8)
        elif entry.part.alive:
            # Somebody else will acknowledge it, now or never in this life.
            self.scheduler.returned(entry)
            self.handed_on.add(entry)
            if fate < 0.95:
                assert self.scheduler.acknowledged(entry)
                assert not self.scheduler.acknowledged(entry)
                self.done[entry.part.where].add(entry.offset)

    def commit(self) -> None:
        for where, told in self.scheduler.to_commit().items():
            self.commits[where] = told
            self.scheduler.parts[where].committed = told
            self.covered_by_commit[where] = self.covered(told, self.done[where])
            missing = self.done[where] - self.covered_by_commit[where]
            assert not missing, f"finished but not noted: {missing}"
        assert not self.scheduler.to_commit()

    @staticmethod
    def covered(told: tuple[int, str], offsets: Iterable[int]) -> set[int]:
        ranges = [(0, told[0]), *offset_map.decode(*told).finished]
        return {offset for offset in offsets if any(start <= offset < stop for start, stop in ranges)}

    def revoke(self) -> None:
        if not self.scheduler.parts:
            return
        where = self.random.choice(list(self.scheduler.parts))
        is_lost = self.random.random() < 0.3
        if not is_lost:
            self.scheduler.draining([where])
            for _ in range(self.random.randint(0, 8)):
                self.take()
                self.end_one()
            self.commit()
        self.scheduler.removed(where)
        # What was finished and not committed will be done again; that is what at least once means.
        self.done[where] = set(self.covered_by_commit[where])

    def check(self) -> None:
        assert self.scheduler.held == sum(len(part.unfinished) for part in self.scheduler.parts.values())
        assert self.scheduler.held_bytes == 10 * self.scheduler.held
        assert self.scheduler.held <= LIMITS.entries + 5 * len(PARTITIONS)
        alive = [entry for entry in self.running if entry.part.alive]
        assert self.scheduler.running == len(alive) == sum(part.running for part in self.scheduler.parts.values())
        for where, part in self.scheduler.parts.items():
            snapshot = self.scheduler.snapshot(part)
            passed = self.covered(snapshot, (offset for offset, _ in self.log[where]))
            assert passed <= self.done[where], "the commit passes what is not finished"

    def step(self) -> None:
        self.now += self.random.choice([0, 1, 10])
        action = self.random.choices(
            [self.produce, self.assign, self.fetch, self.take, self.end_one, self.commit, self.revoke],
            [4, 2, 8, 20, 18, 3, 1],
        )[0]
        action()
        self.check()

    def finish_everything(self) -> None:
        """In the end, with a member that stays, every record was handled."""
        for where in PARTITIONS:
            self.scheduler.removed(where)
            self.done[where] = set(self.covered_by_commit[where])
        self.running.clear()
        for where in PARTITIONS:
            self.generation += 1
            offset, text = self.commits.get(where, (0, ""))
            self.scheduler.assigned(where, self.generation, offset, offset_map.decode(offset, text))
            self.position[where] = offset
        for _ in range(3_000):
            self.now += 10
            self.fetch()
            while (entry := self.scheduler.take(self.now)) is not None:
                self.check_start(entry, [entry])
                assert self.scheduler.finished(entry)
                self.done[entry.part.where].add(entry.offset)
            if all(self.position[where] == self.end[where] for where in PARTITIONS) and not self.scheduler.held:
                break
        self.commit()
        self.check()
        for where in PARTITIONS:
            assert self.done[where] == {offset for offset, _ in self.log[where]}
            assert self.commits.get(where, (0, ""))[0] == self.end[where]


@pytest.mark.parametrize("order", ["none", "key", "partition"])
@pytest.mark.parametrize("seed", range(25))
def test_random_lives(seed: int, order: Order) -> None:
    model = Model(seed, order)
    for _ in range(300):
        model.step()
    model.finish_everything()


def entries(*keys: bytes | None, start: int = 0) -> list[Entry]:
    return [Entry(None, start + index, key, 10) for index, key in enumerate(keys)]


def started(scheduler: Scheduler, now: float = 0) -> list[int]:
    found = []
    while (entry := scheduler.take(now)) is not None:
        found.append(entry.offset)
    return found


def test_a_late_end_after_a_rebalance_is_not_committed() -> None:
    """faust-streaming#175, #523: results of an earlier assignment were committed."""
    scheduler = Scheduler("key")
    scheduler.assigned(("t", 0), 1, 0)
    scheduler.arrived(("t", 0), 1, entries(b"a"), 0)
    old = scheduler.take(0)
    assert old is not None
    scheduler.removed(("t", 0))
    scheduler.assigned(("t", 0), 2, 0)
    scheduler.arrived(("t", 0), 2, entries(b"a"), 0)
    assert not scheduler.finished(old)
    assert scheduler.snapshot(scheduler.parts["t", 0])[0] == 0
    assert scheduler.running == 0
    assert started(scheduler) == [0]


def test_records_of_an_earlier_assignment_are_not_taken_for_new_ones() -> None:
    """Their offsets may lie beyond the new start: taking them in would jump over what comes in between."""
    scheduler = Scheduler("none")
    part = scheduler.assigned(("t", 0), 2, 0)
    assert scheduler.arrived(("t", 0), 1, entries(None, start=5), 0) == 0
    assert scheduler.arrived(("t", 1), 2, entries(None), 0) == 0
    assert scheduler.arrived(("t", 0), 2, entries(None), 0) == 1
    assert scheduler.snapshot(part)[0] == 0


def test_a_key_waits_behind_its_parked_record_and_others_do_not() -> None:
    scheduler = Scheduler("key")
    scheduler.assigned(("t", 0), 1, 0)
    scheduler.arrived(("t", 0), 1, entries(b"a", b"a", b"b", b"a"), 0)
    first = scheduler.take(0)
    assert first is not None
    scheduler.again(first, 1_000, parked=True)
    assert started(scheduler) == [2]
    assert [(entry.offset, behind) for entry, behind in scheduler.parked()] == [(0, 2)]
    assert scheduler.next_due_ms() == 1_000
    assert started(scheduler, 1_000) == [0]


def test_a_map_that_grows_too_long_pauses_and_shrinks_again() -> None:
    """parallel-consumer#647, #832: the map outgrew the metadata, and consumption stalled for good."""
    scheduler = Scheduler("none", Limits(entries=10_000, bytes=10**9, entries_per_partition=10_000))
    part = scheduler.assigned(("t", 0), 1, 0)
    running = []
    for start in range(0, 10_000, 100):
        if scheduler.is_full(part):
            break
        scheduler.arrived(("t", 0), 1, entries(*[None] * 100, start=start), 0)
        while (entry := scheduler.take(0)) is not None:
            if entry.offset % 2:
                scheduler.finished(entry)
            else:
                running.append(entry)
    assert scheduler.is_full(part)
    offset, text = scheduler.snapshot(part)
    assert len(text) < offset_map.LIMIT_BYTES
    assert offset_map.decode(offset, text).finished[-1] == (part.next_offset - 1, part.next_offset)
    for entry in running:
        scheduler.finished(entry)
    assert not scheduler.is_full(part)
    assert scheduler.snapshot(part) == (part.next_offset, "")


def test_one_stuck_record_costs_nothing_however_much_is_finished_beyond_it() -> None:
    scheduler = Scheduler("none")
    part = scheduler.assigned(("t", 0), 1, 0)
    for start in range(0, 100_000, 1_000):
        scheduler.arrived(("t", 0), 1, entries(*[None] * 1_000, start=start), 0)
        while (entry := scheduler.take(0)) is not None:
            if entry.offset:
                scheduler.finished(entry)
    offset, text = scheduler.snapshot(part)
    assert (offset, offset_map.decode(offset, text).finished) == (0, ((1, 100_000),))
    assert len(text) < 40
    assert not scheduler.is_full(part)


def test_markers_of_transactions_do_not_hold_up_the_commit() -> None:
    scheduler = Scheduler("none")
    part = scheduler.assigned(("t", 0), 1, 0)
    scheduler.arrived(("t", 0), 1, entries(None), 0)
    scheduler.reached(("t", 0), 1, 2)
    scheduler.reached(("t", 0), 0, 50)
    assert scheduler.snapshot(part)[0] == 0
    assert started(scheduler) == [0]
    scheduler.finished(next(iter(part.unfinished.values())))
    assert scheduler.snapshot(part)[0] == 2


def test_a_stopping_scheduler_starts_nothing() -> None:
    scheduler = Scheduler("none")
    part = scheduler.assigned(("t", 0), 1, 5)
    scheduler.arrived(("t", 0), 1, entries(None, None, start=5), 0)
    scheduler.is_stopping = True
    assert scheduler.take(0) is None
    assert scheduler.is_full(part)
    assert scheduler.snapshot(part)[0] == 5


class Raw:
    """Stands for a client's message."""


def test_what_was_taken_away_is_freed_without_the_collector() -> None:
    """It does not know entries: a partition that kept its unfinished ones would keep them for ever."""
    where, raw = ("t", 0), Raw()
    left = weakref.ref(raw)
    scheduler = Scheduler("key")
    scheduler.assigned(where, 1, 0)
    scheduler.arrived(where, 1, [Entry(None, 0, b"a", 1), Entry(raw, 1, b"a", 1)], 0)
    running = scheduler.take(0)
    del raw
    gc.disable()
    try:
        assert [entry.offset for entry in scheduler.removed(where)] == [0, 1]
        assert running is not None
        assert not scheduler.finished(running)
        assert left() is None
    finally:
        gc.enable()
