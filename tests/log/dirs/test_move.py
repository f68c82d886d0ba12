"""A6: whatever is done to a log while it moves to another dir, the log that arrives is the same, also after a crash."""

import errno
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from moldau.log import AppendOrigin, LogConfig, MoveJob, PartitionLog
from moldau.log.checkpoints import LOG_START_OFFSET, read_offsets
from moldau.log.errors import LogError
from tests.log.dirs.test_log_manager import TOPIC_ID, Node, fill
from tests.log.helpers import batch, marker, read_records, values
from tests.support.sim_disk import SimDisk

KEY = ("t", 0)


@pytest.fixture
def node() -> Node:
    return Node()


def finish(job: MoveJob) -> tuple[object, ...]:
    """Run the move to its end; what the log was just before."""
    for _ in range(100):
        job.run()
        before = state(job.log)
        if job.finish():
            return before
    raise AssertionError("the move does not come to an end")


def state(log: PartitionLog) -> tuple[object, ...]:
    """All that a reader, a follower, a producer or the next start can tell of a log."""
    return (
        log.log_start_offset,
        log.high_watermark,
        log.last_stable_offset,
        log.log_end_offset,
        log.epochs.entries,
        sorted(log.producers.active()),
        log.aborted_transactions(log.log_start_offset, log.log_end_offset),
        read_records(log),
        log.topic_id,
    )


def during_the_copy(node: Node, act: Callable[[], object]) -> None:
    """Once, when the copy is about to write its second piece."""
    writes = 0

    def on_change(what: str) -> None:
        nonlocal writes
        writes += what.startswith("append /b/") and what.endswith(".log")
        if writes == 2:
            node.disk.before_change = None
            act()

    node.disk.before_change = on_change


def test_a_move_carries_what_was_deleted_meanwhile(node: Node) -> None:
    log = node.log(0, "/a")
    fill(log, 100)
    job = MoveJob(node.manager, log, "/b")
    job.run()
    log.delete_records_before(60)
    assert job.finish()
    moved = node.manager.logs[KEY]
    assert moved is not log
    assert moved.log_start_offset == 60
    assert read_offsets(node.disk, f"/b/{LOG_START_OFFSET}") == {KEY: 60}
    node.disk = node.disk.survived_process()
    node.start()
    assert node.manager.logs[KEY].log_start_offset == 60


@pytest.mark.parametrize("offset", [0, 3, 17, 60, 99])
def test_a_move_carries_a_truncation(node: Node, offset: int) -> None:
    log = node.log(0, "/a")
    fill(log, 100)
    log.delete_records_before(10)
    job = MoveJob(node.manager, log, "/b")
    with pytest.raises(LogError):
        MoveJob(node.manager, log, "/c")
    during_the_copy(node, lambda: log.truncate_to(offset))
    job.run()
    fill(log, 30)
    before = finish(job)
    assert job.error is None
    moved = node.manager.logs[KEY]
    assert moved.log_dir == "/b"
    assert state(moved) == before


def test_a_move_carries_a_log_that_starts_over(node: Node) -> None:
    """A follower so far behind that its leader has nothing it could go on with."""
    log = node.log(0, "/a")
    fill(log, 100)
    job = MoveJob(node.manager, log, "/b")
    job.run()
    log.truncate_fully_and_start_at(5000)
    fill(log, 10)
    before = finish(job)
    assert state(node.manager.logs[KEY]) == before
    assert node.manager.logs[KEY].log_start_offset == 5000


def test_a_move_carries_settings_epochs_and_verifications(node: Node) -> None:
    log = node.log(0, "/a")
    fill(log, 40)
    job = MoveJob(node.manager, log, "/b")
    job.run()
    log.config = config = replace(node.config, segment_bytes=12_345, transaction_partition_verification_enable=True)
    log.assign_epoch(9)
    guard = log.start_verification(7, 0, 0)
    assert job.finish()
    moved = node.manager.logs[KEY]
    assert moved.config == config
    assert moved.epochs.entries == [(1, 0), (9, 40)]
    moved.append_as_leader(batch([b"x"], producer=(7, 0, 0), transactional=True), 9, verification_guard=guard)


def test_a_move_carries_producers_whose_batches_were_compacted_away() -> None:
    node = Node(LogConfig(segment_bytes=300, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.01))
    node.settings = replace(node.settings, cleaner_backoff_ms=10)
    node.manager.settings = node.settings
    log = node.log(0, "/a")
    log.append_as_leader(batch([(b"key", b"old")], producer=(7, 3, 0)), 1)
    log.append_as_leader(batch([(b"other", b"x")], producer=(7, 3, 1)), 1)
    for number in range(12):
        log.append_as_leader(batch([(b"key", b"%d" % number), (b"other", b"y")], producer=(8, 0, 2 * number)), 1)
    log.update_high_watermark(log.log_end_offset)
    for _ in range(3):
        node.tick(60_000)
    assert log.producers.producers[7].last_sequence == 1
    job = MoveJob(node.manager, log, "/b")
    before = finish(job)
    moved = node.manager.logs[KEY]
    assert state(moved) == before
    # Also where a start after a crash, or a truncation, must find out again.
    end_offset = moved.log_end_offset
    moved.append_as_leader(batch([(b"key", b"more")], producer=(8, 0, 24)), 1)
    moved.truncate_to(end_offset - 3)
    assert moved.producers.producers[7].last_sequence == 1
    node.disk = node.disk.survived_process()
    assert node.start().logs[KEY].producers.producers[7].last_sequence == 1


def test_a_log_that_was_deleted_and_made_again_is_not_replaced_by_the_copy(node: Node) -> None:
    log = node.log(0, "/a")
    fill(log, 40)
    job = MoveJob(node.manager, log, "/b")
    job.run()
    node.manager.delete("t", 0)
    again = node.manager.get_or_create("t", 0, topic_id=bytes(reversed(TOPIC_ID)), log_dir="/a")
    assert job.finish()
    assert job.error is not None
    assert node.manager.logs[KEY] is again
    node.tick(10)
    node.tick(10)
    assert [name for name in node.disk.list_dir("/b") if "t-0" in name] == []


def test_a_damaged_batch_is_not_left_out_of_the_copy(node: Node) -> None:
    log = node.log(0, "/a")
    fill(log, 40)
    first = log.segments[0]
    node.disk.open(first.path(".log")).write_at(70 + 16, b"\xff")  # the magic of the second batch
    job = MoveJob(node.manager, log, "/b")
    job.run()
    assert job.finish()
    assert job.error is not None
    assert node.manager.logs[KEY] is log


def test_a_target_that_fails_in_the_last_step_leaves_the_log_where_it_is(node: Node) -> None:
    log = node.log(0, "/a")
    fill(log, 40)
    job = MoveJob(node.manager, log, "/b")
    job.run()
    node.disk.fail("/b/recovery-point", errno.EIO, "rename")
    assert job.finish()
    assert job.error is not None
    assert node.manager.logs[KEY] is log
    fill(log, 5)
    assert not node.manager.dirs["/b"].is_online


def test_a_source_that_fails_in_the_last_step_is_left_behind(node: Node) -> None:
    log = node.log(0, "/a")
    fill(log, 40)
    job = MoveJob(node.manager, log, "/b")
    job.run()
    node.disk.fail("/a/t-0", errno.EIO, "rename")
    assert job.finish()
    assert job.error is None
    moved = node.manager.logs[KEY]
    assert moved.log_dir == "/b"
    assert not node.manager.dirs["/a"].is_online
    moved.delete_records_before(30)
    node.manager.close()  # which cannot close /a
    node.disk.heal()
    assert {"t-0"} <= set(node.disk.list_dir("/a")) & set(node.disk.list_dir("/b"))
    found = node.start().logs[KEY]
    assert found.log_dir == "/b"
    assert [offset for offset, _ in values(found)] == list(range(30, 40))


def test_nothing_deleted_comes_back_wherever_a_crash_comes(node: Node) -> None:
    """Both dirs' checkpoints: the log start that was on the disk before the swap is there after it, and later."""
    log = node.log(0, "/a")
    fill(log, 100)
    log.flush()
    node.tick()
    job = MoveJob(node.manager, log, "/b")
    job.run()
    log.delete_records_before(60)
    node.tick(60_000)
    crashes: list[tuple[str, SimDisk]] = []

    def take_crash(what: str) -> None:
        crashes.append((f"died before {what}", node.disk.survived_process()))
        crashes.append((f"power lost before {what}", node.disk.crash(len(crashes))))

    node.disk.before_change = take_crash
    assert job.finish()
    moved = node.manager.logs[KEY]
    fill(moved, 5)
    moved.flush()
    node.tick(60_000)
    node.tick(60_000)
    assert len(crashes) > 40
    for what, disk in crashes:
        crashed = Node()
        crashed.disk = disk
        found = crashed.start().logs[KEY]
        assert found.log_start_offset == 60, what
        assert [offset for offset, _ in values(found)][:40] == list(range(60, 100)), what


@pytest.mark.parametrize("seed", range(12))
def test_any_mixture_of_changes_during_a_move(seed: int) -> None:
    chance = random.Random(seed)
    node = Node(LogConfig(segment_bytes=400, index_interval_bytes=100))
    log = node.log(0, "/a")
    fill(log, 40)
    sequences: dict[int, int] = {}
    epoch = 1

    def act() -> None:
        nonlocal epoch
        match chance.randrange(7):
            case 0 | 1 | 2:
                log.append_as_leader(batch([b"%d" % chance.randrange(1000)] * chance.randint(1, 5)), epoch)
            case 3:
                producer = chance.randint(5, 6)
                sequence = sequences.get(producer, 0)
                log.append_as_leader(batch([b"t"], producer=(producer, 0, sequence), transactional=True), epoch)
                sequences[producer] = sequence + 1
                if chance.random() < 0.6:
                    end = marker(producer, 0, commit=chance.random() < 0.5)
                    log.append_as_leader(end, epoch, AppendOrigin.COORDINATOR)
            case 4:
                log.truncate_to(chance.randint(log.high_watermark, log.log_end_offset))
                epoch += 1
                known = log.producers.producers
                for each in list(sequences):
                    sequences[each] = known[each].last_sequence + 1 if each in known else 0
            case 5:
                log.update_high_watermark(chance.randint(log.high_watermark, log.log_end_offset))
            case 6:
                log.delete_records_before(chance.randint(log.log_start_offset, log.high_watermark))

    job = MoveJob(node.manager, log, "/b")
    for _ in range(6):
        is_busy = False

        def on_change(what: str) -> None:
            nonlocal is_busy
            if "/b/" in what and not is_busy and chance.random() < 0.15:
                is_busy = True
                act()
                is_busy = False

        node.disk.before_change = on_change
        job.run()
        node.disk.before_change = None
        for _ in range(chance.randint(0, 3)):
            act()
        before = state(log)
        if job.finish():
            break
    else:
        before = finish(job)
    assert job.error is None
    moved = node.manager.logs[KEY]
    assert moved is not log
    assert state(moved) == before
    moved.append_as_leader(batch([b"after"]), epoch)
    expected = read_records(moved)
    node.manager.close()
    again = node.start().logs[KEY]
    assert again.log_dir == "/b"
    assert read_records(again) == expected
