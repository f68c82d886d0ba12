"""How shards of a coordinator come and go: with leadership, loaded in slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.broker.coordinators.shards import LedShards, Loading, when_committed
from moldau.log.errors import StorageError
from moldau.timers import Purgatory, TimingWheel
from moldau.wire import ErrorCode

TOPIC = "__consumer_offsets"


@dataclass(slots=True)
class FakePartition:
    index: int = 0
    is_leader: bool = True
    leader_epoch: int = 1
    steps: int = 3
    fails: bool = False
    log: Any = field(default_factory=lambda: SimpleNamespace(high_watermark=10, log_end_offset=10))


@dataclass(slots=True, eq=False)
class FakeShard:
    partition: Any
    leader_epoch: int
    dropped: ErrorCode | None = None

    def drop(self, error: ErrorCode) -> None:
        self.dropped = error


class World:
    """A broker with one partition, a loop turned by hand, and a clock that moves when it is looked at."""

    def __init__(self, partition: FakePartition, tick_ms: float) -> None:
        self.partition: FakePartition | None = partition
        self.turns: list[Callable[[], None]] = []
        self.started: list[FakeShard] = []
        self._now_ms = 0.0
        self._tick_ms = tick_ms
        loop = SimpleNamespace(
            call_soon=lambda action, *args: self.turns.append(lambda: action(*args)),
            call_later=lambda _, action, *args: self.turns.append(lambda: action(*args)),
        )
        topic = SimpleNamespace(partitions={0: None})
        broker: Any = SimpleNamespace(
            image=SimpleNamespace(topics={TOPIC: topic}),
            replicas=SimpleNamespace(get=lambda _, __: self.partition),
            clock=SimpleNamespace(monotonic_ms=self._look),
            loop=loop,
        )
        self.shards: LedShards[FakeShard] = LedShards(
            broker, TOPIC, "offsets.topic.num.partitions", self._load, self.started.append
        )

    def _look(self) -> float:
        self._now_ms += self._tick_ms
        return self._now_ms

    def _load(self, partition: Any) -> Loading[FakeShard]:
        for _ in range(partition.steps):
            yield
        if partition.fails:
            raise StorageError("the disk is gone")
        return FakeShard(partition, partition.leader_epoch)

    def turn(self) -> None:
        turns, self.turns = self.turns, []
        for action in turns:
            action()

    def change(self, *, deleted: bool = False) -> None:
        """Tell the shards that the image changed."""
        topic = SimpleNamespace(name=TOPIC)
        partitions = [] if deleted else [SimpleNamespace(topic=topic, partition_id=0)]
        delta: Any = SimpleNamespace(topics_deleted=[topic] if deleted else [], partitions=partitions)
        self.shards.apply(delta)


def test_a_short_log_is_loaded_at_once() -> None:
    world = World(FakePartition(), tick_ms=0)
    world.shards.follow_all()
    assert [shard.leader_epoch for shard in world.shards] == [1]
    assert world.started == list(world.shards)
    assert not world.turns


def test_a_long_log_is_loaded_in_slices_and_clients_are_told_to_come_back() -> None:
    world = World(FakePartition(steps=5), tick_ms=15)  # a look at the clock takes 15 ms, a slice 20
    world.shards.follow_all()
    seen = 0
    while world.turns:
        assert world.shards.get(0) is None
        assert world.shards.why_missing(0) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert world.shards.indexes == [0]
        world.turn()
        seen += 1
    assert seen >= 3
    assert world.shards.get(0) is world.started[0]


def test_who_loses_leadership_while_loading_never_becomes_active() -> None:
    partition = FakePartition(steps=5)
    world = World(partition, tick_ms=15)
    world.shards.follow_all()
    partition.is_leader = False
    world.change()
    assert world.shards.why_missing(0) is ErrorCode.NOT_COORDINATOR
    while world.turns:
        world.turn()
    assert not world.started


def test_a_new_epoch_means_a_new_shard() -> None:
    partition = FakePartition()
    world = World(partition, tick_ms=0)
    world.shards.follow_all()
    world.change()
    assert len(world.started) == 1, "nothing changed"
    partition.leader_epoch = 2
    world.change()
    first, second = world.started
    assert (first.dropped, second.dropped, second.leader_epoch) == (ErrorCode.NOT_COORDINATOR, None, 2)


@pytest.mark.parametrize("recreated", [False, True])
def test_a_deleted_topic_takes_its_shards_along(recreated: bool) -> None:
    world = World(FakePartition(), tick_ms=0)
    world.shards.follow_all()
    world.partition = FakePartition() if recreated else None
    world.change(deleted=True)
    assert world.started[0].dropped is ErrorCode.NOT_COORDINATOR
    assert len(world.shards) == (1 if recreated else 0)


def test_a_log_that_cannot_be_read_is_not_served(caplog: pytest.LogCaptureFixture) -> None:
    world = World(FakePartition(fails=True), tick_ms=0)
    world.shards.follow_all()
    assert world.shards.why_missing(0) is ErrorCode.NOT_COORDINATOR
    assert "the disk is gone" in caplog.text


def test_nothing_is_loaded_after_the_end() -> None:
    world = World(FakePartition(steps=5), tick_ms=15)
    world.shards.follow_all()
    world.shards.stop()
    while world.turns:
        world.turn()
    world.change()
    assert not world.started


class _Leadership:
    """A partition as `when_committed` sees it."""

    key = ("topic id", 0)

    def __init__(self) -> None:
        self.is_leader, self.generation = True, 1
        self.log = SimpleNamespace(high_watermark=10)


def _wait(partition: _Leadership, answers: list[bool]) -> Purgatory:
    purgatory = Purgatory("produce", TimingWheel(start_ms=0))
    broker: Any = SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: 0.0), produce_purgatory=purgatory)
    leadership: Any = partition
    when_committed(broker, leadership, 12, 30_000, answers.append)
    return purgatory


def test_committed_is_what_this_leadership_sees_committed() -> None:
    partition, answers = _Leadership(), list[bool]()
    purgatory = _wait(partition, answers)
    partition.log.high_watermark = 11
    purgatory.check_and_complete(partition.key)
    assert answers == []
    partition.log.high_watermark = 12
    purgatory.check_and_complete(partition.key)
    assert answers == [True]


@pytest.mark.parametrize("leads_again", [False, True])
def test_offsets_that_another_leader_fills_do_not_count(leads_again: bool) -> None:
    """Another leader wrote something else there, and the high watermark rose over it: a marker was lost this way."""
    partition, answers = _Leadership(), list[bool]()
    purgatory = _wait(partition, answers)
    partition.is_leader, partition.generation = leads_again, 2 + leads_again
    partition.log.high_watermark = 400
    purgatory.check_and_complete(partition.key)
    assert answers == [False]
    assert len(purgatory) == 0
