"""Append, read, roll, retain, truncate: one partition, step by step."""

import contextlib
import errno
from dataclasses import replace

import pytest

from moldau.log import (
    AppendOrigin,
    CompressionType,
    FoundOffset,
    LogConfig,
    LogContext,
    PartitionLog,
    TimestampType,
    open_log,
)
from moldau.log.errors import (
    CorruptRecord,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTimestamp,
    LogError,
    NotOneBatch,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RecordListTooLarge,
    RecordTooLarge,
    StorageError,
    UnexpectedAppendOffset,
    UnsupportedCompressionType,
)
from moldau.log.producers import recalled_batches
from moldau.records import Codec, build_batch, iter_batches, read_header, renew_crc
from moldau.seams.randomness import SeededRandom
from tests.log.helpers import START_MS, ManualClock, batch, marker, read_records, sim_context, sim_log, values
from tests.support.sim_disk import SimDisk

SMALL = LogConfig(segment_bytes=500, index_interval_bytes=100)


def fill(log: PartitionLog, count: int, per_batch: int = 1, step_ms: int = 0) -> None:
    for number in range(count):
        timestamp = log.context.clock.wall_ms() if not step_ms else START_MS + number * step_ms
        log.append_as_leader(batch([b"%d.%d" % (number, i) for i in range(per_batch)], timestamp), leader_epoch=1)
    log.update_high_watermark(log.log_end_offset)


def reopen(log: PartitionLog, *, clean: bool = True) -> PartitionLog:
    log.close() if clean else log.release()
    return open_log(
        log.context,
        log.folder,
        log.topic,
        log.partition,
        log.config,
        recovery_point=log.log_end_offset if clean else log.recovery_point,
        log_start_offset=log.log_start_offset,
        clean=clean,
    )


# -- append


def test_offsets_and_epoch_are_stamped_in_place(context: LogContext) -> None:
    log = sim_log(context)
    assert log.append_as_leader(batch([b"a", b"b"]), leader_epoch=5) == (0, 1, -1)
    data = batch([b"c"])
    assert log.append_as_leader(data, leader_epoch=5) == (2, 2, -1)
    header = read_header(data)
    assert (header.base_offset, header.leader_epoch) == (2, 5)
    assert values(log) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert log.epochs.entries == [(5, 0)]


def damaged(data: bytearray) -> bytearray:
    data[-1] ^= 1
    return data


def with_header(data: bytearray, **fields: int) -> bytearray:
    from moldau.records.batch import HEADER

    HEADER.pack_into(data, 0, *read_header(data)._replace(**fields))
    if fields.get("crc") is None:
        renew_crc(data, 0)
    return data


def with_magic(magic: int) -> bytearray:
    data = batch([b"a"])
    data[16] = magic
    return data


def with_wrong_length(by: int) -> bytearray:
    """The checksum does not cover it."""
    data = batch([b"a"])
    data[8:12] = (len(data) - 12 + by).to_bytes(4, "big")
    return data


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (bytearray(), NotOneBatch),
        (bytearray(60), CorruptRecord),
        (damaged(batch([b"a"])), CorruptRecord),
        (batch([b"abc"])[:-1], NotOneBatch),
        (batch([b"abc"])[:16], NotOneBatch),
        (with_magic(1), NotOneBatch),
        (with_magic(3), CorruptRecord),
        (batch([b"a"]) + batch([b"b"]), NotOneBatch),
        (batch([b"a"], base_offset=5), InvalidRecord),
        (with_wrong_length(1), NotOneBatch),
        (with_wrong_length(-1), CorruptRecord),
        (with_header(batch([b"a"]), record_count=0), InvalidRecord),
        (with_header(batch([b"a"]), last_offset_delta=1), InvalidRecord),
        (with_header(batch([b"a"]), producer_id=3), InvalidRecord),
        (with_header(batch([b"a"]), attributes=7), UnsupportedCompressionType),
        (marker(1, 0, commit=True), InvalidRecord),
        (batch([b"x" * 1_100_000]), RecordTooLarge),
        (batch([b"a"], START_MS + 3_600_001), InvalidTimestamp),
        (with_header(batch([b"a"]), attributes=8), InvalidTimestamp),
    ],
)
def test_refused_batches_leave_no_trace(context: LogContext, data: bytearray, error: type[LogError]) -> None:
    log = sim_log(context)
    log.append_as_leader(batch([b"first"]), 1)
    with pytest.raises(error):
        log.append_as_leader(data, 1)
    assert values(log) == [(0, b"first")]
    assert log.append_as_leader(batch([b"next"]), 1)[0] == 1


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (LogConfig(max_message_bytes=100), RecordTooLarge),
        (LogConfig(segment_bytes=100), RecordListTooLarge),
        (LogConfig(cleanup_policy=frozenset({"compact"})), InvalidRecord),
        (LogConfig(message_timestamp_after_max_ms=-1), InvalidTimestamp),
    ],
)
def test_new_settings_count_for_the_next_batch(context: LogContext, config: LogConfig, error: type[LogError]) -> None:
    log = sim_log(context)
    fill(log, 3)
    log.config = config
    with pytest.raises(error):
        log.append_as_leader(batch([b"x" * 100]), 1)
    log.config = LogConfig()
    assert log.append_as_leader(batch([b"x" * 100]), 1)[0] == 3


def test_the_clock_moves_the_bound_on_timestamps(context: LogContext, clock: ManualClock) -> None:
    log = sim_log(context)
    fill(log, 2)
    for ahead_ms in (3_600_010, 7_200_000):
        with pytest.raises(InvalidTimestamp):
            log.append_as_leader(batch([b"x"], START_MS + ahead_ms), 1)
        clock.now_ms = START_MS + ahead_ms - 3_600_000
        log.append_as_leader(batch([b"x"], START_MS + ahead_ms), 1)
    assert log.log_end_offset == 4


def test_bytes_behind_the_batch_are_cut_off(context: LogContext) -> None:
    log = sim_log(context)
    log.append_as_leader(batch([b"a"]) + b"rest", 1)
    assert log.size_bytes == len(batch([b"a"]))
    assert values(log) == [(0, b"a")]


def test_error_codes_are_kafkas() -> None:
    codes = {CorruptRecord: 2, RecordTooLarge: 10, InvalidTimestamp: 32, OutOfOrderSequence: 45, StorageError: 56}
    assert {error: error.code for error in codes} == codes
    assert (OffsetOutOfRange.code, InvalidRecord.code, RecordListTooLarge.code) == (1, 87, 18)


def test_log_append_time(context: LogContext, clock: ManualClock) -> None:
    log = sim_log(context, LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME))
    clock.advance(777)
    assert log.append_as_leader(batch([b"a", b"b"], timestamp=5), 1) == (0, 1, clock.now_ms)
    assert [record.timestamp for record in read_records(log)] == [clock.now_ms] * 2


def test_timestamps_too_old(context: LogContext) -> None:
    log = sim_log(context, LogConfig(message_timestamp_before_max_ms=1000))
    with pytest.raises(InvalidTimestamp) as raised:
        log.append_as_leader(build_batch([(0, START_MS, None, b"", ()), (1, START_MS - 1001, None, b"", ())]), 1)
    assert [index for index, _ in raised.value.record_errors] == [1]
    log.append_as_leader(batch([b"a"], START_MS - 1000), 1)


def test_timestamps_too_new(context: LogContext) -> None:
    log = sim_log(context)
    with pytest.raises(InvalidTimestamp) as raised:
        log.append_as_leader(build_batch([(0, START_MS, None, b"", ()), (1, START_MS + 3_600_001, None, b"", ())]), 1)
    assert [index for index, _ in raised.value.record_errors] == [1]


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("source", list(Codec))
def test_broker_side_compression(context: LogContext, source: Codec, target: str) -> None:
    """S7: the topic's codec replaces the producer's; `producer` keeps it."""
    log = sim_log(context, LogConfig(compression_type=CompressionType(target)))
    sent = [b"%d" % number * 50 for number in range(20)]
    log.append_as_leader(batch(sent, codec=source), 1)
    assert [record.value for record in read_records(log)] == sent
    assert next(header for _, header in log.segments[0].headers()).codec == log.config.target_codec


def test_the_producers_codec_is_kept_untouched(context: LogContext) -> None:
    log = sim_log(context)
    data = batch([b"a" * 1000], codec=Codec.ZSTD)
    body = bytes(data[61:])
    log.append_as_leader(data, 1)
    region = log.read(0, 1 << 20).region
    assert region is not None
    assert region.read()[61:] == body


def test_recompression_can_make_a_batch_too_large(context: LogContext) -> None:
    log = sim_log(context, LogConfig(compression_type=CompressionType.UNCOMPRESSED, max_message_bytes=1000))
    with pytest.raises(RecordTooLarge):
        log.append_as_leader(batch([b"a" * 2000], codec=Codec.GZIP), 1)


def test_compacted_topics_need_keys(context: LogContext) -> None:
    log = sim_log(context, LogConfig(cleanup_policy=frozenset({"compact"})))
    with pytest.raises(InvalidRecord) as raised:
        log.append_as_leader(batch([(b"k", b"v"), (None, b"v"), (None, b"w")]), 1)
    assert [index for index, _ in raised.value.record_errors] == [1, 2]
    log.append_as_leader(batch([(b"k", None)]), 1)


def test_a_repeated_batch_is_answered_with_its_offsets(context: LogContext) -> None:
    log = sim_log(context)
    sent = batch([b"a", b"b"], producer=(7, 0, 0))
    assert log.append_as_leader(bytearray(sent), 1) == (0, 1, -1)
    # The time of the records, as Kafka tells it, whatever the timestamp type.
    assert log.append_as_leader(bytearray(sent), 1) == (0, 1, START_MS)
    assert log.log_end_offset == 2


def test_a_batch_larger_than_a_segment(context: LogContext) -> None:
    with pytest.raises(RecordListTooLarge):
        sim_log(context, SMALL).append_as_leader(batch([b"x" * 500]), 1)


# -- follow


def test_a_follower_takes_batches_as_they_are(context: LogContext) -> None:
    leader = sim_log(context, name="leader-0")
    for epoch in (1, 1, 2, 4):
        leader.append_as_leader(batch([b"%d" % epoch] * 3), epoch)
    follower = sim_log(context, SMALL, name="follower-0")
    region = leader.read(0, 1 << 20).region
    assert region is not None
    data = region.read()
    follower.append_as_follower(data + data[:30])  # a fetch may cut the last batch
    assert follower.log_end_offset == 12
    assert values(follower) == values(leader)
    assert follower.epochs.entries == [(1, 0), (2, 6), (4, 9)]
    with pytest.raises(UnexpectedAppendOffset):
        follower.append_as_follower(data)
    follower.append_as_follower(b"")
    assert follower.log_end_offset == 12


def test_a_follower_ignores_batches_of_a_newer_epoch(context: LogContext) -> None:
    follower = sim_log(context)
    data = batch([b"a"], leader_epoch=3) + batch([b"b"], leader_epoch=5, base_offset=1)
    follower.append_as_follower(bytes(data), leader_epoch=4)
    assert follower.log_end_offset == 1


def test_a_follower_of_a_compacted_leader_meets_gaps(context: LogContext) -> None:
    follower = sim_log(context, SMALL)
    for offset in (0, 7, 100, 2**31 + 500, 2**31 + 510):
        follower.append_as_follower(bytes(batch([b"x" * 50], base_offset=offset, leader_epoch=0)))
    assert [offset for offset, _ in values(follower)] == [0, 7, 100, 2**31 + 500, 2**31 + 510]
    assert follower.segments[-1].base_offset == 2**31 + 500  # the index holds 31 bits
    assert [offset for offset, _ in values(reopen(follower))] == [0, 7, 100, 2**31 + 500, 2**31 + 510]


def test_a_damaged_batch_is_not_followed(context: LogContext) -> None:
    follower = sim_log(context)
    with pytest.raises(CorruptRecord):
        follower.append_as_follower(bytes(damaged(batch([b"a"]))))
    assert follower.log_end_offset == 0


# -- read


def test_reads_begin_with_the_batch_that_holds_the_offset(context: LogContext) -> None:
    log = sim_log(context, SMALL)
    fill(log, 30, per_batch=4)
    for offset in range(120):
        info = log.read(offset, 1)
        assert info.first_offset == offset - offset % 4
        assert info.region is not None
        position, header = next(iter_batches(info.region.read()))
        assert (position, header.base_offset) == (0, offset - offset % 4)


def test_reads_stop_at_the_upper_bound(context: LogContext) -> None:
    log = sim_log(context, SMALL)
    fill(log, 30, per_batch=4)
    for bound in (0, 3, 4, 17, 60, 120, 999):
        found = 0
        while found < bound:
            info = log.read(found, 1 << 20, upper_bound_offset=bound)
            if info.region is None:
                break
            found = [header.next_offset for _, header in iter_batches(info.region.read())][-1]
        assert found == min(bound - bound % 4, 120)


def test_reads_respect_the_byte_limit(context: LogContext) -> None:
    log = sim_log(context)
    fill(log, 3)
    size = len(batch([b"0.0"]))
    assert log.read(0, 10).length == size  # at least one batch
    assert log.read(0, 10, min_one_batch=False).first_batch_incomplete
    assert log.read(0, size + 5).length == size + 5  # the last batch may be cut
    assert log.read(0, size * 9).length == size * 3


def test_reads_outside_the_log(context: LogContext) -> None:
    log = sim_log(context)
    fill(log, 3)
    assert log.read(3, 100).region is None
    for offset in (-1, 4):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, 100)
    log.delete_records_before(2)
    with pytest.raises(OffsetOutOfRange):
        log.read(1, 100)


def test_a_region_outlives_its_file(context: LogContext, clock: ManualClock) -> None:
    log = sim_log(context, replace(SMALL, retention_ms=10))
    fill(log, 20)
    region = log.read(0, 1 << 20).region
    assert region is not None
    before = region.read()
    clock.advance(1000)
    log.apply_retention()
    clock.advance(100_000)
    for path in log.take_removals():
        context.disk.remove(path)
    assert region.read() == before


# -- offsets by time


def test_offsets_by_timestamp(context: LogContext) -> None:
    log = sim_log(context, SMALL)
    fill(log, 60, per_batch=2, step_ms=10)
    for number in range(60):
        assert log.offset_for_timestamp(START_MS + number * 10) == FoundOffset(START_MS + number * 10, number * 2, 1)
        expected = None if number == 59 else FoundOffset(START_MS + number * 10 + 10, number * 2 + 2, 1)
        assert log.offset_for_timestamp(START_MS + number * 10 + 1) == expected
    assert log.offset_for_timestamp(0) == FoundOffset(START_MS, 0, 1)
    assert log.offset_of_max_timestamp() == FoundOffset(START_MS + 590, 118, 1)
    log.delete_records_before(31)
    assert log.offset_for_timestamp(0) == FoundOffset(START_MS + 150, 31, 1)
    assert log.earliest() == FoundOffset(-1, 31, 1)
    assert log.latest() == FoundOffset(-1, 120, 1)


def test_timestamps_need_not_grow(context: LogContext) -> None:
    log = sim_log(context, SMALL)
    times = [50, 10, 70, 20, 70, 30, 5, 90, 1]
    for time in times:
        log.append_as_leader(build_batch([(0, time, None, b"x" * 60, ()), (1, time - 1, None, b"y", ())]), 1)
    flat = [t for time in times for t in (time, time - 1)]
    for asked in range(95):
        expected = next((offset for offset, time in enumerate(flat) if time >= asked), None)
        found = log.offset_for_timestamp(asked)
        assert (found.offset if found else None) == expected
    found = log.offset_of_max_timestamp()
    assert found is not None
    assert (found.timestamp, found.offset) == (90, 14)


def test_an_empty_log_has_no_timestamps(context: LogContext) -> None:
    log = sim_log(context)
    assert log.offset_for_timestamp(0) is None
    assert log.offset_of_max_timestamp() is None


# -- roll


def test_roll_by_size(context: LogContext) -> None:
    log = sim_log(context, SMALL)
    fill(log, 50)
    assert len(log.segments) > 4
    assert all(segment.size <= 500 for segment in log.segments)
    assert [s.next_offset() for s in log.segments[:-1]] == [s.base_offset for s in log.segments[1:]]


def test_roll_by_time_of_the_records(context: LogContext) -> None:
    log = sim_log(context, LogConfig(segment_ms=1000))
    for age in (0, 400, 1000, 1001, 1500, 2002):
        log.append_as_leader(batch([b"x"], START_MS + age), 1)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 5]


def test_roll_by_time_of_the_file_if_records_have_none(context: LogContext, clock: ManualClock) -> None:
    log = sim_log(context, LogConfig(segment_ms=1000))
    for _ in range(4):
        log.append_as_leader(batch([b"x"], -1), 1)
        clock.advance(600)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_roll_when_an_index_is_full(context: LogContext) -> None:
    log = sim_log(context, LogConfig(segment_index_bytes=48, index_interval_bytes=10))
    fill(log, 20, step_ms=1)
    assert len(log.segments) > 3
    assert all(segment.offset_index.file.count <= 6 for segment in log.segments)
    assert all(segment.time_index.file.count <= 4 for segment in log.segments)


def test_1000_partitions_do_not_roll_together(disk: SimDisk) -> None:
    """S4: one roll period for all, but the jitter spreads the rolls over a tenth of it."""
    clock = ManualClock()
    context = LogContext(disk, clock, SeededRandom(3), sim_context(disk, clock).open_segments)
    hour_ms = 3_600_000
    config = LogConfig(segment_ms=hour_ms, segment_jitter_ms=hour_ms // 10)
    logs = [sim_log(context, config, f"t-{number}") for number in range(1000)]
    for log in logs:
        log.append_as_leader(batch([b"x"], clock.now_ms), 1)
        log.roll()  # the first segment of a new log has no jitter to speak of: look at the second
        log.append_as_leader(batch([b"x"], clock.now_ms), 1)
    rolled_at: dict[int, int] = {}
    for minute in range(53, 62):
        now_ms = START_MS + minute * 60_000
        clock.now_ms = now_ms
        for number, log in enumerate(logs):
            if number not in rolled_at:
                count = len(log.segments)
                log.append_as_leader(batch([b"x"], now_ms), 1)
                if len(log.segments) > count:
                    rolled_at[number] = minute
    assert len(rolled_at) == 1000
    per_minute = [list(rolled_at.values()).count(minute) for minute in range(54, 61)]
    assert max(per_minute) < 250  # about 167 each, in six minutes; without jitter 1000 in one
    assert len([count for count in per_minute if count > 50]) >= 6


# -- retention


def test_retention_by_time(context: LogContext, clock: ManualClock) -> None:
    log = sim_log(context, replace(SMALL, retention_ms=1000))
    fill(log, 50, step_ms=100)
    ends = [segment.max_timestamp.timestamp for segment in log.segments]
    clock.now_ms = START_MS + 3500
    expected = sum(end < START_MS + 2500 for end in ends)
    first_kept = log.segments[expected].base_offset
    assert log.apply_retention() == expected > 0
    assert log.log_start_offset == first_kept
    assert values(log)[0][0] == first_kept
    assert log.apply_retention() == 0


def test_retention_by_size(context: LogContext) -> None:
    log = sim_log(context, replace(SMALL, retention_bytes=1200, retention_ms=-1))
    fill(log, 50)
    log.apply_retention()
    assert 1200 <= log.size_bytes < 1200 + 500


def test_retention_never_passes_the_high_watermark(context: LogContext, clock: ManualClock) -> None:
    log = sim_log(context, replace(SMALL, retention_ms=1))
    fill(log, 50)
    log.update_high_watermark(12)
    clock.advance(1_000_000)
    log.apply_retention()
    assert log.log_start_offset <= 12
    log.update_high_watermark(50)
    log.apply_retention()
    assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (50, 50, 1)
    assert log.append_as_leader(batch([b"x"]), 1)[0] == 50


def test_retention_by_log_start_offset(context: LogContext, disk: SimDisk, clock: ManualClock) -> None:
    """S5: DeleteRecords moves the start; whole files go, after a delay."""
    log = sim_log(context, replace(SMALL, retention_ms=-1, cleanup_policy=frozenset({"compact"})))
    for number in range(50):
        log.append_as_leader(batch([(b"k", b"%d" % number)]), 1)
    with pytest.raises(OffsetOutOfRange):
        log.delete_records_before(1)
    log.update_high_watermark(50)
    second = log.segments[1].base_offset
    log.delete_records_before(second - 1)
    assert log.apply_retention() == 0
    log.delete_records_before(second + 1)
    assert log.apply_retention() == 1
    assert values(log)[0][0] == second + 1
    assert any(name.endswith(".log.deleted") for name in disk.list_dir(log.folder))
    assert log.take_removals() == []
    clock.advance(60_000)
    for path in log.take_removals():
        disk.remove(path)
    assert not any(name.endswith(".deleted") for name in disk.list_dir(log.folder))


# -- truncate


def test_truncate(context: LogContext) -> None:
    log = sim_log(context, SMALL)
    fill(log, 50, per_batch=2)
    log.flush()
    before = values(log)
    assert not log.truncate_to(100)
    assert log.truncate_to(63)
    assert log.log_end_offset == 63
    assert log.high_watermark == 63
    assert log.flushed_offset == 63
    assert values(log) == before[:62]  # the batch of 62 and 63 is gone as a whole
    assert log.append_as_leader(batch([b"new"]), 2)[0] == 63
    assert values(reopen(log, clean=False)) == [*before[:62], (63, b"new")]


def test_a_folder_is_renamed_between_appends(context: LogContext, disk: SimDisk) -> None:
    log = sim_log(context, LogConfig(index_interval_bytes=10))
    fill(log, 5)
    disk.rename(log.folder, "/data/t-1")
    log.moved("/data/t-1")
    fill(log, 5)
    assert log.active_segment.offset_index.file.count == 9
    assert [record.offset for record in read_records(log, 7)] == [7, 8, 9]


@pytest.mark.parametrize("as_follower", [False, True])
def test_the_first_append_after_a_start_indexes_nothing_twice(context: LogContext, *, as_follower: bool) -> None:
    log = sim_log(context, LogConfig(index_interval_bytes=10))
    fill(log, 5, step_ms=1)
    log = reopen(log)
    before = log.active_segment.offset_index.file.count
    for number in range(5, 8):
        if as_follower:
            log.append_as_follower(batch([b"x"], START_MS + number, base_offset=number, leader_epoch=1))
        else:
            log.append_as_leader(batch([b"x"], START_MS + number), 1)
    index = log.active_segment.offset_index
    entries = [index.entry(slot) for slot in range(index.file.count)]
    assert entries == sorted(set(entries))
    assert len(entries) == before + 2  # the first counts its bytes from nothing
    assert log.offset_of_max_timestamp() == FoundOffset(START_MS + 7, 7, 1)


def test_an_emptied_segment_counts_its_age_anew(context: LogContext) -> None:
    log = sim_log(context, LogConfig(segment_ms=1000))
    fill(log, 3)
    log.truncate_to(0)
    for age in (5000, 5900, 6001):
        log.append_as_leader(batch([b"x"], START_MS + age), 1)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_truncate_below_the_first_segment_starts_over(context: LogContext, clock: ManualClock) -> None:
    log = sim_log(context, replace(SMALL, retention_ms=1))
    fill(log, 50)
    clock.advance(1000)
    log.apply_retention()
    fill(log, 5)
    log.truncate_to(20)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (20, 20, 20)
    assert log.epochs.entries == []
    log.truncate_fully_and_start_at(1000, log_start_offset=900)
    assert (log.log_start_offset, log.log_end_offset) == (900, 1000)


def test_truncation_restores_the_producers(context: LogContext) -> None:
    log = sim_log(context, SMALL)
    for sequence in range(30):
        log.append_as_leader(batch([b"x" * 20], producer=(7, 0, sequence)), 1)
    log.append_as_leader(batch([b"t"], producer=(8, 0, 0), transactional=True), 1)
    log.truncate_to(17)
    assert log.producers.producers[7].last_sequence == 16
    assert log.producers.producers.get(8) is None
    with pytest.raises(OutOfOrderSequence):
        log.append_as_leader(batch([b"x"], producer=(7, 0, 30)), 1)
    log.append_as_leader(batch([b"x"], producer=(7, 0, 17)), 1)


def test_a_roll_after_cutting_a_batch_leaves_no_hole(context: LogContext) -> None:
    log = sim_log(context, SMALL)
    fill(log, 5, per_batch=4)
    log.truncate_to(18)
    log.roll()
    fill(log, 2)
    assert log.segments[1].base_offset == 16  # where the records end
    again = reopen(log, clean=False)
    assert again.log_end_offset == 20
    assert values(again) == values(log)


# -- transactions


def test_transactions_hold_the_stable_offset_and_are_indexed(context: LogContext) -> None:
    log = sim_log(context, SMALL)
    log.append_as_leader(batch([b"a"], producer=(1, 0, 0), transactional=True), 1)
    log.append_as_leader(batch([b"b"], producer=(2, 0, 0), transactional=True), 1)
    log.update_high_watermark(2)
    assert log.last_stable_offset == 0
    log.append_as_leader(marker(1, 0, commit=False), 1, AppendOrigin.COORDINATOR)
    assert log.last_stable_offset == 0
    log.update_high_watermark(3)
    assert log.last_stable_offset == 1
    fill(log, 20)
    log.append_as_leader(marker(2, 0, commit=False), 1, AppendOrigin.COORDINATOR)
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == log.log_end_offset == 24
    assert [(t.producer_id, t.first_offset, t.last_offset) for t in log.aborted_transactions(0, 24)] == [
        (1, 0, 2),
        (2, 1, 23),
    ]
    assert [t.producer_id for t in log.aborted_transactions(3, 24)] == [2]
    for clean in (True, False):
        log = reopen(log, clean=clean)
        assert [t.producer_id for t in log.aborted_transactions(0, 24)] == [1, 2]


def test_the_list_of_aborted_transactions_ends_where_the_data_ends(context: LogContext) -> None:
    """2,000 of them: a fetch of one batch must not carry all, and none that its data needs may be missing."""
    log = sim_log(context, LogConfig(segment_bytes=40_000, index_interval_bytes=512))
    log.append_as_leader(batch([b"long"], producer=(5_000, 0, 0), transactional=True), 1)
    for producer in range(2_000):
        log.append_as_leader(batch([b"a"], producer=(producer, 0, 0), transactional=True), 1)
        log.append_as_leader(marker(producer, 0, commit=False), 1, AppendOrigin.COORDINATOR)
    log.append_as_leader(marker(5_000, 0, commit=False), 1, AppendOrigin.COORDINATOR)
    end = log.log_end_offset
    log.update_high_watermark(end)
    assert len(log.segments) > 3
    everything = log.aborted_transactions(0, end)
    assert len(everything) == 2_001
    for offset in (0, 1, 777, 1_500, 2_300, end - 3):
        for max_bytes in (1, 400, 5_000):
            info = log.read(offset, max_bytes, upper_bound_offset=end, min_one_batch=True)
            assert info.region is not None
            last = max(header.last_offset for _, header in iter_batches(info.region.read()))
            told = {each.producer_id for each in log.aborted_within(info, end)}
            needed = {
                t.producer_id for t in everything if t.last_offset >= info.first_offset and t.first_offset <= last
            }
            assert needed <= told
            assert len(told - needed) <= 10


def test_open_transactions_survive_a_restart(context: LogContext) -> None:
    log = sim_log(context)
    log.append_as_leader(batch([b"a"], producer=(1, 0, 0), transactional=True), 1)
    for clean in (True, False):
        log = reopen(log, clean=clean)
        log.update_high_watermark(log.log_end_offset)
        assert log.producers.producers[1].txn_first_offset >= 0
        assert log.last_stable_offset == 0
        assert [producer.current_txn_start_offset for producer in log.producers.active()] == [0]


def test_verification_guards_transactional_appends(context: LogContext) -> None:
    log = sim_log(context, LogConfig(transaction_partition_verification_enable=True))
    data = batch([b"a"], producer=(1, 0, 0), transactional=True)
    with pytest.raises(LogError):
        log.append_as_leader(bytearray(data), 1)
    guard = log.start_verification(1, 0, 0)
    log.append_as_leader(data, 1, verification_guard=guard)
    log.append_as_leader(batch([b"b"], producer=(1, 0, 1), transactional=True), 1)


# -- the disk fails


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_refuses_the_batch_and_everything_after(context: LogContext, disk: SimDisk, code: int) -> None:
    log = sim_log(context, SMALL)
    fill(log, 10)
    log.flush()
    before = values(log)
    disk.fail("/data/t-0", code, "append")
    for _ in range(2):
        with pytest.raises(StorageError):
            log.append_as_leader(batch([b"lost"]), 1)
    with pytest.raises(StorageError):
        log.read(0, 100)
    disk.heal()
    again = open_log(context, log.folder, "t", 0, SMALL, recovery_point=10)
    assert values(again) == before


def test_a_full_disk_never_loses_an_acknowledged_record(context: LogContext, disk: SimDisk) -> None:
    log = sim_log(context, SMALL)
    disk.space_left_bytes = 100_000
    acknowledged = 0
    while not log.is_offline:
        with contextlib.suppress(StorageError):
            log.append_as_leader(batch([b"%d" % acknowledged * 10]), 1)
            acknowledged += 1
    assert acknowledged > 50
    disk.heal()
    again = open_log(context, log.folder, "t", 0, SMALL)
    assert [value for _, value in values(again)] == [b"%d" % number * 10 for number in range(acknowledged)]


def test_a_failed_flush_takes_the_log_offline(context: LogContext, disk: SimDisk) -> None:
    failed: list[str] = []
    context.on_failure = lambda path, error: failed.append(path)
    log = sim_log(context)
    fill(log, 3)
    disk.fail("/data/t-0", errno.EIO, "flush")
    with pytest.raises(StorageError):
        log.flush()
    assert log.flushed_offset == 0
    assert failed == ["/data"]
    with pytest.raises(StorageError):
        log.append_as_leader(batch([b"x"]), 1)


# -- producers after a start


def numbered(first: int, last: int, epoch: int = 0) -> bytearray:
    return batch([b"%d" % number for number in range(first, last + 1)], producer=(7, epoch, first))


@pytest.mark.parametrize("clean", [True, False])
def test_a_batch_whose_answer_was_lost_is_recognised_after_a_start(context: LogContext, clean: bool) -> None:
    """A snapshot has only the last batch of a producer, and clients repeat their last five, one after the other."""
    log = sim_log(context, SMALL)
    sent = [(0, 1), (2, 2), (3, 9), (10, 11), (12, 12), (13, 15)]
    for index, (first, last) in enumerate(sent):
        log.append_as_leader(numbered(first, last), 1)
        log.append_as_leader(batch([b"of somebody else"] * 3, producer=(8, 0, 3 * index)), 1)
    assert len(log.segments) > 1, "what is looked for lies in several files"
    places = {first: log.append_as_leader(numbered(first, last), 1)[0] for first, last in sent[1:]}
    log = reopen(log, clean=clean)
    for first, last in sent[1:]:
        assert log.append_as_leader(numbered(first, last), 1)[0] == places[first]
    for never_sent in ((0, 0), (2, 3), (4, 9), (17, 17)):
        with pytest.raises(OutOfOrderSequence):
            log.append_as_leader(numbered(*never_sent), 1)
    end_offset = log.log_end_offset
    assert log.append_as_leader(numbered(16, 16), 1)[0] == end_offset


def test_how_far_back_batches_are_recalled(context: LogContext, monkeypatch: pytest.MonkeyPatch) -> None:
    log = sim_log(context, SMALL)
    for number in range(5):
        log.append_as_leader(numbered(number, number), 1)
        log.append_as_leader(batch([b"x" * 300]), 1)
    log = reopen(log)
    monkeypatch.setattr(recalled_batches, "_BYTES_MAX", 700)
    with pytest.raises(OutOfOrderSequence):
        log.append_as_leader(numbered(0, 0), 1)
    assert log.append_as_leader(numbered(3, 3), 1)[0] == 6


def test_batches_of_a_former_epoch_are_not_recalled(context: LogContext) -> None:
    log = sim_log(context)
    for epoch in (0, 1):
        log.append_as_leader(numbered(0, 0, epoch), 1)
        log.append_as_leader(numbered(1, 1, epoch), 1)
    log = reopen(log)
    with pytest.raises(InvalidProducerEpoch):
        log.append_as_leader(numbered(0, 0, 0), 1)
    assert log.append_as_leader(numbered(0, 0, 1), 1)[0] == 2
    assert len(log.producers.producers[7].batches) == 2
