"""Small makers of batches and logs for the tests of this room."""

from collections.abc import Sequence

from moldau.log import LogConfig, LogContext, PartitionLog, open_log
from moldau.log.open_segments import OpenSegments
from moldau.records import (
    BatchOptions,
    Codec,
    EndTransactionMarker,
    Record,
    build_batch,
    build_end_transaction_marker,
    check_crc,
    iter_batches,
    iter_records,
)
from moldau.seams.randomness import SeededRandom
from tests.support.sim_disk import SimDisk

START_MS = 1_700_000_000_000
KeyValue = tuple[bytes | None, bytes | None]


class ManualClock:
    """Time that stands still until told otherwise."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> float:
        return float(self.now_ms)

    def advance(self, ms: int) -> None:
        self.now_ms += ms


def sim_context(disk: SimDisk | None = None, clock: ManualClock | None = None, open_files: int = 64) -> LogContext:
    disk = disk if disk is not None else SimDisk()
    if not disk.exists("/data"):
        disk.make_dirs("/data")
    return LogContext(disk, clock or ManualClock(), SeededRandom(1), OpenSegments(open_files))


def sim_log(context: LogContext, config: LogConfig | None = None, name: str = "t-0") -> PartitionLog:
    topic, _, partition = name.rpartition("-")
    return open_log(context, f"/data/{name}", topic, int(partition), config or LogConfig())


def batch(
    values: Sequence[bytes | KeyValue],
    timestamp: int = START_MS,
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),
    codec: Codec = Codec.NONE,
    transactional: bool = False,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """A batch as a client sends it; `producer` is (id, epoch, first sequence)."""
    pairs: list[KeyValue] = [(None, value) if isinstance(value, bytes) else value for value in values]
    options = BatchOptions(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=transactional,
    )
    return build_batch(
        [(base_offset + index, timestamp, key, value, ()) for index, (key, value) in enumerate(pairs)], options
    )


def marker(
    producer_id: int, epoch: int, *, commit: bool, coordinator_epoch: int = 0, timestamp: int = START_MS
) -> bytearray:
    return build_end_transaction_marker(
        EndTransactionMarker(commit, coordinator_epoch),
        producer_id=producer_id,
        producer_epoch=epoch,
        timestamp_ms=timestamp,
    )


def read_records(log: PartitionLog, offset: int | None = None, max_bytes: int = 1 << 20) -> list[Record]:
    """Every record from `offset` (the log start) to the end, through `read`, checksums checked."""
    offset = log.log_start_offset if offset is None else offset
    found: list[Record] = []
    while offset < log.log_end_offset:
        info = log.read(offset, max_bytes)
        if info.region is None:
            break
        data = info.region.read()
        for position, header in iter_batches(data):
            check_crc(data, position, header)
            if not header.is_control:
                found += [r for r in iter_records(data, position, header) if r.offset >= offset]
            next_offset = header.next_offset
        assert next_offset > offset
        offset = next_offset
    return found


def values(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in read_records(log)]
