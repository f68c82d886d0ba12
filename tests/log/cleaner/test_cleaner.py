"""S6: compaction keeps the newest record of every key, forgets tombstones and aborted data in time, and never changes
an offset or an order."""

import dataclasses
import errno
import random
import sys
import threading
import tracemalloc

import pytest

from moldau.log import AppendOrigin, LogConfig, LogContext, PartitionLog, open_log
from moldau.log.cleaner import chunks
from moldau.log.cleaner.cleanable import log_to_clean
from moldau.log.cleaner.cleaner import CleanJob
from moldau.log.cleaner.offset_map import ENTRY_BYTES, OffsetMap
from moldau.log.cleaner.scan import SHORT_KEY_BYTES, scan_records
from moldau.log.cleaner.throttle import Throttle
from moldau.log.errors import CorruptRecord, OutOfOrderSequence, StorageError
from moldau.records import Codec, Record, build_batch, read_header
from moldau.records.reader import read_body
from tests.log.helpers import KeyValue, ManualClock, batch, marker, read_records, sim_log
from tests.support.sim_disk import SimDisk

CONFIG = LogConfig(
    segment_bytes=600,
    index_interval_bytes=100,
    cleanup_policy=frozenset({"compact"}),
    delete_retention_ms=1000,
)


def append(log: PartitionLog, *records: KeyValue, codec: Codec = Codec.NONE) -> None:
    log.append_as_leader(batch(records, log.context.clock.wall_ms(), codec=codec), 1)
    log.update_high_watermark(log.log_end_offset)


def clean(log: PartitionLog, checkpoint: int | None = None, memory_bytes: int = 1 << 20) -> CleanJob:
    job = CleanJob(log_to_clean(log, checkpoint, log.context.clock.wall_ms()), memory_bytes=memory_bytes)
    assert job.run_and_finish()
    return job


def newest(records: list[Record]) -> dict[bytes | None, Record]:
    return {record.key: record for record in records}


@pytest.mark.parametrize("codec", list(Codec))
def test_the_newest_record_of_every_key_stays(context: LogContext, codec: Codec) -> None:
    log = sim_log(context, CONFIG)
    chance = random.Random(5)
    for number in range(150):
        pairs = [(b"key %d" % chance.randint(0, 20), b"%d" % number) for _ in range(chance.randint(1, 4))]
        append(log, *pairs, codec=codec)
    before = read_records(log)
    size = log.size_bytes
    active = log.active_segment.base_offset
    job = clean(log)
    after = read_records(log)
    assert log.size_bytes < size / 2
    assert job.end_offset == active
    assert newest(after) == newest(before)
    assert set(after) <= set(before)
    assert [r.offset for r in after] == sorted(r.offset for r in after)
    below = [r for r in after if r.offset < active]
    assert len({r.key for r in below}) == len(below)  # no key twice in the clean part
    assert log.log_end_offset == before[-1].offset + 1


@pytest.mark.parametrize("chunk_bytes", [100, 500, 1 << 18])
@pytest.mark.parametrize("memory_bytes", [1 << 20, 9 * ENTRY_BYTES])
def test_batches_of_any_shape_side_by_side(
    context: LogContext, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, memory_bytes: int
) -> None:
    """Small ones of one record in runs, larger ones, compressed ones, tombstones, producers with sequence numbers."""
    monkeypatch.setattr(chunks, "_CHUNK_BYTES", chunk_bytes)
    log = sim_log(context, dataclasses.replace(CONFIG, segment_bytes=3000))
    chance = random.Random(chunk_bytes)
    sequences = {7: 0, 8: 0}
    for number in range(200):
        count = chance.choice((1, 1, 1, 1, 2, 30))
        values = [None if chance.random() < 0.1 else b"%d" % number for _ in range(count)]
        pairs = [(b"key %d" % chance.randint(0, 40), value) for value in values]
        producer_id = chance.choice((-1, -1, 7, 8))
        producer = (producer_id, 0, sequences[producer_id]) if producer_id >= 0 else (-1, -1, -1)
        if producer_id >= 0:
            sequences[producer_id] += count
        codec = chance.choice((Codec.NONE, Codec.NONE, Codec.NONE, Codec.LZ4))
        log.append_as_leader(batch(pairs, log.context.clock.wall_ms() + number, producer=producer, codec=codec), 1)
    log.update_high_watermark(log.log_end_offset)
    before, active = read_records(log), log.active_segment.base_offset
    job, rounds = clean(log, None, memory_bytes), 1
    assert job.stats.records_read == sum(1 for r in before if r.offset < job.end_offset) or memory_bytes < 1 << 20
    while job.end_offset < active:
        job, rounds = clean(log, job.end_offset, memory_bytes), rounds + 1
    assert (rounds > 1) == (memory_bytes < 1 << 20)
    after = read_records(log)
    assert newest(after) == newest(before)
    assert set(after) <= set(before)
    below = [r for r in after if r.offset < active]
    expected = newest([r for r in before if r.offset < active])
    assert below == sorted(expected.values(), key=lambda r: r.offset)
    assert job.stats.bytes_written == sum(s.size for s in log.segments[:-1])
    assert job.stats.records_written == len(below)
    for producer_id, sequence in sequences.items():
        with pytest.raises(OutOfOrderSequence):
            log.append_as_leader(batch([(b"k", b"v")], producer=(producer_id, 0, sequence + 1)), 1)
    again = open_log(context, log.folder, "t", 0, log.config, recovery_point=log.log_end_offset)
    assert read_records(again) == after
    assert {p.producer_id: p.last_sequence + 1 for p in again.producers.active()} == sequences


def test_what_was_cleaned_survives_a_restart(context: LogContext) -> None:
    log = sim_log(context, CONFIG)
    for number in range(60):
        append(log, (b"%d" % (number % 7), b"%d" % number))
    clean(log)
    after = read_records(log)
    for clean_start in (True, False):
        log.close()
        log = open_log(context, log.folder, "t", 0, CONFIG, recovery_point=log.log_end_offset, clean=clean_start)
        assert read_records(log) == after


def test_every_offset_can_still_be_asked_for(context: LogContext) -> None:
    log = sim_log(context, CONFIG)
    for number in range(100):
        append(log, (b"%d" % (number % 5), b"%d" % number), (b"x", b"y"))
    clean(log)
    after = read_records(log)
    for offset in range(log.log_end_offset):
        found = read_records(log, offset)
        assert found == [record for record in after if record.offset >= offset]
    for record in after:
        found_offset = log.offset_for_timestamp(record.timestamp)
        assert found_offset is not None


def test_tombstones_go_after_the_delete_retention(context: LogContext, clock: ManualClock) -> None:
    log = sim_log(context, CONFIG)
    append(log, (b"gone", b"value"), (b"stays", b"value"))
    append(log, (b"gone", None))
    log.roll()
    append(log, (b"other", b"v"))
    clean(log)
    assert [(r.key, r.value) for r in read_records(log)][:2] == [(b"stays", b"value"), (b"gone", None)]
    clock.advance(999)
    clean(log)
    assert b"gone" in newest(read_records(log))
    clock.advance(1)
    clean(log)
    assert b"gone" not in newest(read_records(log))
    assert b"stays" in newest(read_records(log))


def test_records_keep_their_timestamps_when_a_horizon_is_set(context: LogContext, clock: ManualClock) -> None:
    log = sim_log(context, CONFIG)
    append(log, (b"a", b"1"), (b"b", None), (b"c", b"3"))
    log.roll()
    before = read_records(log)
    clock.advance(123_456)
    clean(log)
    assert read_records(log) == before
    header = next(header for _, header in log.segments[0].headers())
    assert header.delete_horizon_ms == clock.now_ms + 1000


def test_aborted_data_goes_and_its_marker_later(context: LogContext, clock: ManualClock) -> None:
    log = sim_log(context, CONFIG)

    def transaction(sequence: int, pairs: list[KeyValue], *, commit: bool) -> None:
        log.append_as_leader(batch(pairs, clock.now_ms, producer=(5, 0, sequence), transactional=True), 1)
        end = marker(5, 0, commit=commit, timestamp=clock.now_ms)
        log.append_as_leader(end, 1, AppendOrigin.COORDINATOR)

    transaction(0, [(b"k", b"committed")], commit=True)
    transaction(1, [(b"k", b"aborted"), (b"only", b"aborted")], commit=False)
    transaction(3, [(b"z", b"last of its producer")], commit=True)
    log.roll()
    append(log, (b"later", b"x"))
    clean(log)
    kept = newest(read_records(log))
    assert kept[b"k"].value == b"committed"
    assert b"only" not in kept
    clock.advance(5000)
    for _ in range(3):
        clean(log)
        clock.advance(5000)
    controls = [header.base_offset for segment in log.segments for _, header in segment.headers() if header.is_control]
    assert 4 not in controls  # the abort marker: none of its records is left
    assert 1 in controls  # the commit marker: its record is still the newest of its key
    assert log.aborted_transactions(0, log.log_end_offset) == []


def test_producers_keep_their_sequence_numbers(context: LogContext) -> None:
    log = sim_log(context, CONFIG)
    for sequence in range(3):
        log.append_as_leader(batch([(b"k", b"%d" % sequence)], producer=(5, 0, sequence)), 1)
    log.append_as_leader(batch([(b"k", b"newest")], producer=(6, 0, 0)), 1)
    log.update_high_watermark(4)
    log.roll()
    clean(log)
    assert [record.value for record in read_records(log)] == [b"newest"]
    for path in [log.snapshots.path(offset) for offset in log.snapshots.offsets]:
        context.disk.remove(path)
    log = open_log(context, log.folder, "t", 0, CONFIG)
    with pytest.raises(OutOfOrderSequence):
        log.append_as_leader(batch([(b"k", b"x")], producer=(5, 0, 9)), 1)
    log.append_as_leader(batch([(b"k", b"x")], producer=(5, 0, 3)), 1)


def test_min_compaction_lag(context: LogContext, clock: ManualClock) -> None:
    config = LogConfig(
        segment_bytes=300, cleanup_policy=frozenset({"compact"}), min_compaction_lag_ms=1000, delete_retention_ms=0
    )
    log = sim_log(context, config)
    for _ in range(40):
        append(log, (b"k", b"v" * 10))
        clock.advance(100)
    now_ms = clock.now_ms
    limit = log_to_clean(log, None, now_ms).first_uncleanable_offset
    assert 0 < limit < log.log_end_offset
    assert all(s.largest_timestamp <= now_ms - 1000 for s in log.segments if s.base_offset < limit)
    clean(log)
    assert [r.offset for r in read_records(log)] == list(range(limit - 1, 40))


def test_max_compaction_lag_makes_a_log_due(context: LogContext, clock: ManualClock) -> None:
    config = LogConfig(
        segment_bytes=300,
        cleanup_policy=frozenset({"compact"}),
        max_compaction_lag_ms=1000,
        min_cleanable_dirty_ratio=1.0,
    )
    log = sim_log(context, config)
    for number in range(10):
        append(log, (b"%d" % number, b"v" * 10))
    assert not log_to_clean(log, None, clock.now_ms).is_due
    assert log_to_clean(log, None, clock.now_ms + 1001).is_due


def test_the_dirty_ratio_decides(context: LogContext) -> None:
    log = sim_log(context, CONFIG)
    for number in range(40):
        append(log, (b"%d" % number, b"v"))
    assert log_to_clean(log, None, 0).dirty_ratio == 1.0
    job = clean(log)
    assert log_to_clean(log, job.end_offset, 0).cleanable_bytes == 0
    assert not log_to_clean(log, job.end_offset, 0).is_due
    for number in range(10):
        append(log, (b"%d" % number, b"v"))
    target = log_to_clean(log, job.end_offset, 0)
    assert 0 < target.dirty_ratio < 0.5
    assert not target.is_due
    assert log_to_clean(log, 10_000, 0).first_dirty_offset == 0  # a checkpoint beyond the log: begin again


def test_a_small_map_takes_several_rounds(context: LogContext) -> None:
    log = sim_log(context, CONFIG)
    for number in range(200):
        append(log, (b"%d" % (number % 100), b"%d" % number))
    before = read_records(log)
    checkpoint: int | None = None
    ends = []
    while log_to_clean(log, checkpoint, 0).cleanable_bytes:
        checkpoint = clean(log, checkpoint, memory_bytes=30 * ENTRY_BYTES).end_offset
        ends.append(checkpoint)
    assert len(ends) > 3
    assert ends == sorted(set(ends))
    assert newest(read_records(log)) == newest(before)


def test_cleaned_segments_are_put_together(context: LogContext) -> None:
    log = sim_log(context, CONFIG)
    for number in range(200):
        append(log, (b"%d" % (number % 3), b"%d" % number))
    count = len(log.segments)
    clean(log)
    clean(log)
    assert len(log.segments) < count / 3
    assert all(segment.size <= 600 for segment in log.segments)


def test_compaction_goes_on_beside_appends_and_reads(context: LogContext) -> None:
    """`run` is on another thread; the owner appends, rolls and reads meanwhile."""
    log = sim_log(context, CONFIG)
    for number in range(300):
        append(log, (b"%d" % (number % 9), b"%d" % number))
    job = CleanJob(log_to_clean(log, None, 0), memory_bytes=1 << 20)
    thread = threading.Thread(target=job.run)
    thread.start()
    number = 300
    while thread.is_alive() or number < 400:
        append(log, (b"%d" % (number % 9), b"%d" % number))
        assert read_records(log, log.log_end_offset - 1)[0].value == b"%d" % number
        number += 1
    thread.join()
    assert job.finish()
    found = newest(read_records(log))
    assert {key: int(record.value or b"") for key, record in found.items()} == {
        b"%d" % key: max(n for n in range(number) if n % 9 == key) for key in range(9)
    }


def test_sources_removed_meanwhile_are_not_put_back(context: LogContext, disk: SimDisk, clock: ManualClock) -> None:
    log = sim_log(
        context, LogConfig(segment_bytes=600, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=5)
    )
    for number in range(100):
        append(log, (b"%d" % (number % 9), b"%d" % number))
    job = CleanJob(log_to_clean(log, None, clock.now_ms))
    job.run()
    clock.advance(1000)
    log.apply_retention()
    assert not job.finish()
    assert log.log_start_offset == 100
    assert not [name for name in disk.list_dir(log.folder) if "cleaned" in name or "swap" in name]


def test_a_stopped_job_leaves_the_log_as_it_was(context: LogContext, disk: SimDisk) -> None:
    log = sim_log(context, CONFIG)
    for number in range(100):
        append(log, (b"%d" % (number % 9), b"%d" % number))
    before = read_records(log)
    job = CleanJob(log_to_clean(log, None, 0))
    job.stop()
    assert not job.run_and_finish()
    assert read_records(log) == before
    assert not [name for name in disk.list_dir(log.folder) if "cleaned" in name]


def test_damaged_records_are_not_blessed(context: LogContext, disk: SimDisk) -> None:
    log = sim_log(context, CONFIG)
    for number in range(50):
        append(log, (b"%d" % (number % 9), b"%d" % number))
    disk.open(log.segments[1].path(".log")).write_at(100, b"\xff\xff")
    job = CleanJob(log_to_clean(log, None, 0))
    assert not job.run_and_finish()
    assert isinstance(job.error, CorruptRecord)
    assert not log.is_offline


def test_damage_in_the_clean_part_is_not_blessed(context: LogContext, disk: SimDisk) -> None:
    log = sim_log(context, CONFIG)
    for number in range(50):
        append(log, (b"%d" % number, b"%d" % number))
    first = clean(log)
    for number in range(50):
        append(log, (b"%d" % (number % 9), b"%d" % number))
    file = disk.open(log.segments[0].path(".log"))
    file.write_at(file.size - 1, b"\xff")
    job = CleanJob(log_to_clean(log, first.end_offset, 0))
    assert not job.run_and_finish()
    assert isinstance(job.error, CorruptRecord)


def test_a_disk_error_takes_the_log_offline(context: LogContext, disk: SimDisk) -> None:
    log = sim_log(context, CONFIG)
    for number in range(50):
        append(log, (b"%d" % (number % 9), b"%d" % number))
    job = CleanJob(log_to_clean(log, None, 0))
    disk.fail("/data/t-0/", errno.EIO, "append")
    job.run()
    with pytest.raises(StorageError):
        job.finish()
    assert log.is_offline


def test_the_throttle_waits() -> None:
    clock = ManualClock()
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        clock.advance(int(seconds * 1000))

    limit = 1000.0
    throttle = Throttle(lambda: limit, clock, wait)
    for _ in range(50):
        throttle.spend(100)
    assert 4.5 < sum(waits) < 5.1
    limit = sys.float_info.max
    throttle.spend(1 << 40)
    assert len(waits) <= 51


def test_a_new_limit_counts_for_a_wait_under_way() -> None:
    clock = ManualClock()
    waits: list[float] = []
    limit = 1.0

    def wait(seconds: float) -> None:
        nonlocal limit
        waits.append(seconds)
        clock.advance(int(seconds * 1000))
        if len(waits) == 3:
            limit = 1_000_000.0

    Throttle(lambda: limit, clock, wait).spend(1_000_000)
    assert waits == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "long_key",
    [b"a rather long key that is kept not as it is, but as a digest %d", b"the longest that is kept as it is: %012d"],
)
def test_the_offset_map_knows_its_size(long_key: bytes) -> None:
    entries = 22_000  # the dict has just grown: the worst case
    batches = []
    for start in range(0, entries, 1000):
        records = build_batch([(number, 0, long_key % number, b"", ()) for number in range(start, start + 1000)])
        batches.append(read_body(records, 0, read_header(records)))
    tracemalloc.start()
    try:
        newest_offsets = OffsetMap(entries * ENTRY_BYTES, 0)
        for body in batches:
            newest_offsets.put_batch(scan_records(body, 1000, 2**33))
        assert len(newest_offsets.marks_between(2**33, 2**33 + entries)) == entries
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert newest_offsets.is_full
    assert len(long_key % 7) >= SHORT_KEY_BYTES
    assert size <= entries * ENTRY_BYTES
    keys = [long_key % 7, long_key % 7, b"unknown", None]
    mixed = build_batch([(offset, 0, key, b"", ()) for offset, key in zip((1, 7, 8, 9), keys, strict=True)])
    body = read_body(mixed, 0, read_header(mixed))
    assert newest_offsets.are_newest(scan_records(body, 4, 2**33)) == [False, True, True, False]
