"""All logs of a node: several dirs, failed ones, placement, housekeeping, moves (S8, S10)."""

import errno
import threading
from dataclasses import replace

import pytest

from moldau.log import FlushJob, LogConfig, LogManager, ManagerSettings, MoveJob, PartitionLog
from moldau.log.checkpoints import MetaProperties, read_offsets, write_meta_properties
from moldau.log.cleaner.offset_map import ENTRY_BYTES
from moldau.log.dirs.folders import FolderName, marked_folder_name, parse_folder
from moldau.log.dirs.log_dir import WITHOUT_GAPS
from moldau.log.errors import DirLocked, LogError, StorageError
from moldau.log.open_segments import OpenSegments
from moldau.seams.randomness import SeededRandom
from tests.log.helpers import ManualClock, batch, read_records, values
from tests.support.sim_disk import SimDisk

DIRS = ["/a", "/b", "/c"]
TOPIC_ID = bytes(range(16))


class Node:
    """A manager over a simulated disk that can be restarted."""

    def __init__(self, config: LogConfig | None = None, settings: ManagerSettings | None = None) -> None:
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.config = config or LogConfig(segment_bytes=500, index_interval_bytes=100)
        self.settings = settings or ManagerSettings(removal_check_interval_ms=10)
        self.offline: list[tuple[str, list[tuple[str, int]]]] = []
        self.topic_ids: dict[str, bytes] = {}
        self.manager = self.start()

    def start(self) -> LogManager:
        self.manager = LogManager(
            DIRS,
            disk=self.disk,
            clock=self.clock,
            random=SeededRandom(1),
            settings=self.settings,
            config_for=lambda topic: self.config,
            topic_id_of=self.topic_ids.get,
            on_dir_offline=lambda path, partitions, error: self.offline.append((path, partitions)),
            open_segments=OpenSegments(32),
        )
        self.report = self.manager.open()
        return self.manager

    def log(self, number: int, log_dir: str | None = None) -> PartitionLog:
        return self.manager.get_or_create("t", number, topic_id=TOPIC_ID, log_dir=log_dir)

    def tick(self, advance_ms: int = 0) -> int:
        self.clock.advance(advance_ms)
        jobs = self.manager.tick()
        for job in jobs:
            job.run()
            job.finish()
        return len(jobs)


@pytest.fixture
def node() -> Node:
    return Node()


def fill(log: PartitionLog, count: int = 30) -> None:
    for number in range(count):
        log.append_as_leader(batch([(b"%d" % (number % 5), b"%d" % number)], log.context.clock.wall_ms()), 1)
    log.update_high_watermark(log.log_end_offset)


def test_new_logs_go_where_there_are_fewest(node: Node) -> None:
    for number in range(7):
        node.log(number)
    assert sorted(len(log_dir.logs) for log_dir in node.manager.dirs.values()) == [2, 2, 3]
    assert node.log(9, "/b").log_dir == "/b"


def test_a_clean_restart_reads_no_records(node: Node) -> None:
    for number in range(6):
        fill(node.log(number), 10 + number)
    node.log(0).delete_records_before(4)
    node.log(1).update_high_watermark(3)
    node.manager.close(broker_epoch=12)
    assert node.disk.exists("/a/.kafka_cleanshutdown")
    manager = node.start()
    assert (node.report.logs, node.report.recovered) == (6, 0)
    assert not node.disk.exists("/a/.kafka_cleanshutdown")
    assert manager.dirs["/a"].broker_epoch == 12
    assert [manager.logs[("t", n)].log_end_offset for n in range(6)] == [10, 11, 12, 13, 14, 15]
    assert manager.logs[("t", 0)].log_start_offset == 4
    assert manager.logs[("t", 1)].high_watermark == 3
    assert manager.logs[("t", 5)].topic_id == TOPIC_ID
    assert len(values(manager.logs[("t", 5)])) == 15


def test_many_logs_are_closed_with_one_flush_of_the_volume_and_survive_a_power_loss(node: Node) -> None:
    for number in range(80):
        fill(node.log(number, "/a"), 3)
    node.manager.close(broker_epoch=12)
    for seed in range(5):
        crashed = Node()
        crashed.disk = node.disk.crash(seed)
        crashed.start()
        assert (crashed.report.logs, crashed.report.recovered) == (80, 0)
        assert all(len(values(log)) == 3 for log in crashed.manager.logs.values())


def test_an_unclean_restart_recovers_in_parallel(node: Node) -> None:
    for number in range(12):
        fill(node.log(number))
    node.disk = node.disk.survived_process()
    node.start()
    assert (node.report.logs, node.report.recovered) == (12, 12)
    for number in range(12):
        assert len(values(node.log(number))) == 30
        fill(node.log(number), 3)  # recovered by another thread, and now the loop's


def test_a_damaged_checkpoint_means_an_unclean_start(node: Node) -> None:
    fill(node.log(0, "/a"))
    node.manager.close()
    node.disk.write_file_atomically("/a/recovery-point-offset-checkpoint", b"damaged")
    node.start()
    assert node.report.recovered == 1
    assert len(values(node.log(0))) == 30


def test_a_dir_in_use_is_refused(node: Node) -> None:
    first = node.manager
    with pytest.raises(DirLocked):
        node.start()
    first.close()
    node.start()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failed_disk_takes_only_its_partitions_offline(node: Node, code: int) -> None:
    """S10."""
    for number in range(6):
        fill(node.log(number))
        node.log(number).flush()
    victim = node.log(0)
    path = victim.log_dir
    gone = sorted(node.manager.dirs[path].logs)
    node.disk.fail(path + "/", code, "append")
    with pytest.raises(StorageError):
        victim.append_as_leader(batch([b"x"]), 1)
    assert node.offline == [(path, gone)]
    for number in range(6):
        if ("t", number) in gone:
            with pytest.raises(StorageError):
                node.manager.get_or_create("t", number)
        else:
            fill(node.log(number))
    assert all(log.is_offline for log in node.manager.dirs[path].logs.values())
    node.tick(400_000)  # housekeeping goes on for the others
    assert node.log(50).log_dir != path
    node.manager.close()
    node.disk.heal()
    node.start()
    assert all(len(values(node.log(number))) >= 30 for number in range(6))
    assert not node.disk.exists(f"{path}/.kafka_cleanshutdown")


def test_a_dir_that_cannot_be_read_at_start(node: Node) -> None:
    for number in range(6):
        fill(node.log(number))
    node.manager.close()
    node.disk.fail("/b", errno.EIO)
    node.start()
    assert list(node.report.offline_dirs) == ["/b"]
    assert node.report.logs == 4
    for path in DIRS:
        node.disk.fail(path, errno.EIO)
    node.disk.locks.clear()
    with pytest.raises(StorageError):
        node.start()


def test_a_dir_that_vanished_is_not_made_again(node: Node) -> None:
    for number in range(6):
        fill(node.log(number))
    for path in DIRS:
        write_meta_properties(node.disk, path, MetaProperties("c", 1))
    node.manager.close()
    node.disk.remove_tree("/b")
    node.start()
    assert "the folder is gone" in str(node.report.offline_dirs["/b"])
    assert not node.disk.exists("/b")
    node.disk.remove_tree("/a")  # while it runs
    with pytest.raises(StorageError):
        node.manager.get_or_create("t", 50, log_dir="/a")
    assert not node.disk.exists("/a")


def test_a_dir_that_vanished_is_described_as_unreadable_before_anybody_noticed(node: Node) -> None:
    node.disk.unmount("/b", leaves_folder=False)
    infos = {info.path: info for info in node.manager.describe_dirs()}
    assert isinstance(infos["/b"].error, FileNotFoundError)
    assert infos["/a"].error is None
    assert infos["/a"].total_bytes > 0


def test_a_new_log_whose_dir_turns_out_broken_is_made_in_another(node: Node) -> None:
    node.log(0, "/b")
    node.log(1, "/c")
    node.disk.fail("/a/", errno.EIO)
    assert node.log(2).log_dir in ("/b", "/c")
    assert [path for path, _ in node.offline] == ["/a"]
    for path in ("/b/", "/c/"):
        node.disk.fail(path, errno.EIO)
    with pytest.raises(StorageError, match="no log dir is online"):
        node.log(3)


def test_a_topic_made_again_does_not_wait_for_the_dir_of_its_namesake(node: Node) -> None:
    """A16: while the dir is away the new one lies in another; when it is back, the old one is a stray, however long."""
    old_id, new_id = b"o" * 16, b"n" * 16
    fill(node.manager.get_or_create("t", 0, topic_id=old_id, log_dir="/a"))
    node.manager.dir_failed("/a", OSError(errno.EIO, "pulled out"))
    with pytest.raises(StorageError):
        node.manager.get_or_create("t", 0, topic_id=old_id)
    new = node.manager.get_or_create("t", 0, topic_id=new_id)
    assert new.log_dir != "/a"
    new.append_as_leader(batch([b"x"]), 1)
    node.manager.close()
    node.topic_ids["t"] = new_id
    node.start()
    assert [value for _, value in values(node.manager.logs["t", 0])] == [b"x"]
    assert [name for name in node.disk.list_dir("/a") if name.endswith("-stray")]


def test_of_two_logs_of_a_partition_the_one_of_the_newer_epoch_counts(node: Node) -> None:
    """The longer one, in a dir that came back, ends with what was truncated since."""
    stale = node.manager.get_or_create("t", 0, topic_id=TOPIC_ID, log_dir="/a")
    for _ in range(5):
        stale.append_as_leader(batch([b"stale"]), 1)
    node.manager.close()
    node.manager.logs.clear()
    node.disk.rename("/a/t-0", "/a/t-7")
    node.start()
    fresh = node.manager.get_or_create("t", 0, topic_id=TOPIC_ID, log_dir="/b")
    fresh.append_as_leader(batch([b"fresh"]), 2)
    node.manager.close()
    node.disk.rename("/a/t-7", "/a/t-0")
    node.start()
    assert [value for _, value in values(node.manager.logs["t", 0])] == [b"fresh"]


def test_deleting_a_partition(node: Node) -> None:
    fill(node.log(0, "/a"))
    node.manager.delete("t", 0)
    assert node.manager.get("t", 0) is None
    assert any(name.endswith("-delete") for name in node.disk.list_dir("/a"))
    fresh = node.manager.get_or_create("t", 0, topic_id=bytes(reversed(TOPIC_ID)), log_dir="/a")
    assert fresh.log_end_offset == 0
    node.tick(60_000)
    node.tick(60_000)
    assert not any(name.endswith("-delete") for name in node.disk.list_dir("/a"))
    with pytest.raises(LogError):
        node.manager.get_or_create("t", 0, topic_id=TOPIC_ID)  # another topic of the same name


def test_half_deleted_partitions_are_removed_at_start(node: Node) -> None:
    fill(node.log(0, "/a"))
    node.manager.delete("t", 0)
    node.disk = node.disk.survived_process()
    node.start()
    assert node.report.logs == 0
    node.tick(10)
    node.tick(10)
    assert [name for name in node.disk.list_dir("/a") if "t-0" in name] == []


def test_checkpoints_are_written_from_time_to_time(node: Node) -> None:
    log = node.log(0, "/a")
    fill(log)
    node.tick()
    log.flush()
    log.delete_records_before(7)
    node.tick(60_000)
    assert read_offsets(node.disk, "/a/recovery-point-offset-checkpoint") == {
        ("t", 0): log.recovery_point,
        WITHOUT_GAPS: 0,
    }
    assert read_offsets(node.disk, "/a/replication-offset-checkpoint") == {("t", 0): 30}
    assert read_offsets(node.disk, "/a/log-start-offset-checkpoint") == {("t", 0): 7}
    assert log.recovery_point == 30


def test_truncation_lowers_the_checkpoint_first(node: Node) -> None:
    logs = [node.log(number, "/a") for number in range(3)]
    for log in logs:
        fill(log)
        log.flush()
    node.tick()
    node.tick(60_000)
    logs[0].truncate_to(5)
    assert read_offsets(node.disk, "/a/recovery-point-offset-checkpoint")[("t", 0)] == 5
    before = node.disk.changes
    node.manager.truncate({("t", 1): 6, ("t", 2): 8})
    points = read_offsets(node.disk, "/a/recovery-point-offset-checkpoint")
    assert points == {WITHOUT_GAPS: 0, ("t", 0): 5, ("t", 1): 6, ("t", 2): 8}
    assert [log.log_end_offset for log in logs] == [5, 6, 8]
    assert node.disk.changes > before


def test_retention_and_removal_run_from_the_tick() -> None:
    node = Node(LogConfig(segment_bytes=500, retention_ms=1000))
    log = node.log(0, "/a")
    fill(log)
    node.tick()
    node.tick(400_000)
    assert log.log_start_offset == 30
    assert any(name.endswith(".deleted") for name in node.disk.list_dir(log.folder))
    node.tick(60_000)
    assert not any(name.endswith(".deleted") for name in node.disk.list_dir(log.folder))


def test_cleaning_runs_from_the_tick_and_remembers_how_far_it_got() -> None:
    config = LogConfig(segment_bytes=500, cleanup_policy=frozenset({"compact"}))
    node = Node(config)
    logs = [node.log(number, "/a") for number in range(3)]
    for log in logs:
        fill(log, 60)
    node.tick()
    for _ in range(4):
        node.tick(15_000)
    assert all(log.size_bytes < 1500 for log in logs)
    checkpoint = read_offsets(node.disk, "/a/cleaner-offset-checkpoint")
    assert checkpoint == {("t", number): logs[number].active_segment.base_offset for number in range(3)}
    node.manager.close()
    node.start()
    assert node.manager.dirs["/a"].cleaned_offsets == checkpoint
    assert node.tick(0) == 0
    assert not [job for job in [node.tick(15_000)] if job > 20]


def test_new_cleaner_settings_count_at_once() -> None:
    node = Node(LogConfig(segment_bytes=500, cleanup_policy=frozenset({"compact"})))
    for number in range(3):
        fill(node.log(number, "/a"), 60)
    cleaning = node.manager.cleaning
    node.manager.settings = replace(node.manager.settings, cleaner_backoff_ms=10**9)
    node.tick()
    node.tick(60_000)
    settings = replace(node.manager.settings, cleaner_threads=0)
    node.manager.settings = settings
    assert cleaning.jobs() == []
    node.manager.settings = replace(settings, cleaner_threads=2, cleaner_dedupe_buffer_bytes=6 * ENTRY_BYTES)
    first, second = cleaning.jobs()
    assert cleaning.jobs() == []
    first.run()
    first.finish()
    assert first.clean.end_offset == 3  # as far as half of the buffer reaches
    node.manager.settings = replace(settings, cleaner_threads=1)
    assert cleaning.jobs() == []
    second.run()
    second.finish()
    node.manager.settings = replace(settings, cleaner_threads=1, cleaner_backoff_ms=15_000)
    node.tick(0)  # the last look was longer ago than that
    assert max(node.manager.dirs["/a"].cleaned_offsets.values()) > 50


def test_an_uncleanable_log_is_left_alone() -> None:
    node = Node(LogConfig(segment_bytes=500, cleanup_policy=frozenset({"compact"})))
    log = node.log(0, "/a")
    fill(log, 60)
    node.disk.open(log.segments[1].path(".log")).write_at(100, b"\xff\xff\xff")
    node.tick()
    node.tick(15_000)
    assert "segment" in log.uncleanable.lower()
    assert not log.is_offline
    node.tick(15_000)
    fill(log, 3)


# -- flush


def test_flush_messages_asks_until_a_flush_answers_all() -> None:
    """S8: however many appends ask, one flush answers them all."""
    node = Node(LogConfig(flush_messages=3))
    log = node.log(0, "/a")
    asked = []
    for number in range(10):
        log.append_as_leader(batch([b"%d" % number]), 1)
        asked.append(log.needs_flush)
    assert asked == [False, False] + [True] * 8
    job = FlushJob(log)
    log.append_as_leader(batch([b"later"]), 1)
    job.run_and_finish()
    assert log.flushed_offset == 10  # what came after the job began is not counted
    assert not log.needs_flush


def test_flush_ms_flushes_by_the_clock() -> None:
    node = Node(LogConfig(flush_ms=1000), ManagerSettings(flush_scheduler_interval_ms=100))
    log = node.log(0, "/a")
    fill(log, 3)
    node.tick()
    node.tick(500)
    assert log.flushed_offset == 0
    node.tick(600)
    assert log.flushed_offset == 3


def test_flushed_means_it_survives_a_power_loss(node: Node) -> None:
    log = node.log(0, "/a")
    fill(log)
    log.flush()
    for seed in range(30):
        crashed = Node()
        crashed.disk = node.disk.crash(seed)
        crashed.start()
        assert len(values(crashed.manager.logs[("t", 0)])) == 30


def test_a_flush_that_was_overtaken_by_a_truncation_counts_for_nothing(node: Node) -> None:
    log = node.log(0, "/a")
    fill(log)
    job = FlushJob(log)
    log.truncate_to(10)
    fill(log, 15)
    job.run()
    job.finish()
    assert log.flushed_offset == 0


def test_flushing_runs_beside_appends(node: Node) -> None:
    log = node.log(0, "/a")
    fill(log)
    job = FlushJob(log)
    thread = threading.Thread(target=job.run)
    thread.start()
    fill(log, 50)
    thread.join()
    job.finish()
    assert log.flushed_offset == 30


# -- moves


def test_a_partition_moves_while_it_is_written(node: Node) -> None:
    log = node.log(0, "/a")
    for number in range(40):
        log.append_as_leader(batch([b"%d" % number], producer=(7, 0, number)), number // 10)
    log.update_high_watermark(35)
    log.delete_records_before(3)
    job = MoveJob(node.manager, log, "/b")
    thread = threading.Thread(target=job.run)
    thread.start()
    written = 40
    while thread.is_alive() or written < 60:
        log.append_as_leader(batch([b"%d" % written], producer=(7, 0, written)), 4)
        written += 1
    thread.join()
    assert job.finish()
    assert job.error is None
    moved = node.manager.logs[("t", 0)]
    assert moved is not log
    assert moved.folder == "/b/t-0"
    assert [value for _, value in values(moved)] == [b"%d" % number for number in range(3, written)]
    assert (moved.log_start_offset, moved.high_watermark) == (3, 35)
    assert moved.epochs.entries == log.epochs.entries
    assert moved.topic_id == TOPIC_ID
    end_offset = moved.log_end_offset
    moved.append_as_leader(batch([b"x"], producer=(7, 0, written - 1)), 4)
    assert moved.log_end_offset == end_offset, "it is a repeated batch"
    moved.append_as_leader(batch([b"next"], producer=(7, 0, written)), 4)
    node.manager.close()
    node.start()
    assert node.manager.logs[("t", 0)].folder == "/b/t-0"
    assert len(values(node.manager.logs[("t", 0)])) == written - 3 + 1
    assert not node.disk.exists("/a/t-0")


def test_a_move_to_a_full_disk_leaves_the_log_alone(node: Node) -> None:
    log = node.log(0, "/a")
    fill(log)
    job = MoveJob(node.manager, log, "/b")
    node.disk.fail("/b/", errno.ENOSPC, "append")
    job.run()
    assert job.finish()
    assert job.error is not None
    fill(log, 5)
    assert node.manager.logs[("t", 0)] is log


def test_power_loss_during_a_move_loses_nothing() -> None:
    node = Node()
    log = node.log(0, "/a")
    fill(log)
    log.flush()
    for path in DIRS:
        node.disk.flush_dir(path)
    crashes: list[SimDisk] = []
    node.disk.before_change = lambda what: crashes.append(node.disk.crash(len(crashes)))
    job = MoveJob(node.manager, log, "/b")
    job.run()
    assert job.finish()
    moved = node.manager.logs[("t", 0)]
    moved.append_as_leader(batch([b"after the move"]), 1)
    moved.flush()
    final = len(crashes)
    node.manager.close()
    expected = read_records(moved)[:30]
    for number, disk in enumerate(crashes):
        crashed = Node()
        crashed.disk = disk
        crashed.start()
        found = read_records(crashed.manager.logs[("t", 0)])
        assert found[:30] == expected
        assert number < final or len(found) == 31


# -- names


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("t-0", FolderName("t", 0, "")),
        ("a-b.c-12", FolderName("a-b.c", 12, "")),
        ("__cluster_metadata-0", FolderName("__cluster_metadata", 0, "")),
        ("t-3.0123456789abcdef0123456789abcdef-delete", FolderName("t", 3, "-delete")),
        ("t-3.0123456789abcdef0123456789abcdef-future", FolderName("t", 3, "-future")),
        ("t-3.0123456789abcdef0123456789abcdef-stray", FolderName("t", 3, "-stray")),
        ("lost+found", None),
        ("topic", None),
        ("t--1x", None),
    ],
)
def test_folder_names(name: str, parsed: FolderName | None) -> None:
    assert parse_folder(name) == parsed


def test_marked_names_fit_the_file_system() -> None:
    name = marked_folder_name("t" * 249, 100_000, bytes(16), "-delete")
    assert len(name) == 255
    assert parse_folder(name) is not None


def test_logs_opened_on_another_thread_are_there_when_the_job_is_finished(node: Node) -> None:
    fill(node.log(0), 3)
    node.manager.close()
    manager = LogManager(DIRS, disk=node.disk, clock=node.clock, random=SeededRandom(1))
    job = manager.begin_open()
    thread = threading.Thread(target=job.run)
    thread.start()
    thread.join()
    assert not manager.logs
    assert job.finish().logs == 1
    log = manager.logs["t", 0]
    assert log.context is manager.context
    assert log.log_end_offset == 3
