"""A2: a topic that is made again under a name that was used before inherits nothing, wherever a crash comes.

The former one had everything that leaves marks in checkpoints: a raised log start, a recovery point and a high
watermark far beyond what the new one has, and a cleaned offset.
"""

import pytest

from moldau.log import LogConfig, LogManager, ManagerSettings, PartitionLog
from moldau.log.checkpoints import read_offsets
from moldau.log.dirs.log_dir import CHECKPOINTS
from moldau.log.jobs import Job
from moldau.seams.randomness import SeededRandom
from tests.log.helpers import ManualClock, batch, values
from tests.support.sim_disk import SimDisk

DIRS = ["/a", "/b"]
KEY = ("t", 0)
OLD, NEW = b"\1" * 16, b"\2" * 16
CONFIG = LogConfig(
    segment_bytes=500,
    index_interval_bytes=100,
    cleanup_policy=frozenset({"compact", "delete"}),
    min_cleanable_dirty_ratio=0.01,
)
SETTINGS = ManagerSettings(
    flush_offset_checkpoint_interval_ms=20,
    flush_start_offset_checkpoint_interval_ms=20,
    high_watermark_checkpoint_interval_ms=20,
    cleaner_backoff_ms=20,
    recovery_threads_per_data_dir=1,
)


class World:
    """A manager, and what of the new topic must be found after a crash from now on."""

    def __init__(self) -> None:
        self.disk, self.clock = SimDisk(), ManualClock()
        self.manager = self.start(self.disk)
        self.written = self.flushed = 0
        self.crashes: list[tuple[str, SimDisk, int]] = []

    def start(self, disk: SimDisk) -> LogManager:
        manager = LogManager(
            DIRS,
            disk=disk,
            clock=self.clock,
            random=SeededRandom(1),
            settings=SETTINGS,
            config_for=lambda topic: CONFIG,
        )
        manager.open()
        return manager

    def restart(self) -> None:
        self.disk = self.disk.survived_process()
        self.disk.before_change = self.take_crash
        self.manager = self.start(self.disk)

    def take_crash(self, what: str) -> None:
        """Both kinds: the process died, and what it wrote is there; the machine lost power."""
        self.crashes.append((f"the process died before: {what}", self.disk.survived_process(), self.written))
        self.crashes.append((f"power was lost before: {what}", self.disk.crash(len(self.crashes)), self.flushed))

    def jobs(self) -> list[Job]:
        self.clock.advance(30)
        return self.manager.tick()

    def tick(self) -> None:
        for job in self.jobs():
            job.run()
            job.finish()

    def former(self) -> PartitionLog:
        log = self.manager.get_or_create("t", 0, topic_id=OLD, log_dir="/a")
        for number in range(60):
            log.append_as_leader(batch([(b"%d" % (number % 5), b"old")], self.clock.now_ms), 1)
        log.update_high_watermark(60)
        log.delete_records_before(40)
        log.flush()
        for _ in range(4):
            self.tick()
        for name in CHECKPOINTS:
            assert read_offsets(self.disk, f"/a/{name}")[KEY] >= 40
        self.disk.before_change = self.take_crash
        return log

    def make_again(self, log_dir: str = "/a") -> PartitionLog:
        log = self.manager.get_or_create("t", 0, topic_id=NEW, log_dir=log_dir)
        for number in range(10):
            log.append_as_leader(batch([(b"k%d" % number, b"new")], self.clock.now_ms), 1)
            self.written = number + 1
            if number == 4:
                log.flush()
                self.flushed = 5
        log.flush()
        self.flushed = 10
        return log

    def check(self) -> None:
        assert len(self.crashes) > 40
        for what, disk, expected in self.crashes:
            log = self.start(disk).get(*KEY)
            if log is None or log.topic_id != NEW:
                assert expected == 0, what
                continue
            found = values(log)
            assert found == [(number, b"new") for number in range(len(found))], what
            assert len(found) >= expected, what
            assert log.log_start_offset == 0, what
            assert log.high_watermark == 0, what


@pytest.fixture
def world() -> World:
    return World()


def test_made_again_at_once(world: World) -> None:
    world.former()
    world.manager.delete("t", 0)
    world.make_again()
    world.check()


def test_made_again_after_a_restart(world: World) -> None:
    world.former()
    world.manager.delete("t", 0)
    world.restart()
    world.make_again()
    world.check()


def test_made_again_after_the_former_one_was_set_aside(world: World) -> None:
    """The node was down when the topic was deleted."""
    world.former()
    world.restart()
    world.manager.set_aside("t", 0)
    world.make_again()
    world.check()


def test_made_again_elsewhere(world: World) -> None:
    """What the first dir still says is said of nobody."""
    world.former()
    world.manager.delete("t", 0)
    world.make_again("/b")
    world.check()


@pytest.mark.parametrize("when", ["before the deletion", "before it is made again", "after"])
def test_checkpoints_that_were_on_their_way(world: World, when: str) -> None:
    """Jobs that took their values while the former one lived write them late, or not at all."""
    log = world.former()
    log.update_high_watermark(60)
    late = [*world.jobs(), *[world.manager.dirs["/a"].checkpoint_job(name) for name in CHECKPOINTS]]

    def run() -> None:
        for job in late:
            job.run()

    if when == "before the deletion":
        run()
    world.manager.delete("t", 0)
    if when == "before it is made again":
        run()
    world.make_again()
    if when == "after":
        run()
    world.take_crash("the end")
    world.check()


def test_names_that_are_not_used_again_cost_nothing(world: World) -> None:
    world.former()
    changes: list[str] = []
    world.disk.before_change = changes.append
    world.manager.delete("t", 0)
    world.manager.get_or_create("other", 0, topic_id=NEW, log_dir="/a")
    assert not [change for change in changes if "checkpoint" in change and "leader-epoch" not in change]


def test_what_a_deleted_topic_left_is_gone_with_the_next_checkpoint(world: World) -> None:
    world.former()
    world.manager.delete("t", 0)
    world.tick()
    world.tick()
    for name in CHECKPOINTS[:3]:
        assert KEY not in read_offsets(world.disk, f"/a/{name}")
