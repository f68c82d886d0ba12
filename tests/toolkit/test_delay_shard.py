"""The pure core of the delays against a small model: random commands, times, crashes and clocks that are set back."""

import contextlib
import random
import sqlite3
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.toolkit.delays import entry
from moldau.toolkit.delays.cron import next_due_ms
from moldau.toolkit.delays.entry import Delayed
from moldau.toolkit.delays.far import FarOnDisk, Place, Row
from moldau.toolkit.delays.shard import Command, Shard
from moldau.toolkit.errors import SetupError, Undecodable


class FarInMemory:
    """What the one on disk does, in the plainest way."""

    def __init__(self) -> None:
        self.rows: dict[bytes, Row] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def has(self, id_: bytes) -> bool:
        return id_ in self.rows

    def put(self, rows: Sequence[Row]) -> None:
        self.rows |= {row[0]: row for row in rows}

    def remove(self, ids: Sequence[bytes]) -> None:
        for each in ids:
            self.rows.pop(each, None)

    def take(self, before: Place, count: int) -> list[Row]:
        found = sorted((r for r in self.rows.values() if (r[1], r[0]) < before), key=lambda r: (r[1], r[0]))[:count]
        self.remove([row[0] for row in found])
        return found

    def first(self) -> Place | None:
        return min(((row[1], row[0]) for row in self.rows.values()), default=None)

    def close(self) -> None:
        pass


def delayed(due_ms: int, value: bytes = b"v", cron: str | None = None) -> bytes:
    return entry.encode(Delayed(due_ms, "out", b"k", value, [], None, cron))


class World:
    """A shard, the topics it lives from, and what must be true."""

    def __init__(self, seed: int, near_max: int) -> None:
        self.random = random.Random(seed)
        self.near_max = near_max
        self.now = 1_000_000
        self.pending: dict[bytes, tuple[int, bytes]] = {}  # the model: id -> due time and value
        self.expected: list[bytes] = []
        self.topic: dict[bytes, bytes | None] = {}  # the compacted topic
        self.delivered: list[bytes] = []
        self.queue: list[Command] = []
        self.number = 0
        self.shard = self.make()

    def make(self) -> Shard:
        shard = Shard(FarInMemory(), self.now, ahead_ms=1_000, near_max=self.near_max)
        shard.carry_out(self.topic)
        return shard

    def schedule(self) -> None:
        id_ = b"%d" % self.random.randrange(30)
        self.number += 1
        due = self.now + self.random.choice([-5, 0, 1, 10, 500, 999, 1_000, 5_000, 100_000])
        self.queue.append((id_, delayed(due, b"%d" % self.number)))

    def cancel(self) -> None:
        self.queue.append((b"%d" % self.random.randrange(30), None))

    def damage(self) -> None:
        self.queue.append((b"%d" % self.random.randrange(30), b"\xff no message"))

    def step(self, survives: bool) -> None:
        """All commands are known: then what is due may go."""
        self.shard.advance(self.now)
        commands, limit = self.queue, self.random.choice([1, 3, 1_000])
        step = self.shard.plan(commands, self.now, limit)
        if not survives:
            return  # aborted: nothing has happened
        self.queue = []
        for id_, data in commands:
            if data is None:
                self.pending.pop(id_, None)
            elif data[:1] != b"\xff":
                found = entry.decode(data)
                self.pending[id_] = (found.due_ms, found.value or b"")
        asked = {id_ for id_, data in commands if data is None or data[:1] != b"\xff"}
        for id_, each in step.deliveries:
            assert each.due_ms <= self.now, "early"
            assert id_ not in asked, "whoever has just asked for it may have cancelled it in what comes next"
            value = each.value or b""
            self.delivered.append(value)
            if self.pending.get(id_) == (each.due_ms, value):
                del self.pending[id_]
                self.expected.append(value)
        self.topic |= step.writes
        self.shard.carry_out(step.writes)
        assert {id_ for id_, data in self.topic.items() if data is not None} == set(self.pending)
        assert len(self.shard) == len(self.pending)
        assert self.shard.near <= max(self.near_max, len(commands))

    def until_quiet(self) -> None:
        """Everything whose time has come has gone, and nothing else."""
        while True:
            before = len(self.delivered), self.queue
            self.step(survives=True)
            if (len(self.delivered), self.queue) == before:
                break
        assert not [each for each in self.pending.values() if each[0] <= self.now], "something due is still there"
        assert sorted(self.delivered) == sorted(self.expected), "lost or doubled"
        due = self.shard.next_due_ms()
        if self.pending:
            assert due is not None
            assert due <= min(each[0] for each in self.pending.values()), "it would sleep too long"


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), near_max=st.sampled_from([2, 4, 10, 1_000]))
def test_a_shard_does_what_the_model_says(seed: int, near_max: int) -> None:
    world = World(seed, near_max)
    for _ in range(60):
        match world.random.randrange(9):
            case 0 | 1 | 2:
                world.schedule()
            case 3:
                world.cancel()
            case 4:
                world.step(survives=world.random.random() < 0.7)
            case 5:
                world.now += world.random.choice([1, 10, 400, 1_500, 50_000])
            case 6:
                world.now -= world.random.choice([1, 700, 30_000])  # somebody sets the clock back
            case 7:
                world.damage()
            case 8:
                if world.random.random() < 0.3:
                    world.shard = world.make()  # a crash: from the topic
                else:
                    world.until_quiet()
    world.until_quiet()
    world.now += 1_000_000
    world.until_quiet()
    assert not world.pending


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12), st.integers(0, 40)), max_size=40))
def test_what_is_far_lies_on_disk_as_it_would_in_memory(moves: list[tuple[int, int, int]]) -> None:
    disk, model = FarOnDisk(), FarInMemory()
    try:
        for kind, number, due in moves:
            id_ = b"id-%d" % number
            if kind <= 1:
                rows = [(id_, due, b"data-%d" % due)]
                disk.put(rows)
                model.put(rows)
            elif kind == 2:
                disk.remove([id_, b"nobody"])
                model.remove([id_, b"nobody"])
            elif kind == 3:
                assert disk.take((due, id_), number) == model.take((due, id_), number)
            assert (len(disk), disk.first(), disk.has(id_)) == (len(model), model.first(), model.has(id_))
    finally:
        disk.close()


@pytest.fixture
def far() -> Iterator[FarOnDisk]:
    with contextlib.closing(FarOnDisk()) as found:
        yield found


def test_memory_stays_bounded_whatever_is_pending(far: FarOnDisk) -> None:
    shard = Shard(far, 0, near_max=100)
    for start in range(0, 5_000, 50):
        shard.carry_out({b"%d" % n: delayed(n % 700) for n in range(start, start + 50)})
        assert shard.near <= 100
    assert len(shard) == 5_000
    seen: set[bytes] = set()
    now = 0
    while len(shard):
        shard.advance(now)
        assert shard.near <= 100
        step = shard.plan([], now, 40)
        assert all(each.due_ms <= now for _, each in step.deliveries)
        seen |= {id_ for id_, _ in step.deliveries}
        shard.carry_out(step.writes)
        now += 0 if step.deliveries else 1
    assert len(seen) == 5_000


def test_what_is_scheduled_too_late_and_cancelled_at_once_is_not_delivered_beside_what_is_due(far: FarOnDisk) -> None:
    shard = Shard(far, 1_000)
    shard.carry_out({b"due": delayed(900)})
    shard.advance(1_000)
    step = shard.plan([(b"a", delayed(950)), (b"b", delayed(950)), (b"a", None)], 1_000, 10)
    assert [id_ for id_, _ in step.deliveries] == [b"due"]
    shard.carry_out(step.writes)
    shard.advance(1_000)
    assert [id_ for id_, _ in shard.plan([], 1_000, 10).deliveries] == [b"b"]


def test_years_ahead_in_milliseconds(far: FarOnDisk) -> None:
    far_away = 2**62
    shard = Shard(far, 1_000)
    shard.carry_out({b"x": delayed(far_away)})
    assert shard.next_due_ms() == far_away
    shard.advance(far_away - 1)
    assert shard.plan([], far_away - 1, 10).deliveries == []
    shard.advance(far_away)
    assert [id_ for id_, _ in shard.plan([], far_away, 10).deliveries] == [b"x"]


def test_a_recurring_message_is_replaced_by_its_next_time_and_missed_times_are_one(far: FarOnDisk) -> None:
    minute = 60_000
    shard = Shard(far, 0)
    shard.carry_out({b"c": delayed(minute, cron="* * * * *")})
    now = 10 * minute + 5
    shard.advance(now)
    step = shard.plan([], now, 10)
    assert [each.due_ms for _, each in step.deliveries] == [minute]
    data = step.writes[b"c"]
    assert data is not None
    assert entry.decode(data).due_ms == 11 * minute
    shard.carry_out(step.writes)
    assert shard.plan([(b"c", None)], now, 10).writes == {b"c": None}


def test_cron_knows_summer_time() -> None:
    # 2026-03-29, when clocks in Prague go from 2:00 to 3:00: 12:00 there is 10:00 UTC, and 11:00 UTC the day before.
    day_before = 1_774_695_600_000  # 2026-03-28 11:00 UTC
    assert next_due_ms("0 12 * * *", day_before, "Europe/Prague") == day_before + 23 * 3_600_000


@pytest.mark.parametrize(
    ("expression", "zone"), [("every day", "UTC"), ("0 0 30 2 *", "UTC"), ("* * * * *", "Middle/Earth")]
)
def test_what_is_no_cron_expression_is_said(expression: str, zone: str) -> None:
    with pytest.raises(SetupError, match="is no"):
        next_due_ms(expression, 0, zone)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"text", entry.encode(Delayed(-1, "t", None, None, []))])
def test_bytes_that_are_no_delayed_message(data: bytes) -> None:
    with pytest.raises(Undecodable):
        entry.decode(data)


def test_a_file_without_a_name_is_on_disk() -> None:
    """Temporary databases of SQLite are files only if it is told so; otherwise they are memory."""
    far = FarOnDisk()
    try:
        with contextlib.closing(sqlite3.connect(":memory:")) as database:
            options = [row[0] for row in database.execute("PRAGMA compile_options")]
        assert "TEMP_STORE=3" not in options
        assert far.temp_store == 1
    finally:
        far.close()
