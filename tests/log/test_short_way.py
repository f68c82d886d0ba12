"""Appends take the short way as long as nothing changed: whatever changes must lead them off it in time."""

from dataclasses import replace
from struct import pack_into

import pytest

from moldau.log import LogConfig, LogContext, PartitionLog
from moldau.log.config import TimestampType
from moldau.log.errors import InvalidRecord, RecordTooLarge, StorageError
from moldau.log.validation import CheckedBatch, check_at_leisure
from moldau.records.batch import HEADER_BYTES, renew_crc
from tests.log.helpers import START_MS, ManualClock, batch, read_records, sim_log, values
from tests.support.sim_disk import SimDisk

CONFIG = LogConfig(index_interval_bytes=10, segment_ms=1000)
EPOCH = 3


@pytest.fixture
def log(context: LogContext) -> PartitionLog:
    """Every batch but the first has an index entry, and the next one will take the short way."""
    return on_short_way(sim_log(context, CONFIG))


def on_short_way(log: PartitionLog, timestamp: int = START_MS) -> PartitionLog:
    for number in range(5):
        log.append_as_leader(batch([b"%d" % number], timestamp), EPOCH)
    assert is_open(log)
    return log


def is_open(log: PartitionLog) -> bool:
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
    assert is_open(log)
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
    on_short_way(log, START_MS + 500)
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


def test_followers_do_not_open_it_for_leaders(log: PartitionLog) -> None:
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


@pytest.mark.parametrize("value_bytes", [*range(130), *range(8_100, 8_260, 3)])
def test_a_single_record_fills_its_batch(log: PartitionLog, value_bytes: int) -> None:
    """Its length is in one byte, or two, or more; the short way takes it and no other."""
    whole = batch([b"x" * value_bytes])
    before = log.log_end_offset
    log.append_as_leader(bytearray(whole), EPOCH)
    assert log.log_end_offset == before + 1
    for wrong in (-2, 2, 1, 64):
        lying = bytearray(whole)
        lying[HEADER_BYTES] ^= 128 if wrong == 64 else 0
        lying[HEADER_BYTES] = (lying[HEADER_BYTES] & 128) | ((lying[HEADER_BYTES] + wrong) & 127)
        renew_crc(lying, 0)
        with pytest.raises(InvalidRecord):
            log.append_as_leader(lying, EPOCH)
    assert log.log_end_offset == before + 1


def test_a_batch_too_short_for_any_record(log: PartitionLog) -> None:
    for size in range(HEADER_BYTES, HEADER_BYTES + 7):
        short = bytearray(batch([b""]))[:size]
        pack_into(">i", short, 8, size - 12)
        for first in range(0, 256, 2):
            short[HEADER_BYTES:] = bytes([first] + [0] * 6)[: size - HEADER_BYTES]
            renew_crc(short, 0)
            with pytest.raises(InvalidRecord):
                log.append_as_leader(short, EPOCH)


def test_the_time_of_the_append_is_taken_when_it_is_appended(context: LogContext, clock: ManualClock) -> None:
    """Not when a thread looked the batch through: others came first, with later times."""
    config = LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME, cleanup_policy=frozenset({"compact"}))
    log = sim_log(context, config)
    data = bytearray(batch([(b"k", b"v")]))
    checked = check_at_leisure(data, config, clock.wall_ms())
    assert isinstance(checked, CheckedBatch)
    clock.advance(50)
    log.append_as_leader(bytearray(batch([(b"k", b"first")])), EPOCH)
    clock.advance(7)
    assert log.append_as_leader(data, EPOCH, checked=checked) == (1, 1, START_MS + 57)
    assert [record.timestamp for record in read_records(log)] == [START_MS + 50, START_MS + 57]


def test_a_topic_that_takes_the_producers_time_again_meanwhile(context: LogContext, clock: ManualClock) -> None:
    config = LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME, cleanup_policy=frozenset({"compact"}))
    log = sim_log(context, config)
    data = bytearray(batch([(b"k", b"v")], START_MS - 5))
    checked = check_at_leisure(data, config, clock.wall_ms())
    assert isinstance(checked, CheckedBatch)
    log.config = replace(config, message_timestamp_type=TimestampType.CREATE_TIME)
    assert log.append_as_leader(data, EPOCH, checked=checked) == (0, 0, -1)
    assert [record.timestamp for record in read_records(log)] == [START_MS - 5]
