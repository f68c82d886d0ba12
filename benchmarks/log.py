"""The log beside the bare system calls: what the offsets, indexes, checks and bookkeeping around them cost."""

import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.rows import Row
from moldau.log import LogConfig, LogContext, LogManager, PartitionLog, open_log
from moldau.log.cleanable import log_to_clean
from moldau.log.cleaner import CleanJob
from moldau.log.snapshots import encode
from moldau.records import BatchOptions, build_batch
from moldau.records.batch import HEADER
from moldau.seams import RealDisk, SystemClock, SystemRandom

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ROUNDS = 7
PARTITIONS = 10_000


def best_s(*works: Callable[[], int]) -> list[float]:
    """The shortest time per call of each on a core, in turns. A work returns how many calls it made.

    On a core, not on the wall: the kernel's part of a write or a sendfile counts, other programs on the machine and
    the flusher, which is the disk's speed and nobody's merit, do not."""
    best = [float("inf")] * len(works)
    for _ in range(ROUNDS):
        for index, work in enumerate(works):
            started = time.thread_time()
            calls = work()
            best[index] = min(best[index], (time.thread_time() - started) / calls)
    return best


def append_rows(folder: Path) -> list[Row]:
    rows = []
    for size, count in ((16 * KIB, 400), (128 * KIB, 100), (MIB, 16)):
        log = open_log(LogContext(), f"{folder}/append-{size}", "append", size, LogConfig(max_message_bytes=2 * MIB))
        batch = build_batch([(0, time.time_ns() // 1_000_000, None, os.urandom(size - 80), ())])
        fd = os.open(folder / f"raw-{size}", os.O_RDWR | os.O_CREAT)
        position = 0

        def ours(log: PartitionLog = log, batch: bytearray = batch, count: int = count) -> int:
            nothing = bytes(8)
            for _ in range(count):
                batch[:8] = nothing  # as it came from the client
                log.append_as_leader(batch, 0)
            return count

        def bare(fd: int = fd, batch: bytearray = batch, count: int = count) -> int:
            nonlocal position
            for _ in range(count):
                position += os.pwritev(fd, (batch,), position)
            return count

        with_log, without = best_s(ours, bare)
        os.close(fd)
        target = ">= 0.70x" if size >= 128 * KIB else ""
        name = f"append batches of {size // KIB} KiB"
        rows.append(Row(name, size / with_log / 1e6, "MB/s", {"bare pwritev": size / without / 1e6}, target))
    return rows


DRAIN = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1]))\nwhile s.recv(1 << 20): pass"


def read_rows(folder: Path) -> list[Row]:
    """1 MiB fetches of a 64 MiB log through `sendfile` into a socket that another process drains."""
    config = LogConfig(segment_bytes=16 * MIB)
    log = open_log(LogContext(), f"{folder}/read-0", "read", 0, config)
    batch = build_batch([(index, 0, None, os.urandom(KIB), ()) for index in range(16)])
    while log.size_bytes < 64 * MIB:
        batch[:8] = bytes(8)
        log.append_as_leader(batch, 0)
    near, far = socket.socketpair()
    reader = subprocess.Popen([sys.executable, "-c", DRAIN, str(far.fileno())], pass_fds=[far.fileno()])
    far.close()
    out = near.fileno()
    regions: list[tuple[int, int, int]] = []

    def fetch() -> int:
        regions.clear()
        offset = calls = 0
        while offset < log.log_end_offset:
            region = log.read(offset, MIB).region
            if region is None:
                break
            send(region.file.fileno() or 0, region.position, region.length)
            regions.append((region.file.fileno() or 0, region.position, region.length))
            offset += 1008  # as far as whole batches reach in 1 MiB
            calls += 1
        return calls

    def send(fd: int, position: int, length: int) -> None:
        while length:
            sent = os.sendfile(out, fd, position, length)
            position += sent
            length -= sent

    def bare() -> int:
        for fd, position, length in regions:
            send(fd, position, length)
        return len(regions)

    fetch()
    with_log, without = best_s(fetch, bare)
    near.close()
    reader.wait()
    return [
        Row("read 1 MiB at a time", MIB / with_log / 1e6, "MB/s", {"bare sendfile": MIB / without / 1e6}, ">= 0.70x")
    ]


BATCH_BYTES, BATCH_RECORDS = 4160, 10


def sparse_log(folder: Path, segments: int, offsets: list[int]) -> PartitionLog:
    """A log of `segments` GiB of which only what lookups touch exists: whole indexes, the headers they lead to."""
    name = f"sparse-{segments}"
    (folder / name).mkdir()
    count = GIB // BATCH_BYTES
    entries = [(slot * BATCH_RECORDS + BATCH_RECORDS - 1, slot * BATCH_BYTES) for slot in range(1, count)]
    index = b"".join(struct.pack(">II", *entry) for entry in entries)
    times = b"".join(struct.pack(">qI", slot, entry[0]) for slot, entry in enumerate(entries, 1))
    per_segment = count * BATCH_RECORDS
    wanted: dict[int, set[int]] = {segment: {count - 1} for segment in range(segments)}
    for offset in offsets:
        segment, relative = divmod(offset, per_segment)
        slot = relative // BATCH_RECORDS
        wanted[segment] |= {slot - 1, slot, slot + 1}
    for segment, slots in wanted.items():
        base = segment * per_segment
        path = folder / name / f"{base:020d}"
        path.with_suffix(".index").write_bytes(index)
        path.with_suffix(".timeindex").write_bytes(times)
        with open(path.with_suffix(".log"), "wb") as file:
            file.truncate(count * BATCH_BYTES)
            for slot in slots:
                if 0 <= slot < count:
                    file.seek(slot * BATCH_BYTES)
                    first = base + slot * BATCH_RECORDS
                    length, delta = BATCH_BYTES - 12, BATCH_RECORDS - 1
                    file.write(HEADER.pack(first, length, 0, 2, 0, 0, delta, slot, slot, -1, -1, -1, BATCH_RECORDS))
    end = segments * per_segment
    (folder / name / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (folder / name / f"{end:020d}.snapshot").write_bytes(encode({}))
    return open_log(LogContext(), f"{folder}/{name}", "sparse", segments, LogConfig(), recovery_point=end, clean=True)


def lookup_rows(folder: Path) -> list[Row]:
    per_segment = GIB // BATCH_BYTES * BATCH_RECORDS
    logs = {}
    for segments in (1, 100):
        step = segments * per_segment // 2000
        offsets = [step * number + 7 for number in range(2000)]
        logs[segments] = (sparse_log(folder, segments, offsets), offsets)

    def look_up(segments: int) -> Callable[[], int]:
        log, offsets = logs[segments]

        def work() -> int:
            for offset in offsets:
                log.read(offset, MIB)
            return len(offsets)

        work()
        return work

    small, large = best_s(look_up(1), look_up(100))
    peers = {"1 GiB log": small * 1e6}
    return [Row("look up an offset in a 100 GiB log", large * 1e6, "us", peers, "same", better="lower")]


OPEN = """
import re, sys, time
from moldau.log import LogManager
from moldau.seams import RealDisk, SystemClock, SystemRandom
started = time.perf_counter()
manager = LogManager([sys.argv[1]], disk=RealDisk(), clock=SystemClock(), random=SystemRandom())
manager.open()
took = time.perf_counter() - started
resident_kib = int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1])
print(took, resident_kib / 1024, len(manager.logs))
"""


def new_manager(folder: Path) -> LogManager:
    manager = LogManager([str(folder)], disk=RealDisk(), clock=SystemClock(), random=SystemRandom())
    manager.open()
    return manager


def partition_rows(folder: Path) -> list[Row]:
    """S12: many partitions on one node, in a data folder cleanly closed."""
    data = folder / "many"
    batch = build_batch([(0, time.time_ns() // 1_000_000, None, os.urandom(KIB), ())])
    manager = new_manager(data)
    first = manager.get_or_create("t", 0, topic_id=SystemRandom().uuid())
    first.append_as_leader(batch, 0)
    manager.close()
    for number in range(1, PARTITIONS):
        shutil.copytree(data / "t-0", data / f"t-{number}")
    for name, offset in (("recovery-point-offset-checkpoint", 1), ("replication-offset-checkpoint", 1)):
        rows = "".join(f"t {number} {offset}\n" for number in range(PARTITIONS))
        (data / name).write_text(f"0\n{PARTITIONS}\n{rows}")
    marker = (data / ".kafka_cleanshutdown").read_bytes()
    seconds, megabytes = float("inf"), float("inf")
    for _ in range(3):
        (data / ".kafka_cleanshutdown").write_bytes(marker)
        output = subprocess.run([sys.executable, "-c", OPEN, str(data)], capture_output=True, text=True, check=True)
        took, used, count = map(float, output.stdout.split())
        assert count == PARTITIONS
        seconds, megabytes = min(seconds, took), min(megabytes, used)
    (data / ".kafka_cleanshutdown").write_bytes(marker)
    manager = new_manager(data)
    logs = list(manager.logs.values())

    def append(logs: list[PartitionLog]) -> Callable[[], int]:
        def work() -> int:
            for log in logs:
                batch[:8] = bytes(8)
                log.append_as_leader(batch, 0)
            return len(logs)

        work()
        return work

    few, many = best_s(append(logs[:100] * 10), append(logs))
    return [
        Row("open 10,000 partitions", seconds, "s", {}, "<= 3", better="lower"),
        Row("memory with 10,000 partitions open", megabytes, "MB", {}, "<= 300", better="lower"),
        Row(
            "append 1 KiB to one of 10,000 partitions, in turn",
            many * 1e6,
            "us",
            {"one of 100": few * 1e6},
            "",
            better="lower",
        ),
    ]


def cleaner_rows(folder: Path) -> list[Row]:
    rows = []
    for size in (KIB, 100):
        config = LogConfig(segment_bytes=16 * MIB, cleanup_policy=frozenset({"compact"}))
        log = open_log(LogContext(), f"{folder}/clean-{size}", "clean", size, config)
        count = 16 * KIB // size
        number = 0
        while log.size_bytes < 48 * MIB:
            records = [
                (index, 0, b"key %d" % ((number * count + index) * 7919 % 20_011), os.urandom(size - 20), ())
                for index in range(count)
            ]
            log.append_as_leader(build_batch(records, BatchOptions()), 0)
            number += 1
        log.update_high_watermark(log.log_end_offset)
        log.roll()
        job = CleanJob(log_to_clean(log, None, 0))
        started = time.thread_time()
        assert job.run_and_finish()
        took = time.thread_time() - started
        speed = job.stats.bytes_read / took / 1e6
        target = ">= 50" if size == KIB else ""
        rows.append(Row(f"compact records of {size} B, per core", speed, "MB/s", {}, target))
    return rows


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="moldau-log-bench-") as name:
        folder = Path(name)
        return [
            *append_rows(folder),
            *read_rows(folder),
            *lookup_rows(folder),
            *partition_rows(folder),
            *cleaner_rows(folder),
        ]


if __name__ == "__main__":
    for row in rows():
        print(row)
