"""Jobs off the loop belong to one incarnation of a log: whatever the loop does to the log at any step of theirs, they
bring nothing back, remove nothing of the next incarnation, and take no dir offline."""

import errno
import functools
from collections.abc import Callable

import pytest

from moldau.log import FlushJob, LogConfig, LogManager, ManagerSettings, MoveJob, PartitionLog
from moldau.log.dirs.cleaning import ScheduledClean
from moldau.log.jobs import Job
from moldau.seams.randomness import SeededRandom
from tests.log.helpers import ManualClock, batch, read_records, values
from tests.support.sim_disk import SimDisk

CONFIG = LogConfig(
    segment_bytes=500, index_interval_bytes=100, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.01
)
NEW = [(offset, b"new %d" % offset) for offset in range(10)]


class SteppedDisk(SimDisk):
    """Calls `before_step` before whatever it is asked to do in a partition's folder, reading included."""

    def __init__(self) -> None:
        super().__init__()
        self.before_step: Callable[[], None] = lambda: None

    def check(self, path: str, what: str) -> None:
        if "/t-0" in path:  # checkpoints are written under a lock
            self.before_step()
        super().check(path, what)


class Node:
    def __init__(self, disk: SimDisk | None = None, clock: ManualClock | None = None) -> None:
        self.disk = disk if disk is not None else SteppedDisk()
        self.clock = clock or ManualClock()
        self.offline: list[str] = []
        self.manager = LogManager(
            ["/a", "/b"],
            disk=self.disk,
            clock=self.clock,
            random=SeededRandom(1),
            settings=ManagerSettings(cleaner_backoff_ms=0, removal_check_interval_ms=0),
            config_for=lambda topic: CONFIG,
            on_dir_offline=lambda path, partitions, error: self.offline.append(f"{path}: {error!r}"),
        )
        self.manager.open()

    def log(self, topic_id: int = 1) -> PartitionLog:
        return self.manager.get_or_create("t", 0, topic_id=bytes([topic_id]) * 16, log_dir="/a")

    def fill(self, log: PartitionLog, count: int = 25) -> None:
        for number in range(count):
            log.append_as_leader(batch([(b"%d" % (number % 7), b"old %d" % number)]), 1)
        log.update_high_watermark(log.log_end_offset)

    def clean_job(self) -> ScheduledClean:
        jobs = self.manager.cleaning.jobs()
        assert len(jobs) == 1
        return jobs[0]

    def delete_and_make_again(self) -> None:
        self.manager.delete("t", 0)
        log = self.log(2)
        for _, value in NEW:
            log.append_as_leader(batch([(b"k" + value, value)]), 1)
        log.update_high_watermark(10)

    def restarted(self) -> "Node":
        """After the process died."""
        return Node(self.disk.survived_process(), self.clock)


def prepared() -> Node:
    node = Node()
    node.fill(node.log())
    return node


def steps_of(make: Callable[[Node], Job]) -> int:
    """How many steps a job on a fresh node has, apart from its `finish`."""
    node = prepared()
    job = make(node)
    count = [0]

    def step() -> None:
        count[0] += 1

    assert isinstance(node.disk, SteppedDisk)
    node.disk.before_step = step
    job.run()
    return count[0]


def interleave(node: Node, at_step: int, intervene: Callable[[], None]) -> None:
    """Let the loop do something just before a step of the job that is run next."""
    left = [at_step]
    assert isinstance(node.disk, SteppedDisk)
    disk = node.disk

    def step() -> None:
        left[0] -= 1
        if left[0] == 0:
            disk.before_step = lambda: None
            intervene()

    disk.before_step = step


def intruders(node: Node) -> list[str]:
    return [name for name in node.disk.list_dir("/a/t-0") if "cleaned" in name or "swap" in name]


def test_a_cleaning_that_ends_after_its_topic_was_made_again_touches_nothing() -> None:
    node = prepared()
    job = node.clean_job()
    job.run()
    node.delete_and_make_again()
    job.finish()
    assert values(node.log(2)) == NEW
    again = node.restarted()
    assert values(again.log(2)) == NEW
    assert node.offline == []


def test_a_topic_is_deleted_and_made_again_at_any_step_of_its_cleaning() -> None:
    steps = steps_of(Node.clean_job)
    assert steps > 30
    for step in range(1, steps + 1):
        node = prepared()
        job = node.clean_job()
        interleave(node, step, node.delete_and_make_again)
        job.run()
        killed = node.restarted()  # the process may also die before the job is finished
        assert values(killed.log(2)) == NEW
        job.finish()
        assert node.offline == [], f"at step {step}"
        assert values(node.log(2)) == NEW
        assert intruders(node) == []
        again = node.restarted()
        assert values(again.log(2)) == NEW
        assert again.log(2).log_end_offset == 10


def test_a_deleted_topic_takes_no_dir_offline_at_any_step_of_its_cleaning() -> None:
    for step in range(1, steps_of(Node.clean_job) + 1):
        node = prepared()
        job = node.clean_job()
        interleave(node, step, functools.partial(node.manager.delete, "t", 0))
        job.run()
        job.finish()
        assert node.offline == [], f"at step {step}"
        assert node.manager.dirs["/a"].is_online


@pytest.mark.parametrize("offset", [0, 13])
def test_truncated_records_do_not_come_back_at_any_step_of_a_cleaning(offset: int) -> None:
    steps = steps_of(Node.clean_job)
    for step in range(1, steps + 2):
        node = prepared()
        job = node.clean_job()
        expected: list[tuple[int, bytes | None]] = []

        def cut(node: Node = node, expected: list[tuple[int, bytes | None]] = expected) -> None:
            log = node.log()
            node.manager.truncate({("t", 0): offset})
            for number in range(5):
                log.append_as_leader(batch([(b"%d" % number, b"other %d" % number)]), 2)
            log.update_high_watermark(log.log_end_offset)
            expected += values(log)

        if step <= steps:
            interleave(node, step, cut)
        job.run()
        if step > steps:
            cut()
        job.finish()
        assert node.offline == [], f"at step {step}"
        assert values(node.log()) == expected
        assert intruders(node) == []
        assert not node.log().uncleanable
        assert values(node.restarted().log()) == expected
        for after in node.manager.cleaning.jobs():  # it was aborted, and may begin again
            after.run()
            after.finish()
        assert {r.key: r for r in read_records(node.log())}.keys() >= {b"0", b"1", b"2", b"3", b"4"}


def test_a_log_is_cleaned_by_one_job_at_a_time_whatever_its_incarnation() -> None:
    node = prepared()
    job = node.clean_job()
    node.manager.delete("t", 0)
    node.fill(node.log(2))
    assert node.manager.cleaning.jobs() == []  # both would write the same files
    job.run()
    job.finish()
    again = node.clean_job()
    again.run()
    again.finish()
    assert len(read_records(node.log(2))) < 25


def test_a_cleaning_stopped_for_a_move_is_not_put_in_place() -> None:
    node = Node()
    log = node.log()
    node.fill(log)
    before = read_records(log)
    job = node.clean_job()
    job.run()
    move = MoveJob(node.manager, log, "/b")
    job.finish()
    assert read_records(log) == before
    move.run()
    assert move.finish()
    assert move.error is None
    assert read_records(node.manager.logs["t", 0]) == before


def test_a_log_that_was_damaged_is_cleaned_again_once_it_was_deleted_and_made_again() -> None:
    node = Node()
    log = node.log()
    node.fill(log)
    node.disk.open(log.segments[1].path(".log")).write_at(100, b"\xff\xff\xff")
    job = node.clean_job()
    job.run()
    job.finish()
    assert log.uncleanable
    assert node.manager.cleaning.jobs() == []
    node.manager.delete("t", 0)
    node.fill(node.log(2))
    assert len(node.manager.cleaning.jobs()) == 1


def test_a_flush_counts_for_the_incarnation_it_was_made_for() -> None:
    steps = steps_of(lambda node: FlushJob(node.log()))
    for step in range(1, steps + 1):
        node = prepared()
        old = node.log()
        job = FlushJob(old)
        interleave(node, step, node.delete_and_make_again)
        job.run()
        job.finish()
        assert node.offline == []
        assert old.flushed_offset == 0
        assert node.log(2).flushed_offset == 0


def test_a_cleaning_that_finds_no_descriptor_is_tried_again() -> None:
    """Whether it was to begin, or had begun."""
    node = prepared()
    log = node.manager.logs["t", 0]
    before = read_records(log)
    job = node.clean_job()
    node.disk.fail("/a/t-0/00000000000000000000.log.cleaned", errno.EMFILE)
    job.run()
    node.disk.heal()
    job.finish()
    node.manager.cleaning._failed(log, OSError(errno.EMFILE, "Too many open files"))
    assert (node.offline, log.is_offline, log.uncleanable) == ([], False, "")
    assert read_records(log) == before
    assert node.clean_job().clean.run_and_finish()


def test_a_log_whose_folder_vanished_is_not_flushed_and_its_dir_goes_offline() -> None:
    """Nobody deleted it: that is the disk's fault, or somebody's."""
    node = Node()
    log = node.log()
    node.fill(log)
    job = FlushJob(log)
    node.disk.remove_tree("/a/t-0")
    job.run()
    with pytest.raises(Exception, match="failed"):
        job.finish()
    assert log.flushed_offset == 0
    assert len(node.offline) == 1


def test_a_move_of_a_deleted_log_ends_and_leaves_the_next_one_alone() -> None:
    node = Node()
    log = node.log()
    node.fill(log)
    move = MoveJob(node.manager, log, "/b")
    move.run()
    node.delete_and_make_again()
    assert move.finish()
    assert move.error is not None
    assert values(node.log(2)) == NEW
    assert node.log(2).log_dir == "/a"
    assert values(node.restarted().log(2)) == NEW


def test_reading_never_makes_a_file() -> None:
    """A job that comes too late must not leave an empty segment in the folder of the next incarnation."""
    node = Node()
    log = node.log()
    node.fill(log)
    segment = log.segments[1]
    log.release()
    node.disk.remove(segment.path(".log"))
    with pytest.raises(FileNotFoundError):
        _ = segment.file
    assert not node.disk.exists(segment.path(".log"))
