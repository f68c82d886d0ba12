"""Compaction and transactions: whatever is open, committed or aborted, a read_committed reader always finds the newest
committed value of every key, and nothing that was aborted."""

import random

import pytest

from moldau.log import AppendOrigin, LogConfig, LogContext, PartitionLog, open_log
from moldau.log.cleaner.cleanable import log_to_clean
from moldau.log.cleaner.cleaner import CleanJob
from moldau.log.cleaner.offset_map import ENTRY_BYTES
from moldau.records import iter_batches, iter_records
from tests.log.helpers import ManualClock, batch, marker, read_records, sim_log

CONFIG = LogConfig(
    segment_bytes=600, index_interval_bytes=100, cleanup_policy=frozenset({"compact"}), delete_retention_ms=1000
)
Committed = dict[bytes | None, tuple[int, bytes | None]]


def read_committed(log: PartitionLog) -> Committed:
    """The newest value of every key with its offset, as a client with read_committed finds them."""
    found: Committed = {}
    offset, stable = log.log_start_offset, log.last_stable_offset
    while offset < stable:
        info = log.read(offset, 2000, upper_bound_offset=stable)
        if info.region is None:
            break
        data = info.region.read()
        batches = list(iter_batches(data))
        aborted = sorted(log.aborted_transactions(offset, batches[-1][1].next_offset), key=lambda txn: txn.first_offset)
        ongoing: set[int] = set()
        for position, header in batches:
            while aborted and aborted[0].first_offset <= header.last_offset:
                ongoing.add(aborted.pop(0).producer_id)
            if header.is_control:
                ongoing.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in ongoing):
                for record in iter_records(data, position, header):
                    if record.offset >= offset:
                        found[record.key] = (record.offset, record.value)
        offset = batches[-1][1].next_offset
    return found


class Writer:
    """Producers with and without transactions, and what is committed."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.sequences: dict[int, int] = {}
        self.open: dict[int, list[tuple[int, bytes, bytes]]] = {}
        self._committed: list[tuple[int, bytes, bytes]] = []

    def plain(self, key: bytes, value: bytes) -> None:
        self._committed.append((self.log.log_end_offset, key, value))
        self.log.append_as_leader(batch([(key, value)]), 1)
        self.log.update_high_watermark(self.log.log_end_offset)

    def write(self, producer_id: int, key: bytes, value: bytes) -> None:
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + 1
        self.open.setdefault(producer_id, []).append((self.log.log_end_offset, key, value))
        data = batch([(key, value)], producer=(producer_id, 0, sequence), transactional=True)
        self.log.append_as_leader(data, 1)
        self.log.update_high_watermark(self.log.log_end_offset)

    def end(self, producer_id: int, *, commit: bool) -> None:
        written = self.open.pop(producer_id)
        if commit:
            self._committed += written
        self.log.append_as_leader(marker(producer_id, 0, commit=commit), 1, AppendOrigin.COORDINATOR)
        self.log.update_high_watermark(self.log.log_end_offset)

    def expected(self) -> Committed:
        """The newest committed values, but for what an open transaction keeps readers from."""
        stable = self.log.last_stable_offset
        return {key: (offset, value) for offset, key, value in sorted(self._committed) if offset < stable}


def clean(log: PartitionLog, checkpoint: int | None = None, memory_bytes: int = 1 << 20) -> int:
    target = log_to_clean(log, checkpoint, log.context.clock.wall_ms())
    if not target.cleanable_bytes:
        return target.first_dirty_offset
    job = CleanJob(target, memory_bytes=memory_bytes)
    assert job.run_and_finish(), job.error
    return job.end_offset


def test_a_committed_value_overwritten_in_an_open_transaction_stays(context: LogContext) -> None:
    """Both in one segment, which therefore holds the last stable offset; the transaction is aborted later."""
    log = sim_log(context, CONFIG)
    writer = Writer(log)
    writer.plain(b"k", b"committed")
    writer.write(5, b"k", b"open")
    log.roll()
    for number in range(20):
        writer.plain(b"other %d" % (number % 3), b"%d" % number)
    clean(log)
    assert (b"k", b"committed") in [(record.key, record.value) for record in read_records(log)]
    assert read_committed(log) == writer.expected()
    writer.end(5, commit=False)
    clean(log)
    found = read_committed(log)
    assert found == writer.expected()
    assert found[b"k"][1] == b"committed"


@pytest.mark.parametrize("lag_segments", [0, 1, 2])
def test_the_segment_with_the_first_unstable_offset_is_where_cleaning_ends(
    context: LogContext, lag_segments: int
) -> None:
    log = sim_log(context, CONFIG)
    writer = Writer(log)
    for number in range(30):
        writer.plain(b"k", b"%d" % number)
    writer.write(5, b"k", b"open")
    holding = log.active_segment
    for _ in range(lag_segments):
        log.roll()
        writer.plain(b"k", b"later")
    target = log_to_clean(log, None, 0)
    assert target.first_uncleanable_offset == holding.base_offset <= log.last_stable_offset
    clean(log)
    assert holding in log.segments
    assert holding.size


def test_the_segment_with_the_high_watermark_is_where_cleaning_ends(context: LogContext) -> None:
    log = sim_log(context, CONFIG)
    for number in range(30):
        log.append_as_leader(batch([(b"k", b"%d" % number)]), 1)
    segment = log.segments[2]
    log.update_high_watermark(segment.base_offset + 1)
    assert log_to_clean(log, None, 0).first_uncleanable_offset == segment.base_offset
    log.update_high_watermark(segment.base_offset)
    assert log_to_clean(log, None, 0).first_uncleanable_offset == segment.base_offset


def test_a_transaction_aborted_before_the_dirty_part_says_nothing_about_the_next(context: LogContext) -> None:
    """Both of one producer and in one segment; the dirty part begins between them. The second one is committed."""
    log = sim_log(context, LogConfig(segment_bytes=5000, index_interval_bytes=10, cleanup_policy=CONFIG.cleanup_policy))
    writer = Writer(log)
    writer.write(5, b"a", b"aborted")
    writer.end(5, commit=False)
    dirty = log.log_end_offset
    writer.plain(b"k", b"old")
    writer.write(5, b"k", b"newest")
    writer.end(5, commit=True)
    log.roll()
    writer.plain(b"z", b"z")
    clean(log, dirty)
    assert read_committed(log) == writer.expected()


@pytest.mark.parametrize("memory_bytes", [1 << 20, 7 * ENTRY_BYTES])
@pytest.mark.parametrize("seed", range(12))
def test_read_committed_always_finds_the_newest_committed_value(
    context: LogContext, clock: ManualClock, seed: int, memory_bytes: int
) -> None:
    chance = random.Random(seed)
    log = sim_log(context, CONFIG)
    writer = Writer(log)
    checkpoint: int | None = None
    for number in range(160):
        key, value, producer_id = b"%d" % chance.randint(0, 6), b"%d" % number, chance.randint(1, 3)
        action = chance.random()
        if action < 0.2:
            writer.plain(key, value)
        elif action < 0.75:
            writer.write(producer_id, key, value)
        elif producer_id in writer.open:
            writer.end(producer_id, commit=chance.random() < 0.5)
        if chance.random() < 0.05:
            log.roll()
        if chance.random() < 0.15:
            clock.advance(chance.choice((0, 300, 2000)))
            checkpoint = clean(log, checkpoint, memory_bytes)
            assert read_committed(log) == writer.expected()
    for producer_id in list(writer.open):
        writer.end(producer_id, commit=False)
    log.roll()
    writer.plain(b"last", b"x")
    for _ in range(3):
        checkpoint = clean(log, checkpoint)
        assert read_committed(log) == writer.expected()
        clock.advance(2000)
    log.close()
    again = open_log(context, log.folder, "t", 0, CONFIG, recovery_point=log.log_end_offset)
    again.update_high_watermark(again.log_end_offset)
    assert read_committed(again) == writer.expected()
