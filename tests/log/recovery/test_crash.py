"""S9: power loss at every boundary of a workload. After each, the log opens, what was flushed is there, and nothing is
doubled, reordered or invented."""

import random
from dataclasses import dataclass, field

import pytest

from moldau.log import AppendOrigin, LogConfig, LogManager, ManagerSettings, PartitionLog
from moldau.seams.randomness import SeededRandom
from tests.log.helpers import START_MS, KeyValue, ManualClock, batch, marker, read_records
from tests.support.sim_disk import SimDisk

DIR = "/data"
CONFIG = LogConfig(
    segment_bytes=700,
    index_interval_bytes=100,
    retention_bytes=3000,
    retention_ms=-1,
    min_cleanable_dirty_ratio=0.01,
    delete_retention_ms=50,
    file_delete_delay_ms=20,
)
COMPACTED = LogConfig(
    segment_bytes=700,
    index_interval_bytes=100,
    cleanup_policy=frozenset({"compact"}),
    min_cleanable_dirty_ratio=0.01,
    delete_retention_ms=50,
    file_delete_delay_ms=20,
)
SETTINGS = ManagerSettings(
    flush_offset_checkpoint_interval_ms=20,
    flush_start_offset_checkpoint_interval_ms=20,
    high_watermark_checkpoint_interval_ms=20,
    retention_check_interval_ms=30,
    removal_check_interval_ms=10,
    cleaner_backoff_ms=25,
    file_delete_delay_ms=10,
    recovery_threads_per_data_dir=1,
)


def config_for(topic: str) -> LogConfig:
    return COMPACTED if topic.startswith("compacted") else CONFIG


def open_manager(disk: SimDisk, clock: ManualClock) -> LogManager:
    manager = LogManager(
        [DIR], disk=disk, clock=clock, random=SeededRandom(1), settings=SETTINGS, config_for=config_for
    )
    manager.open()
    return manager


@dataclass
class Expected:
    """What may and must be found in one log."""

    written: dict[int, set[KeyValue]] = field(default_factory=dict)  # offset -> every record it ever had
    latest: dict[int, KeyValue] = field(default_factory=dict)  # offset -> the record it has now
    flushed: int = 0
    end: int = 0
    aborted: set[int] = field(default_factory=set)

    def copy(self) -> "Expected":
        written = {offset: set(records) for offset, records in self.written.items()}
        return Expected(written, dict(self.latest), self.flushed, self.end, set(self.aborted))


def append(log: PartitionLog, expected: Expected, records: list[KeyValue], clock: ManualClock) -> None:
    for index, record in enumerate(records):
        expected.written.setdefault(log.log_end_offset + index, set()).add(record)
        expected.latest[log.log_end_offset + index] = record
    _, last_offset, _ = log.append_as_leader(batch(records, clock.now_ms), leader_epoch=3)
    expected.end = last_offset + 1
    log.update_high_watermark(log.log_end_offset)


def transaction(log: PartitionLog, expected: Expected, number: int, clock: ManualClock) -> None:
    """Producer 9 writes a record and then aborts or commits."""
    offset = log.log_end_offset
    record = (b"k%d" % (number % 5), b"txn %d" % number)
    sequence = log.producers.producers[9].last_sequence + 1 if 9 in log.producers.producers else 0
    commit = number % 2 == 0
    expected.written.setdefault(offset, set()).add(record)
    if commit:
        expected.latest[offset] = record
    else:
        expected.aborted.add(offset)
    log.append_as_leader(batch([record], clock.now_ms, producer=(9, 0, sequence), transactional=True), 3)
    end = marker(9, 0, commit=commit, timestamp=clock.now_ms)
    log.append_as_leader(end, 3, AppendOrigin.COORDINATOR)
    expected.end = log.log_end_offset
    log.update_high_watermark(log.log_end_offset)


def workload(disk: SimDisk, clock: ManualClock, expected: dict[str, Expected]) -> None:
    chance = random.Random(7)
    manager = open_manager(disk, clock)
    for step in range(44):
        clock.advance(5)
        disk.now_ms = clock.now_ms
        for topic, model in expected.items():
            log = manager.get_or_create(topic, 0, topic_id=b"\1" * 16)
            count = chance.randint(1, 3)
            records: list[KeyValue] = [
                (b"k%d" % chance.randint(0, 7), None if chance.random() < 0.1 else b"%d %d" % (step, i))
                for i in range(count)
            ]
            append(log, model, records, clock)
            if step % 9 == 4:
                transaction(log, model, step // 9, clock)
            if step % 4 == 1:
                log.flush()
                model.flushed = log.flushed_offset
        for job in manager.tick():
            job.run()
            job.finish()
        if step == 30:
            manager.close()
            for model in expected.values():
                model.flushed = model.end
            manager = open_manager(disk, clock)
    manager.close()


def check(log: PartitionLog, expected: Expected, *, compacted: bool) -> None:
    records = read_records(log)
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    for record in records:
        assert (record.key, record.value) in expected.written[record.offset]
    assert expected.flushed <= log.log_end_offset <= max(expected.written, default=-1) + 3
    found = {record.offset: record.value for record in records}
    if compacted:
        newest: dict[bytes | None, int] = {}
        for offset, (key, _) in sorted(expected.latest.items()):
            if offset < log.log_end_offset:
                newest[key] = offset
        for offset in newest.values():
            value = expected.latest[offset][1]
            assert offset in found or value is None, f"the newest value of a key at {offset} is gone"
    else:
        wanted = [o for o in expected.written if log.log_start_offset <= o < log.log_end_offset]
        assert sorted(found) == sorted(wanted)


def check_recovered(disk: SimDisk, clock: ManualClock, expected: dict[str, Expected]) -> None:
    manager = open_manager(disk, clock)
    for topic, model in expected.items():
        log = manager.get(topic, 0)
        if log is None:
            assert model.flushed == 0
            continue
        check(log, model, compacted=topic.startswith("compacted"))
        before = read_records(log)
        first_offset, _, _ = log.append_as_leader(batch([(b"after", b"crash")], clock.now_ms), leader_epoch=4)
        assert first_offset >= model.flushed
        assert [r.offset for r in read_records(log)] == [r.offset for r in before] + [first_offset]
    ends = {key: log.log_end_offset for key, log in manager.logs.items()}
    manager.close()
    again = open_manager(disk, clock)
    assert {key: log.log_end_offset for key, log in again.logs.items()} == ends


@pytest.mark.parametrize("seed", [1, 2])
def test_power_loss_before_every_change_of_the_disk(seed: int) -> None:
    """Both seeds together visit every boundary; what survives is another arbitrary part each time."""
    disk, clock = SimDisk(), ManualClock()
    expected = {"plain": Expected(), "compacted": Expected()}
    crashes: list[tuple[str, SimDisk, dict[str, Expected], int]] = []

    def take_crash(description: str) -> None:
        if disk.changes % 2 != seed % 2:
            return
        state = {topic: model.copy() for topic, model in expected.items()}
        crashes.append((description, disk.crash(seed * 100_000 + disk.changes), state, clock.now_ms))

    disk.before_change = take_crash
    workload(disk, clock, expected)
    assert len(crashes) > 450
    for number, (description, crashed, state, now_ms) in enumerate(crashes):
        try:
            check_recovered(crashed, ManualClock(now_ms), state)
        except Exception as error:
            raise AssertionError(f"crash {number}, before: {description}") from error


def test_a_killed_process_loses_nothing_it_wrote() -> None:
    disk, clock = SimDisk(), ManualClock()
    expected = {"plain": Expected(), "compacted": Expected()}
    deaths: list[tuple[str, SimDisk, dict[str, Expected]]] = []

    def take_death(description: str) -> None:
        if disk.changes % 7 == 0:
            state = {topic: model.copy() for topic, model in expected.items()}
            for model in state.values():
                model.flushed = model.end  # the page cache survives the process
            deaths.append((description, disk.survived_process(), state))

    disk.before_change = take_death
    workload(disk, clock, expected)
    for description, survived, state in deaths:
        try:
            check_recovered(survived, ManualClock(clock.now_ms), state)
        except Exception as error:
            raise AssertionError(f"killed before: {description}") from error


def test_the_workload_does_what_it_is_for() -> None:
    disk, clock = SimDisk(), ManualClock()
    changes: list[str] = []
    disk.before_change = changes.append
    expected = {"plain": Expected(), "compacted": Expected()}
    workload(disk, clock, expected)
    text = "\n".join(changes)
    for wanted in ("rename /data/plain-0/", ".cleaned", ".swap", ".deleted", ".txnindex", ".snapshot", "flush /data"):
        assert wanted in text
    assert clock.now_ms > START_MS
