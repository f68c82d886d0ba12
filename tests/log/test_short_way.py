"""Appends take the short way as long as nothing changed: whatever changes must lead them off it in time."""

import pytest

from moldau.log import LogConfig, LogContext, PartitionLog
from moldau.log.errors import RecordTooLarge, StorageError
from tests.log.helpers import START_MS, batch, read_records, sim_log, values
from tests.support.sim_disk import SimDisk

CONFIG = LogConfig(index_interval_bytes=10, segment_ms=1000)
EPOCH = 3


@pytest.fixture
def log(context: LogContext) -> PartitionLog:
    """Every batch but the first has an index entry, and the next one will take the short way."""
    return settled(sim_log(context, CONFIG))


def settled(log: PartitionLog, timestamp: int = START_MS) -> PartitionLog:
    for number in range(5):
        log.append_as_leader(batch([b"%d" % number], timestamp), EPOCH)
    assert is_settled(log)
    return log


def is_settled(log: PartitionLog) -> bool:
    return log.active_segment.batch_bytes_max > 0


def append(log: PartitionLog, value: bytes = b"next", timestamp: int = START_MS) -> None:
    log.append_as_leader(batch([value], timestamp), EPOCH)


def check_index(log: PartitionLog) -> None:
    """Every batch but the first of each segment is indexed where it is."""
    for segment in log.segments:
        expected = [(header.last_offset, position) for position, header in segment.headers()][1:]
        assert [segment.offset_index.entry(slot) for slot in range(segment.offset_index.file.count)] == expected


def test_a_batch_without_index_entry_leaves_the_indexes_alone(context: LogContext, disk: SimDisk) -> None:
    log = sim_log(context, LogConfig(index_interval_bytes=200))
    append(log)
    assert is_settled(log)
    assert not disk.exists(log.active_segment.path(".index")), "a quiet partition has nothing mapped"
    for _ in range(20):
        append(log)
    assert log.active_segment.offset_index.file.count == 6, "one for every third batch of 72 bytes"
    assert [record.offset for record in read_records(log)] == list(range(21))


def test_files_that_were_closed_and_opened_for_a_reader(log: PartitionLog) -> None:
    log.active_segment.release()
    log.read(3, 1000)
    append(log)
    assert values(log)[-1] == (5, b"next")
    check_index(log)


def test_a_new_segment(log: PartitionLog) -> None:
    former = log.active_segment
    log.roll()
    append(log)
    assert (former.next_offset(), log.active_segment.base_offset) == (5, 5)
    assert values(log)[-1] == (5, b"next")


def test_a_sealed_segment(log: PartitionLog) -> None:
    log.active_segment.seal()
    append(log)
    check_index(log)


def test_indexes_that_were_written_anew(log: PartitionLog) -> None:
    log.active_segment.rebuild_indexes()
    append(log)
    check_index(log)


def test_the_beginning_of_a_segment_was_cut_off(log: PartitionLog) -> None:
    """The time to roll counts from what is the first batch now."""
    log.truncate_fully_and_start_at(0)
    settled(log, START_MS + 500)
    log.truncate_to(0)
    append(log, timestamp=START_MS)
    append(log, timestamp=START_MS + 1001)
    assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_another_part_was_cut_off(log: PartitionLog) -> None:
    log.truncate_to(3)
    for _ in range(3):
        append(log)
    assert [record.offset for offset in range(6) for record in read_records(log, offset)[:1]] == list(range(6))


def test_settings_that_changed(log: PartitionLog) -> None:
    log.config = LogConfig(max_message_bytes=70)
    with pytest.raises(RecordTooLarge):
        append(log, b"x" * 20)
    assert log.log_end_offset == 5


def test_a_log_that_went_offline(log: PartitionLog) -> None:
    log.fail(OSError("broken"))
    with pytest.raises(StorageError):
        append(log)
    assert log.log_end_offset == 5


def test_another_leader(log: PartitionLog) -> None:
    """The cache of epochs and the batches say the same, whoever appends."""
    log.assign_epoch(EPOCH + 2)
    append(log)
    *_, (_, last) = log.active_segment.headers()
    assert (last.leader_epoch, last.base_offset) == (log.epochs.latest, 5)


def test_the_next_epoch(log: PartitionLog) -> None:
    log.append_as_leader(batch([b"next"]), EPOCH + 1)
    assert log.epochs.entries == [(EPOCH, 0), (EPOCH + 1, 5)]


def test_offsets_that_do_not_fit_into_the_segment(log: PartitionLog) -> None:
    """Only a gap makes them so far apart, as compaction and a follower of a compacted log leave it."""
    last = 2**31 - 2
    log.append_as_follower(bytes(batch([b"far"], base_offset=last, leader_epoch=EPOCH)))
    append(log)  # the last offset that fits
    assert [segment.base_offset for segment in log.segments] == [0]
    append(log)
    assert [segment.base_offset for segment in log.segments] == [0, last + 2]


def test_followers_do_not_settle_for_leaders(log: PartitionLog) -> None:
    log.append_as_follower(bytes(batch([b"followed"], base_offset=5, leader_epoch=EPOCH)))
    append(log)
    assert values(log)[-2:] == [(5, b"followed"), (6, b"next")]
    check_index(log)


@pytest.mark.parametrize("timestamp", [START_MS + 1000, START_MS + 1001])
def test_time_to_roll(log: PartitionLog, timestamp: int) -> None:
    append(log, timestamp=timestamp)
    assert len(log.segments) == (1 if timestamp == START_MS + 1000 else 2)


def test_indexes_that_fill_up(context: LogContext) -> None:
    log = sim_log(context, LogConfig(index_interval_bytes=10, segment_index_bytes=80))
    for number in range(40):
        append(log, timestamp=START_MS + number)
    assert len(log.segments) > 2
    assert all(segment.time_index.file.count <= 80 // 12 for segment in log.segments)
    assert [record.offset for record in read_records(log)] == list(range(40))
    check_index(log)
