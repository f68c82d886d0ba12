"""The three indexes: lookups against a naive model, truncation, pages touched (S2), files byte for byte."""

import struct
from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.log.errors import CorruptIndex
from moldau.log.index import offset_index as offset_index_module
from moldau.log.index.index_file import WARM_BYTES
from moldau.log.index.offset_index import ENTRY_BYTES, OffsetIndex
from moldau.log.index.time_index import TimeIndex, TimestampOffset
from moldau.log.index.txn_index import AbortedTxn, TxnIndex
from tests.support.sim_disk import SimDisk

WARM_ENTRIES = WARM_BYTES // ENTRY_BYTES

PAGE_BYTES = 4096


def make_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_dirs("/d")
    return disk


growing = st.lists(st.integers(1, 50), max_size=60).map(
    lambda steps: [sum(steps[: index + 1]) for index in range(len(steps))]
)


@given(offsets=growing, asked=st.integers(0, 3200), cut=st.integers(0, 3200))
def test_offset_lookup_finds_the_last_entry_at_or_below(offsets: list[int], asked: int, cut: int) -> None:
    index = OffsetIndex(make_disk(), "/d/x.index", 1000, 1 << 20)
    for position, offset in enumerate(offsets):
        index.append(1000 + offset, position * 7)
    at = bisect_right(offsets, asked) - 1
    assert index.lookup(1000 + asked) == (at * 7 if at >= 0 else 0)
    index.truncate_to(1000 + cut)
    assert index.file.count == sum(offset < cut for offset in offsets)


@settings(max_examples=20)
@given(count=st.integers(0, 3 * WARM_ENTRIES), asked=st.floats(0, 1.1))
def test_offset_lookup_in_and_before_the_warm_section(count: int, asked: float) -> None:
    index = OffsetIndex(make_disk(), "/d/x.index", 0, 1 << 20)
    for slot in range(count):
        index.append(slot * 3 + 2, slot)
    target = int(asked * (count * 3))
    expected = max((slot for slot in range(count) if slot * 3 + 2 <= target), default=0)
    assert index.lookup(target) == expected


def pages_touched(index: OffsetIndex, offset: int, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    touched: set[int] = set()
    read_key, read_entry = struct.Struct(">I").unpack_from, struct.Struct(">II").unpack_from

    def counting_key(view: memoryview, at: int) -> tuple[int, ...]:
        touched.add(at // PAGE_BYTES)
        return read_key(view, at)

    def counting_entry(view: memoryview, at: int) -> tuple[int, ...]:
        touched.add(at // PAGE_BYTES)
        return read_entry(view, at)

    with monkeypatch.context() as patch:
        patch.setattr(offset_index_module, "_read_key", counting_key)
        patch.setattr(offset_index_module, "_read_entry", counting_entry)
        index.lookup(offset)
    return touched


def test_recent_lookups_touch_a_constant_number_of_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """S2: however large the index, whoever reads near the end touches its last pages and no others."""
    index = OffsetIndex(make_disk(), "/d/x.index", 0, 64 << 20)
    most = 0
    cold = 0
    for slot in range(300_000):
        index.append(slot * 10, slot)
        if slot % 20_011 == 0 and slot > 4 * WARM_ENTRIES:
            last_page = slot * 8 // PAGE_BYTES
            for recent in range(0, WARM_ENTRIES, 97):
                touched = pages_touched(index, (slot - recent) * 10, monkeypatch)
                most = max(most, len(touched))
                assert min(touched) >= last_page - 3
            cold = max(cold, len(pages_touched(index, slot * 3, monkeypatch)))
    assert most <= 3
    assert cold > most  # an old offset costs more, which is what the warm section avoids


def test_offset_index_file_is_exactly_its_entries() -> None:
    disk = make_disk()
    index = OffsetIndex(disk, "/d/x.index", 100, 1 << 20)
    index.append(105, 0)
    index.append(120, 4200)
    assert disk.file_size("/d/x.index") > 16  # space reserved ahead
    index.file.trim()
    assert disk.read_file("/d/x.index") == struct.pack(">IIII", 5, 0, 20, 4200)
    again = OffsetIndex(disk, "/d/x.index", 100, 1 << 20, count=2)
    assert again.lookup(119) == 0
    assert again.lookup(120) == 4200


def test_a_released_index_is_mapped_again_when_needed() -> None:
    index = OffsetIndex(make_disk(), "/d/x.index", 0, 1 << 20)
    for slot in range(1000):
        index.append(slot, slot)
        if slot % 100 == 0:
            index.file.release()
    assert [index.entry(slot) for slot in range(1000)] == [(slot, slot) for slot in range(1000)]


def test_an_index_is_full_at_its_limit() -> None:
    index = OffsetIndex(make_disk(), "/d/x.index", 0, 24)
    times = TimeIndex(make_disk(), "/d/x.timeindex", 0, 36)
    full = []
    for slot in range(3):
        index.append(slot, slot)
        times.maybe_append(slot + 1, slot + 1)
        full.append((index.is_full, times.is_full))
    # The last slot of a time index is for the entry that closes the segment.
    assert full == [(False, False), (False, True), (True, True)]
    assert times.last == TimestampOffset(3, 3)


@given(steps=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), max_size=40), asked=st.integers(-5, 900))
def test_time_lookup(steps: list[tuple[int, int]], asked: int) -> None:
    index = TimeIndex(make_disk(), "/d/x.timeindex", 50, 1 << 20)
    kept: list[TimestampOffset] = []
    timestamp, offset = 0, 50
    for later, further in steps:
        timestamp, offset = timestamp + later, offset + further
        index.maybe_append(timestamp, offset)
        if timestamp > (kept[-1].timestamp if kept else -1):
            kept.append(TimestampOffset(timestamp, offset))
    expected = [entry for entry in kept if entry.timestamp <= asked]
    assert index.lookup(asked) == (expected[-1] if expected else TimestampOffset(-1, 50))
    assert index.last == (kept[-1] if kept else TimestampOffset(-1, 50))
    index.truncate_to(50 + asked)
    assert index.file.count == sum(entry.offset < 50 + asked for entry in kept)


def test_txn_index_collects_what_overlaps_and_knows_when_to_stop() -> None:
    disk = make_disk()
    index = TxnIndex(disk, "/d/x.txnindex", 0)
    entries = [AbortedTxn(1, 0, 10, 11), AbortedTxn(2, 5, 20, 21), AbortedTxn(3, 30, 40, 41)]
    assert not disk.exists("/d/x.txnindex")  # no aborts, no file
    for entry in entries:
        index.append(entry)
    assert index.collect(0, 9) == (entries[:1], True)
    assert index.collect(12, 25) == (entries[1:2], True)
    assert index.collect(0, 100) == (entries, False)
    assert index.collect(21, 30) == ([], True)
    assert disk.read_file("/d/x.txnindex") == b"".join(struct.pack(">hqqqq", 0, *entry) for entry in entries)
    again = TxnIndex(disk, "/d/x.txnindex", 0, exists=True)
    again.append(AbortedTxn(4, 45, 50, 51))
    assert again.entries == [*entries, AbortedTxn(4, 45, 50, 51)]
    again.truncate_to(40)
    assert again.entries == entries[:2]
    assert disk.file_size("/d/x.txnindex") == 2 * 34


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">hqqqq", 1, 1, 0, 10, 11),  # a version we do not know
        struct.pack(">hqqqq", 0, 1, 0, 10, 11) * 2,  # offsets do not grow
        struct.pack(">hqqqq", 0, 1, 0, 3, 4),  # ends before the segment begins
        struct.pack(">hqqqq", 0, -1, 0, 10, 11),  # nobody's
        struct.pack(">hqqqq", 0, 1, 256, 10, 11),  # begins after its end
        struct.pack(">hqqqq", 0, 1, -1, 10, 11),
        struct.pack(">hqqqq", 0, 1, 0, 10, 12),  # was stable beyond its end
        struct.pack(">hqqqq", 0, 1, 0, 10, -1),
    ],
)
def test_txn_index_that_contradicts_itself(data: bytes) -> None:
    disk = make_disk()
    disk.write_file_atomically("/d/x.txnindex", data)
    with pytest.raises(CorruptIndex):
        _ = TxnIndex(disk, "/d/x.txnindex", 5, exists=True).entries
