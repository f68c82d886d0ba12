"""A7: nothing is called durable before everything that makes it so is done, however flushes overlap, fail or end."""

import errno
import random

import pytest

from moldau.log import FlushJob, LogConfig, LogContext, PartitionLog, open_log
from moldau.log.errors import StorageError
from tests.log.helpers import ManualClock, batch, read_records, sim_context, sim_log
from tests.support.sim_disk import SimDisk

CONFIG = LogConfig(segment_bytes=300, index_interval_bytes=50)
SEEDS = range(12)


def append(log: PartitionLog, count: int = 1, epoch: int = 1) -> None:
    for _ in range(count):
        log.append_as_leader(batch([b"%d" % log.log_end_offset]), epoch)


def check_survives(disk: SimDisk, log: PartitionLog) -> None:
    """What the log calls flushed is there after a power loss, with its epochs, whatever else is."""
    for seed in SEEDS:
        context = sim_context(disk.crash(seed))
        found = open_log(context, log.folder, log.topic, log.partition, CONFIG, recovery_point=log.recovery_point)
        offsets = [record.offset for record in read_records(found)]
        assert offsets[: log.flushed_offset] == list(range(log.flushed_offset))
        wanted = [(epoch, start) for epoch, start in log.epochs.entries if start < log.flushed_offset]
        assert found.epochs.entries[: len(wanted)] == wanted


def test_a_second_flush_does_not_rely_on_the_unfinished_first(disk: SimDisk, context: LogContext) -> None:
    log = sim_log(context, CONFIG)
    append(log, 5)
    log.flush()
    log.roll()
    append(log)
    first = FlushJob(log)
    append(log)
    second = FlushJob(log)
    second.run()
    second.finish()
    assert log.flushed_offset == 7
    check_survives(disk, log)  # the new segment's name was on the first one's list
    first.run()
    first.finish()
    check_survives(disk, log)


def test_a_flush_that_never_ran_is_made_good_by_the_next(disk: SimDisk, context: LogContext) -> None:
    """Its job was lost, or could say nothing."""
    log = sim_log(context, CONFIG)
    append(log)
    log.flush()
    append(log, 30)
    FlushJob(log)
    log.flush()
    check_survives(disk, log)


def test_a_name_given_during_a_flush_is_not_taken_for_flushed(disk: SimDisk, context: LogContext) -> None:
    log = sim_log(context, CONFIG)
    append(log)
    job = FlushJob(log)
    job.run()
    log.assign_topic_id(bytes(range(16)))
    job.finish()
    log.flush()
    for seed in SEEDS:
        crashed = open_log(sim_context(disk.crash(seed)), log.folder, "t", 0, CONFIG)
        assert crashed.topic_id == bytes(range(16))


def test_an_epoch_assigned_during_a_flush_is_not_taken_for_flushed(context: LogContext) -> None:
    log = sim_log(context, CONFIG)
    append(log)
    job = FlushJob(log)
    job.run()
    log.assign_epoch(5)
    job.finish()
    assert log.has_unflushed
    log.flush()
    assert not log.has_unflushed


def test_a_folder_that_outlived_its_process_is_not_known_to_be_durable(disk: SimDisk, context: LogContext) -> None:
    """The process died, the machine did not: the folder is there, but nobody ever flushed its name."""
    append(sim_log(context, CONFIG), 5)
    again = sim_log(context, CONFIG)
    assert again.log_end_offset == 5
    append(again)
    changes: list[str] = []
    disk.before_change = changes.append
    again.flush()
    assert {"flush /data", "flush /data/t-0"} <= set(changes)


@pytest.mark.parametrize("what", ["/data/t-0", "/data/t-0/", "/data"])
def test_a_flush_that_failed_reports_nothing(what: str, disk: SimDisk, context: LogContext) -> None:
    log = sim_log(context, CONFIG)
    append(log)
    job = FlushJob(log)
    disk.fail(what, errno.EIO, "flush")
    job.run()
    with pytest.raises(StorageError):
        job.finish()
    assert log.flushed_offset == 0
    assert log.is_offline


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_flushes_appends_rolls_and_cuts(seed: int) -> None:
    chance = random.Random(seed)
    disk = SimDisk()
    log = sim_log(sim_context(disk, ManualClock()), CONFIG)
    begun: list[FlushJob] = []
    ran: list[FlushJob] = []
    for step in range(60):
        match chance.randrange(8):
            case 0 | 1 | 2:
                append(log, chance.randint(1, 4), epoch=1 + step // 10)
            case 3:
                begun.append(FlushJob(log))
            case 4 if begun:
                job = begun.pop(chance.randrange(len(begun)))
                job.run()
                ran.append(job)
            case 5 if ran:
                ran.pop(chance.randrange(len(ran))).finish()
                check_survives(disk, log)
            case 6:
                log.roll()
            case 7 if chance.random() < 0.3:
                log.truncate_to(chance.randint(0, log.log_end_offset))
    log.flush()
    check_survives(disk, log)
