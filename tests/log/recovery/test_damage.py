"""One damaged log, whatever is damaged of it, costs no other log its housekeeping; people are told once."""

import logging
import random
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from moldau.log import AppendOrigin, LogConfig, LogManager, ManagerSettings, PartitionLog
from moldau.log.checkpoints import RECOVERY_POINT
from moldau.log.cleaner.cleaner import CleanJob
from moldau.seams.randomness import SeededRandom
from tests.log.helpers import ManualClock, batch, marker, read_records
from tests.support.sim_disk import SimDisk

COMPACTED = LogConfig(
    segment_bytes=500,
    index_interval_bytes=100,
    cleanup_policy=frozenset({"compact"}),
    min_cleanable_dirty_ratio=0.01,
    min_compaction_lag_ms=1,
    max_compaction_lag_ms=1000,
)
RETAINED = LogConfig(segment_bytes=500, index_interval_bytes=100, retention_ms=5000)
SETTINGS = ManagerSettings(
    cleaner_backoff_ms=1,
    retention_check_interval_ms=1,
    removal_check_interval_ms=1,
    flush_scheduler_interval_ms=1,
    cleaner_threads=1,
)


class Node:
    def __init__(self, config: LogConfig) -> None:
        self.disk, self.clock = SimDisk(), ManualClock()
        self.config = config
        self.manager = self._start()

    def _start(self) -> LogManager:
        manager = LogManager(
            ["/a"],
            disk=self.disk,
            clock=self.clock,
            random=SeededRandom(1),
            settings=SETTINGS,
            config_for=lambda topic: self.config,
        )
        manager.open()
        return manager

    def restart(self) -> None:
        self.manager.close()
        self.manager = self._start()

    def log(self, topic: str) -> PartitionLog:
        log = self.manager.get_or_create(topic, 0)
        for number in range(40):
            log.append_as_leader(batch([(b"%d" % (number % 7), b"%d" % number)], self.clock.now_ms), 1)
        sequence = log.producers.producers[5].last_sequence + 1 if 5 in log.producers.producers else 0
        log.append_as_leader(batch([(b"0", b"aborted")], producer=(5, 0, sequence), transactional=True), 1)
        log.append_as_leader(marker(5, 0, commit=False), 1, AppendOrigin.COORDINATOR)
        log.roll()
        log.append_as_leader(batch([(b"0", b"last")], self.clock.now_ms), 1)
        log.update_high_watermark(log.log_end_offset)
        return log

    def ticks(self, count: int = 6, advance_ms: int = 2000) -> None:
        for _ in range(count):
            self.clock.advance(advance_ms)
            for job in self.manager.tick():
                job.run()
                job.finish()

    def damage(self, path: str, position: int, data: bytes) -> None:
        self.disk.open(path).write_at(position, data)


def error_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def is_compacted(log: PartitionLog) -> bool:
    below = [record.key for record in read_records(log) if record.offset < log.active_segment.base_offset]
    return len(below) == len(set(below))


@pytest.mark.parametrize("what", ["magic", "records", "lengths"])
def test_a_damaged_log_is_left_alone_and_the_others_are_compacted(what: str, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(COMPACTED)
    bad, good = node.log("bad"), node.log("good")
    path = bad.segments[0].path(".log")
    if what == "magic":
        node.damage(path, 16, b"\x7f")
    elif what == "records":
        node.damage(path, 80, b"\xff\xff\xff")
    else:
        node.damage(path, 8, b"\xff\xff\xff\xff")
    node.restart()
    bad, good = node.manager.logs["bad", 0], node.manager.logs["good", 0]
    for log in (bad, good):
        log.update_high_watermark(log.log_end_offset)
    node.ticks()
    assert is_compacted(good)
    assert bad.uncleanable
    assert not bad.is_offline
    lines = error_lines(caplog)
    assert len(lines) == 1  # however often it is tried
    assert "bad-0" in lines[0]
    assert "replica" in lines[0]


@pytest.mark.parametrize("position", [0, 2, 10, 18, 26])
def test_an_index_of_aborted_transactions_that_makes_no_sense_is_rebuilt(position: int) -> None:
    """After a clean shutdown, too: readers of what is committed would get an error for ever."""
    node = Node(COMPACTED)
    log = node.log("bad")
    told = log.aborted_transactions(0, log.log_end_offset)
    assert len(told) == 1
    path = next(segment.path(".txnindex") for segment in log.segments if segment.txn_index.exists)
    node.manager.close()
    node.disk.damage(path, position, 0x80)
    node.manager = node._start()
    log = node.manager.logs["bad", 0]
    assert log.aborted_transactions(0, log.log_end_offset) == told


def test_whatever_a_cleaning_dies_of_the_next_one_begins(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With one cleaner thread, a job that never ended would keep all others from beginning."""
    node = Node(COMPACTED)
    bad, good = node.log("bad"), node.log("good")
    build_map = CleanJob._build_map

    def stumble(job: CleanJob) -> None:
        if job.log is bad:
            raise ZeroDivisionError("nobody thought of this")
        build_map(job)

    monkeypatch.setattr(CleanJob, "_build_map", stumble)
    node.ticks()
    assert is_compacted(good)
    assert "nobody thought of this" in bad.uncleanable
    assert "bad-0" in "".join(error_lines(caplog))


def test_retention_goes_on_beside_and_in_a_damaged_log(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(replace(RETAINED, flush_ms=1))
    bad, good = node.log("bad"), node.log("good")
    node.damage(bad.segments[0].path(".log"), 16, b"\x7f")
    node.damage(bad.segments[0].path(".timeindex"), 0, b"\x7f")
    node.restart()
    node.clock.advance(10_000)
    bad, good = node.log("bad"), node.log("good")
    node.disk.now_ms = node.clock.now_ms
    node.ticks(2, 10)
    assert good.log_start_offset > 0
    assert bad.log_start_offset > 0  # the file's own time tells
    assert error_lines(caplog) == []


def test_a_log_whose_retention_fails_is_named_once_and_costs_no_other_its_flush(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(replace(RETAINED, flush_ms=1))
    bad, good = node.log("bad"), node.log("good")
    retain = PartitionLog.apply_retention

    def stumble(log: PartitionLog) -> int:
        if log is bad:
            raise ZeroDivisionError("nobody thought of this")
        return retain(log)

    monkeypatch.setattr(PartitionLog, "apply_retention", stumble)
    node.ticks(2, 10_000)
    assert good.flushed_offset == good.log_end_offset
    assert good.log_start_offset > 0
    node.ticks(5)
    lines = error_lines(caplog)
    assert len(lines) == 1
    assert "bad-0" in lines[0]
    assert "nobody thought of this" in lines[0]


def test_a_chore_that_fails_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(replace(COMPACTED, flush_ms=1))
    log = node.log("t")

    def stumble() -> list[object]:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr(node.manager, "_removal_jobs", stumble)
    node.ticks(5)
    assert log.flushed_offset == log.log_end_offset
    assert is_compacted(log)
    assert len(error_lines(caplog)) == 1


def test_an_index_that_leads_beyond_the_file_is_rebuilt() -> None:
    node = Node(RETAINED)
    log = node.log("t")
    before = read_records(log)
    segment = log.segments[0]
    count = segment.offset_index.file.count
    node.restart()
    entries = b"".join(number.to_bytes(4, "big") + (10_000).to_bytes(4, "big") for number in range(1, count + 1))
    node.disk.write_file_atomically(segment.path(".index"), entries)
    log = node.manager.logs["t", 0]
    for offset in range(segment.base_offset + count + 1):
        assert read_records(log, offset)[0] == next(record for record in before if record.offset >= offset)


@pytest.mark.parametrize("config", [COMPACTED, RETAINED], ids=["compacted", "retained"])
@pytest.mark.parametrize("seed", range(25))
def test_bits_that_turn_anywhere_in_one_log_cost_no_other_its_care(seed: int, config: LogConfig) -> None:
    chance = random.Random(seed)
    node = Node(config)
    bad, good = node.log("bad"), node.log("good")
    size = good.size_bytes
    node.restart()
    files = [name for name in node.disk.list_dir("/a/bad-0") if PurePosixPath(name).suffix != ".metadata"]
    for _ in range(chance.randint(1, 6)):
        path = f"/a/bad-0/{chance.choice(files)}"
        if node.disk.file_size(path):
            position = chance.randrange(node.disk.file_size(path))
            node.damage(path, position, bytes([chance.randrange(256)]))
    bad, good = node.manager.logs["bad", 0], node.manager.logs["good", 0]
    for log in (bad, good):
        log.update_high_watermark(log.log_end_offset)
    node.ticks()
    assert not good.is_offline
    if config.compact:
        assert is_compacted(good)
    else:
        assert good.size_bytes < size / 2


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("seed", range(25))
def test_bits_that_turn_anywhere_in_one_log_keep_no_node_from_starting(seed: int, is_clean: bool) -> None:
    chance = random.Random(seed)
    node = Node(COMPACTED if seed % 2 else RETAINED)
    node.log("bad")
    expected = read_records(node.log("good"))
    if is_clean:
        node.manager.close()
    else:
        node.manager.dirs["/a"].write_checkpoint(RECOVERY_POINT)
        node.manager.abandon()
    files = node.disk.list_dir("/a/bad-0")
    for _ in range(chance.randint(1, 6)):
        path = f"/a/bad-0/{chance.choice(files)}"
        if node.disk.file_size(path):
            position = chance.randrange(node.disk.file_size(path))
            node.damage(path, position, bytes([chance.randrange(256)]))
    node.manager = node._start()
    assert read_records(node.manager.logs["good", 0]) == expected


def test_an_offset_that_cannot_be_in_its_segment_keeps_no_node_from_starting() -> None:
    """Offsets are not covered by the CRC; and the indexes of this segment must be written anew."""
    node = Node(RETAINED)
    log = node.log("bad")
    log.flush()
    node.manager.dirs["/a"].write_checkpoint(RECOVERY_POINT)
    node.manager.abandon()
    node.damage(log.segments[1].path(".log"), 0, b"\x11")
    node.disk.remove(log.segments[1].path(".index"))
    node.manager = node._start()
    log = node.manager.logs["bad", 0]
    assert log.log_end_offset == 43
    assert log.read(0, 10).region is not None
