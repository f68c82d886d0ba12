"""A turned bit in the length of a batch: whoever reads there is told, and never passes over what follows, nor waits."""

import pytest

from moldau.log import LogConfig, LogContext, PartitionLog
from moldau.log.errors import CorruptRecord
from moldau.records import CorruptBatch, check_crc, read_header
from tests.log.helpers import batch, sim_log
from tests.support.sim_disk import SimDisk

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=150)
BATCHES = 33
LENGTH_AT, LENGTH_BYTES = 8, 4


@pytest.fixture
def log(context: LogContext) -> PartitionLog:
    log = sim_log(context, CONFIG)
    for number in range(BATCHES):
        log.append_as_leader(batch([b"value %d" % number]), leader_epoch=0)
    assert len(log.segments) > 3
    return log


def walk(log: PartitionLog, max_bytes: int) -> tuple[list[int], bool]:
    """As a consumer does: the offsets it was given, and whether it was told of damage."""
    found: list[int] = []
    offset = 0
    while offset < log.log_end_offset:
        try:
            info = log.read(offset, max_bytes)
            assert info.region is not None, f"at {offset} there is nothing to read, and nobody says why"
            data = info.region.read()
            header = read_header(data)
            assert header.size_bytes <= len(data), f"at {offset} half a batch, again and again"
            check_crc(data, 0, header)
        except (CorruptRecord, CorruptBatch):
            return found, True
        found += range(max(offset, header.base_offset), header.next_offset)
        offset = header.next_offset
    return found, False


@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
def test_readers_are_told_and_pass_nothing_over(log: PartitionLog, disk: SimDisk, max_bytes: int) -> None:
    """Every bit of the length of every batch."""
    everything = list(range(BATCHES))
    assert walk(log, max_bytes) == (everything, False)
    for segment in log.segments:
        starts = [position for position, _ in segment.headers()]
        for position in starts:
            for bit in range(LENGTH_BYTES * 8):
                at, mask = position + LENGTH_AT + bit // 8, 1 << bit % 8
                disk.damage(segment.path(".log"), at, mask)
                found, is_told = walk(log, max_bytes)
                assert is_told, f"segment {segment.base_offset}, position {position}, bit {bit}"
                assert found == everything[: len(found)]
                disk.damage(segment.path(".log"), at, mask)


def test_a_truncation_says_that_it_cannot(log: PartitionLog, disk: SimDisk) -> None:
    active = log.segments[-1]
    positions = [position for position, _ in active.headers()]
    assert len(positions) > 1
    disk.damage(active.path(".log"), positions[0] + LENGTH_AT, 0x10)
    with pytest.raises(CorruptRecord):
        log.truncate_to(log.log_end_offset - 1)
