"""Compaction leaves gaps between offsets, and a crash takes the end of a file: recovery tells the one from the other,
and whatever moment a crash chooses, a segment is there as it was or as it was cleaned."""

from collections.abc import Callable, Sequence

import pytest

from moldau.log import LogConfig, LogManager, ManagerSettings, PartitionLog
from moldau.log.checkpoints import RECOVERY_POINT, read_offsets, write_offsets
from moldau.log.dirs.log_dir import WITHOUT_GAPS
from moldau.log.jobs import Job
from moldau.records import Record
from moldau.seams.randomness import SeededRandom
from tests.log.helpers import ManualClock, batch, read_records
from tests.support.sim_disk import SimDisk

CONFIG = LogConfig(
    segment_bytes=500, index_interval_bytes=100, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.01
)
CHECKPOINT = f"/a/{RECOVERY_POINT}"


class Node:
    def __init__(self, disk: SimDisk | None = None, clock: ManualClock | None = None) -> None:
        self.disk, self.clock = disk if disk is not None else SimDisk(), clock or ManualClock()
        self.manager = LogManager(
            ["/a"],
            disk=self.disk,
            clock=self.clock,
            random=SeededRandom(1),
            settings=ManagerSettings(cleaner_threads=2, recovery_threads_per_data_dir=1),
            config_for=lambda topic: CONFIG,
        )
        self.manager.open()

    def log(self, topic: str = "t") -> PartitionLog:
        return self.manager.get_or_create(topic, 0)

    def fill(self, topic: str = "t", count: int = 60) -> PartitionLog:
        """Of most keys the newest value comes late, so that segments lose their ends."""
        log = self.log(topic)
        for number in range(count):
            key = b"once %d" % number if number % 6 < 2 else b"%d" % (number % 7)
            log.append_as_leader(batch([(key, b"%d" % number)]), 1)
        log.update_high_watermark(log.log_end_offset)
        return log

    def checkpoint(self) -> None:
        self.manager.dirs["/a"].write_checkpoint(RECOVERY_POINT)

    def clean(self) -> None:
        run(self.manager.cleaning.jobs())


def run(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.run()
    for job in jobs:
        job.finish()


def newest(log: PartitionLog) -> dict[bytes | None, Record]:
    return {record.key: record for record in read_records(log)}


def killed(node: Node) -> Node:
    return Node(node.disk.survived_process(), node.clock)


def junctions(log: PartitionLog) -> list[int]:
    """How many offsets are missing between segments that follow each other."""
    return [log.end_offset_of(segment) - segment.next_offset() for segment in log.segments[:-1]]


def test_a_cleaned_segment_ends_where_the_next_begins() -> None:
    node = Node()
    log = node.fill()
    count = len(read_records(log))
    for _ in range(3):
        node.clean()
        assert set(junctions(log)) == {0}
        node.fill(count=20)
    assert len(read_records(log)) < count


def test_two_cleaners_and_a_killed_node() -> None:
    node = Node()
    logs = [node.fill("t"), node.fill("u")]
    expected = [newest(log) for log in logs]
    jobs = node.manager.cleaning.jobs()
    assert len(jobs) == 2
    run(jobs)
    again = killed(node)
    assert [newest(again.log("t")), newest(again.log("u"))] == expected


def test_a_checkpoint_during_a_cleaning_and_a_killed_node() -> None:
    node = Node()
    log = node.fill()
    expected = newest(log)
    (job,) = node.manager.cleaning.jobs()
    node.checkpoint()
    job.run()
    node.checkpoint()
    job.finish()
    assert newest(killed(node).log()) == expected


@pytest.mark.parametrize("damage", [None, b"", b"damaged", b"0\n1\nt 0 5\n", b"0\n0\n"])
def test_a_killed_node_whose_recovery_points_are_missing_or_damaged(damage: bytes | None) -> None:
    node = Node()
    log = node.fill()
    node.clean()
    expected = read_records(log)
    node.checkpoint()
    if damage is None:
        node.disk.remove(CHECKPOINT)
    else:
        node.disk.write_file_atomically(CHECKPOINT, damage)
    again = killed(node)
    assert read_records(again.log()) == expected
    assert again.log().log_end_offset == log.log_end_offset


def foreign(node: Node) -> list[Record]:
    """Make of a log what Apache Kafka's cleaner leaves behind: segments whose last batches are gone."""
    log = node.fill()
    log.flush()
    node.checkpoint()
    for segment in log.segments[1:-1]:
        place = segment.find(log.end_offset_of(segment) - 2)
        assert place is not None
        segment.truncate_to(place.base_offset)
        segment.seal()
    assert set(junctions(log)[1:]) == {2}
    return read_records(log)


def write_as_kafka(node: Node, recovery_point: int) -> None:
    write_offsets(node.disk, CHECKPOINT, {("t", 0): recovery_point})


def test_the_folder_of_a_killed_apache_kafka_is_opened_in_full() -> None:
    node = Node()
    expected = foreign(node)
    write_as_kafka(node, 0)
    again = killed(node)
    log = again.log()
    assert read_records(log) == expected
    assert log.recovery_point == log.log_end_offset  # flushed: from now on a gap above it is a loss
    again.checkpoint()
    log.append_as_leader(batch([(b"new", b"new")]), 1)
    for seed in range(10):
        survived = Node(again.disk.crash(seed), node.clock)
        assert read_records(survived.log())[: len(expected)] == expected
    again.clean()
    log.update_high_watermark(log.log_end_offset)
    assert newest(killed(again).log()) == newest(log)


def test_a_crash_before_the_first_checkpoint_of_a_foreign_folder() -> None:
    node = Node()
    expected = foreign(node)
    write_as_kafka(node, 7)
    again = killed(node)
    for seed in range(10):
        assert read_records(Node(again.disk.crash(seed), node.clock).log()) == expected
    assert read_records(killed(again).log()) == expected


def test_a_foreign_folder_brought_into_a_dir_of_ours_is_opened_in_full() -> None:
    """The checkpoint of the dir knows nothing of it."""
    node = Node()
    expected = foreign(node)
    other = Node()
    other.fill("u")
    other.manager.close()
    other.disk.make_dirs("/a/t-0")
    for name in node.disk.list_dir("/a/t-0"):
        other.disk.write_file_atomically(f"/a/t-0/{name}", node.disk.read_file(f"/a/t-0/{name}"))
    assert read_records(killed(other).log()) == expected


def test_our_own_checkpoint_says_that_a_gap_is_a_loss() -> None:
    node = Node()
    log = node.fill()
    node.checkpoint()
    assert WITHOUT_GAPS in read_offsets(node.disk, CHECKPOINT)
    foreign_end = log.segments[2].find(log.end_offset_of(log.segments[2]) - 1)
    assert foreign_end is not None
    node.disk.open(log.segments[2].path(".log")).truncate(foreign_end.position)
    again = killed(node).log()
    assert again.log_end_offset == log.end_offset_of(log.segments[2]) - 1
    assert [r.offset for r in read_records(again)] == list(range(again.log_end_offset))


def test_a_gap_too_large_for_one_segment_is_no_loss() -> None:
    """A follower of a compacted leader begins a segment there."""
    node = Node()
    log = node.log()
    log.append_as_follower(batch([(b"a", b"1")], base_offset=0))
    log.append_as_follower(batch([(b"b", b"2")], base_offset=1 << 33))
    node.checkpoint()
    assert len(log.segments) == 2
    assert [r.key for r in read_records(killed(node).log())] == [b"a", b"b"]


def every_state(node: Node, action: Callable[[], None], *, power: bool) -> list[tuple[str, SimDisk]]:
    """The disk as a crash would leave it before every change that an action makes, and after the last."""
    states: list[tuple[str, SimDisk]] = []

    def take(description: str) -> None:
        if power:
            states.extend((description, node.disk.crash(seed)) for seed in (1, 2))
        else:
            states.append((description, node.disk.survived_process()))

    node.disk.before_change = take
    action()
    take("the end")
    node.disk.before_change = lambda description: None
    return states


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power loss"])
def test_a_crash_at_any_step_of_a_cleaning_leaves_the_old_or_the_new(power: bool) -> None:
    node = Node()
    log = node.fill()
    log.flush()
    node.checkpoint()
    before = read_records(log)
    expected = newest(log)
    states = every_state(node, node.clean, power=power)
    after = read_records(log)
    assert len(after) < len(before)
    assert len(states) > 40
    wanted = {record.offset for record in after}
    for description, disk in states:
        again = Node(disk, node.clock)
        records = read_records(again.log())
        assert {r.key: r for r in records} == expected, description
        assert again.log().log_end_offset == log.log_end_offset
        assert set(records) <= set(before)
        assert wanted <= {record.offset for record in records}
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets))
        left = [name for name in disk.list_dir("/a/t-0") if name.endswith((".swap", ".cleaned", ".deleted"))]
        assert not left


def test_a_crash_at_any_step_of_finishing_a_swap() -> None:
    """Recovery itself is interrupted, and begins again."""
    node = Node()
    log = node.fill()
    node.checkpoint()
    expected = newest(log)
    (job,) = node.manager.cleaning.jobs()
    job.run()
    states = every_state(node, job.finish, power=False)
    interrupted = 0
    for _, disk in states[::3]:
        crashed: list[SimDisk] = []
        disk.before_change = lambda description, disk=disk, crashed=crashed: crashed.append(disk.survived_process())
        Node(disk, node.clock)
        disk.before_change = None
        for again in crashed[::2]:
            interrupted += 1
            assert newest(Node(again, node.clock).log()) == expected
    assert interrupted > 30


@pytest.mark.parametrize("recovery_points", [b"damaged", b"0\n1\nt 0 13\n"])
def test_epochs_whose_first_batches_were_compacted_keep_their_start(recovery_points: bytes) -> None:
    """Followers truncate by them: an epoch must not seem to reach further than it did."""
    node = Node()
    log = node.log()
    for epoch, keys in ((1, [b"a", b"b"]), (2, [b"c", b"d"]), (4, [b"a", b"b"]), (5, [b"c", b"d"])):
        for number in range(12):
            log.append_as_leader(batch([(keys[number % 2], b"%d %d" % (epoch, number))]), epoch)
    log.roll()
    log.append_as_leader(batch([(b"e", b"")]), 6)
    log.update_high_watermark(log.log_end_offset)
    epochs = log.epochs.entries
    assert epochs == [(1, 0), (2, 12), (4, 24), (5, 36), (6, 48)]
    node.clean()
    assert len(read_records(log)) == 5
    node.disk.write_file_atomically(CHECKPOINT, recovery_points)
    assert killed(node).log().epochs.entries == epochs
