"""On the machine's own disk: kill -9 of a writing process, a bound on open files, many partitions."""

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.log import LogConfig, LogContext, LogManager, open_log
from moldau.log.cleaner.cleanable import log_to_clean
from moldau.log.cleaner.cleaner import CleanJob
from moldau.log.open_segments import OpenSegments
from moldau.seams import RealDisk, SystemClock, SystemRandom
from moldau.seams.disk import SPARE_DESCRIPTORS
from tests.log.helpers import batch, read_records, values

# Appends numbered records to a plain and a compacted log, reporting each after its flush.
WRITER = """
import sys
from moldau.log import LogConfig, LogManager, ManagerSettings
from moldau.records import build_batch
from moldau.seams import RealDisk, SystemClock, SystemRandom

compact = LogConfig(segment_bytes=4000, index_interval_bytes=200, cleanup_policy=frozenset({"compact"}),
                    min_cleanable_dirty_ratio=0.01)
plain = LogConfig(segment_bytes=4000, index_interval_bytes=200)
settings = ManagerSettings(cleaner_backoff_ms=5, flush_offset_checkpoint_interval_ms=5, removal_check_interval_ms=5)
clock = SystemClock()
manager = LogManager([sys.argv[1]], disk=RealDisk(), clock=clock, random=SystemRandom(), settings=settings,
                     config_for=lambda topic: compact if topic == "compact" else plain)
manager.open()
logs = [manager.get_or_create("plain", 0), manager.get_or_create("compact", 0)]
number = max([0] + [log.log_end_offset for log in logs])
print("ready", flush=True)
while True:
    for log in logs:
        batch = build_batch([(0, clock.wall_ms(), b"%d" % (log.log_end_offset % 9), b"%d" % log.log_end_offset, ())])
        log.append_as_leader(batch, 0)
        log.update_high_watermark(log.log_end_offset)
    for job in manager.tick():
        job.run()
        job.finish()
    print(logs[0].log_end_offset, logs[1].log_end_offset, flush=True)
"""


def manager_of(path: Path) -> LogManager:
    manager = LogManager([str(path)], disk=RealDisk(), clock=SystemClock(), random=SystemRandom())
    manager.open()
    return manager


def test_kill_9_many_times(tmp_path: Path) -> None:
    """S9: whatever the process had reported is there after each kill, exact and in order."""
    chance = random.Random(11)
    acknowledged = (0, 0)
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(chance.randint(50, 400)):
            plain, compact = map(int, process.stdout.readline().split())
            acknowledged = plain, compact
        process.send_signal(signal.SIGKILL)
        rest = [line for line in process.stdout.read().splitlines() if len(line.split()) == 2]
        process.stdout.close()
        process.wait()
        assert rest == rest  # whatever was in the pipe may be incomplete: not counted
        manager = manager_of(tmp_path)
        plain_log, compact_log = manager.logs[("plain", 0)], manager.logs[("compact", 0)]
        assert plain_log.log_end_offset >= acknowledged[0]
        assert compact_log.log_end_offset >= acknowledged[1]
        assert values(plain_log) == [(o, b"%d" % o) for o in range(plain_log.log_end_offset)]
        kept = read_records(compact_log)
        assert all(record.value == b"%d" % record.offset for record in kept)
        newest = {b"%d" % (o % 9): o for o in range(compact_log.log_end_offset)}
        assert {record.key: record.offset for record in kept} == newest
        if chance.random() < 0.5:
            manager.close()  # sometimes the next start is clean, sometimes not
        else:
            for log_dir in manager.dirs.values():
                log_dir.unlock()


def open_descriptors(below: Path) -> int:
    """Of files below a folder: brokers of other tests live in this process, too."""
    count = 0
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += os.readlink(f"/proc/self/fd/{each}").startswith(str(below))
    return count


def test_open_files_are_bounded(tmp_path: Path) -> None:
    """However many partitions are used, only so many segments are open; all of them work."""
    context = LogContext(open_segments=OpenSegments(10))
    config = LogConfig(segment_bytes=10_000, index_interval_bytes=100)
    logs = [open_log(context, f"{tmp_path}/t-{number}", "t", number, config) for number in range(100)]
    before = open_descriptors(tmp_path)
    for turn in range(5):
        for log in logs:
            for _ in range(3):
                log.append_as_leader(batch([b"%d" % turn] * 5), 0)
        assert len(context.open_segments) <= 10
        assert open_descriptors(tmp_path) <= before + 10 * 3
    for log in logs:
        assert len(values(log)) == 75
        log.close()
    assert open_descriptors(tmp_path) <= before


def test_a_region_keeps_its_descriptor_when_the_segment_is_closed(tmp_path: Path) -> None:
    context = LogContext(open_segments=OpenSegments(1))
    config = LogConfig(segment_bytes=300)
    logs = [open_log(context, f"{tmp_path}/t-{number}", "t", number, config) for number in range(3)]
    for log in logs:
        log.append_as_leader(batch([b"value"]), 0)
    region = logs[0].read(0, 1000).region
    assert region is not None
    fd = region.file.fileno()
    assert fd is not None
    values(logs[1])
    values(logs[2])
    assert len(context.open_segments) == 1
    os.fstat(fd)
    assert len(region.read()) == region.length
    del region
    with pytest.raises(OSError):
        os.fstat(fd)


def test_compaction_on_real_files(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=20_000, cleanup_policy=frozenset({"compact"}))
    log = open_log(LogContext(), f"{tmp_path}/t-0", "t", 0, config)
    for number in range(3000):
        log.append_as_leader(batch([(b"%d" % (number % 50), b"%d" % number)]), 0)
    log.update_high_watermark(3000)
    before = {record.key: record for record in read_records(log)}
    assert CleanJob(log_to_clean(log, None, 0)).run_and_finish()
    assert {record.key: record for record in read_records(log)} == before
    assert log.size_bytes < 40_000
    log.close()
    again = open_log(LogContext(), f"{tmp_path}/t-0", "t", 0, config, recovery_point=3000, clean=True)
    assert {record.key: record for record in read_records(again)} == before


def test_many_partitions_open_quickly_after_a_clean_shutdown(tmp_path: Path) -> None:
    """S12, small: the benchmark has the 10,000. Here only that no records and no indexes are read."""
    manager = manager_of(tmp_path)
    for number in range(200):
        log = manager.get_or_create("t", number, topic_id=bytes(15) + b"\1")
        log.append_as_leader(batch([b"x"]), 0)
    manager.close()
    before = open_descriptors(tmp_path)
    again = manager_of(tmp_path)
    assert len(again.logs) == 200
    assert open_descriptors(tmp_path) <= before + 2 + SPARE_DESCRIPTORS
    assert all(log.log_end_offset == 1 for log in again.logs.values())
    assert values(again.logs[("t", 77)]) == [(0, b"x")]
    again.close()
