"""The log beside the bare system calls: what the offsets, indexes, checks and bookkeeping around them cost.

Both sides make the same calls with the same bytes. They take turns many times in a round, so that the page cache, the
flusher and the neighbours on the machine meet both alike; each round gives one ratio. Shown is the median round, with
the smallest and the largest ratio in brackets, on two clocks: the wall's, which has the disk and everybody else in it,
and the thread's own time on a core, the kernel's part of the call included.
"""

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
from statistics import median

from benchmarks.rows import Row
from moldau.log import LogConfig, LogContext, LogManager, PartitionLog, open_log
from moldau.log.cleaner.cleanable import log_to_clean
from moldau.log.cleaner.cleaner import CleanJob
from moldau.log.producers.snapshots import encode
from moldau.records import BatchOptions, build_batch
from moldau.records.batch import HEADER
from moldau.seams import RealDisk, SystemClock, SystemRandom

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ROUNDS = 11
TURNS = 5  # of each side in a round
PARTITIONS = 10_000
OPENINGS = 3
CLEANINGS = 5
Work = Callable[[], int]  # returns how many calls it made
CLOCKS = {"wall time": time.perf_counter, "CPU time": time.thread_time}


def compare(*works: Work) -> dict[str, list[list[float]]]:
    """Seconds per call by clock, then by round, of each work."""
    rounds: dict[str, list[list[float]]] = {name: [] for name in CLOCKS}
    for _ in range(ROUNDS):
        spent = {name: [0.0] * len(works) for name in CLOCKS}
        calls = [0] * len(works)
        for _ in range(TURNS):
            for index, work in enumerate(works):
                started = {name: clock() for name, clock in CLOCKS.items()}
                calls[index] += work()
                for name, clock in CLOCKS.items():
                    spent[name][index] += clock() - started[name]
        for name in CLOCKS:
            rounds[name].append([seconds / count for seconds, count in zip(spent[name], calls, strict=True)])
    return rounds


def throughput_rows(
    name: str, size: int, bare_name: str, ours: Callable[[], int], bare: Callable[[], int]
) -> list[Row]:
    rows = []
    for clock, rounds in compare(ours, bare).items():
        ratios = [without / with_log for with_log, without in rounds]
        with_log, without = sorted(rounds, key=lambda pair: pair[1] / pair[0])[len(rounds) // 2]
        shown = f"{name}, {clock} ({min(ratios):.2f}-{max(ratios):.2f}x)"
        rows.append(Row(shown, size / with_log / 1e6, "MB/s", {bare_name: size / without / 1e6}, ">= 0.70x"))
    return rows


def append_rows(folder: Path) -> list[Row]:
    rows = []
    for size, count in ((16 * KIB, 100), (128 * KIB, 25), (MIB, 4)):
        log = open_log(LogContext(), f"{folder}/append-{size}", "append", size, LogConfig(max_message_bytes=2 * MIB))
        # A view, as the broker hands over a piece of the request it received.
        batch = memoryview(build_batch([(0, time.time_ns() // 1_000_000, None, os.urandom(size - 80), ())]))
        fd = os.open(folder / f"raw-{size}", os.O_RDWR | os.O_CREAT)
        position = 0

        def ours(log: PartitionLog = log, batch: memoryview = batch, count: int = count) -> int:
            nothing = bytes(8)
            for _ in range(count):
                batch[:8] = nothing  # as it came from the client
                log.append_as_leader(batch, 0)
            return count

        def bare(fd: int = fd, batch: memoryview = batch, count: int = count) -> int:
            nonlocal position
            nothing = bytes(8)
            for _ in range(count):
                batch[:8] = nothing  # so that the log is not charged for the benchmark's own step
                position += os.pwrite(fd, batch, position)
            return count

        rows += throughput_rows(f"append batches of {size // KIB} KiB", size, "bare pwrite", ours, bare)
        os.close(fd)
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
    rows = throughput_rows("read 1 MiB at a time", MIB, "bare sendfile", fetch, bare)
    near.close()
    reader.wait()
    return rows


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
    step = per_segment // 2000
    in_first = [step * number + 7 for number in range(2000)]
    in_last = [99 * per_segment + offset for offset in in_first]
    anywhere = [100 * offset for offset in in_first]
    small, large = sparse_log(folder, 1, in_first), sparse_log(folder, 100, in_last + anywhere)

    def look_up(log: PartitionLog, offsets: list[int]) -> Callable[[], int]:
        def work() -> int:
            for offset in offsets:
                log.read(offset, MIB)
            return len(offsets)

        work()
        return work

    rows = []
    works = (look_up(small, in_first), look_up(large, in_last), look_up(large, anywhere))
    for clock, rounds in compare(*works).items():
        in_small, in_one, in_all = (median(column) * 1e6 for column in zip(*rounds, strict=True))
        for where, took in (("in one GiB", in_one), ("anywhere", in_all)):  # anywhere: a hundred indexes in the caches
            name = f"look up an offset in a 100 GiB log, {where}, {clock}"
            rows.append(Row(name, took, "us", {"1 GiB log": in_small}, "same", better="lower"))
    return rows


OPEN = """
import re, sys, time
from moldau.log import LogManager
from moldau.seams import RealDisk, SystemClock, SystemRandom
started, started_cpu = time.perf_counter(), time.process_time()
manager = LogManager([sys.argv[1]], disk=RealDisk(), clock=SystemClock(), random=SystemRandom())
manager.open()
took, took_cpu = time.perf_counter() - started, time.process_time() - started_cpu
resident_kib = int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1])
print(took, took_cpu, resident_kib / 1024, len(manager.logs))
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
    runs = []
    for _ in range(OPENINGS):
        (data / ".kafka_cleanshutdown").write_bytes(marker)
        output = subprocess.run([sys.executable, "-c", OPEN, str(data)], capture_output=True, text=True, check=True)
        *run, count = map(float, output.stdout.split())
        assert count == PARTITIONS
        runs.append(run)
    walls, cpus, megabytes = zip(*runs, strict=True)
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

    rounds = compare(append(logs[:100] * 10), append(logs))["CPU time"]
    few, many = (median(times) for times in zip(*rounds, strict=True))
    opened = "open 10,000 partitions"
    wall_range, cpu_range = (f"{min(times):.1f}-{max(times):.1f} s" for times in (walls, cpus))
    return [
        Row(f"{opened}, wall time ({wall_range})", median(walls), "s", {}, "<= 3", better="lower"),
        Row(f"{opened}, CPU time ({cpu_range})", median(cpus), "s", {}, "<= 3", better="lower"),
        Row("memory with 10,000 partitions open", max(megabytes), "MB", {}, "<= 300", better="lower"),
        Row(
            "append 1 KiB to one of 10,000 partitions in turn, CPU time",
            many * 1e6,
            "us",
            {"one of 100": few * 1e6},
            better="lower",
        ),
    ]


# Record bytes, records in a batch, different keys (None: no key twice).
CLEANED = ((KIB, 16, 20_011), (KIB, 16, None), (100, 160, 20_011), (100, 160, None), (100, 1, 20_011))


def cleaner_rows(folder: Path) -> list[Row]:
    """All of the log is new, so every key is looked at; the time is the cleaner thread's own on a core."""
    rows = []
    for size, count, keys in CLEANED:
        speeds = [clean(folder, size, count, keys) for _ in range(CLEANINGS)]
        what = "no key twice" if keys is None else f"{keys:,} keys"
        what += ", one record per batch" if count == 1 else ""
        name = f"compact records of {size} B, per core, CPU time ({what}; {min(speeds):.0f}-{max(speeds):.0f})"
        rows.append(Row(name, median(speeds), "MB/s", {}, ">= 50"))
    return rows


def clean(folder: Path, size: int, count: int, keys: int | None) -> float:
    """Megabytes a second."""
    config = LogConfig(segment_bytes=8 * MIB, cleanup_policy=frozenset({"compact"}))
    log = open_log(LogContext(), f"{folder}/clean-0", "clean", 0, config)
    values = os.urandom(size + 64 * KIB)
    written = 0
    while log.size_bytes < (24 * MIB if count > 1 else 6 * MIB):
        records = []
        for index in range(count):
            key = written if keys is None else written * 7919 % keys
            at = written % (64 * KIB)
            records.append((index, 0, b"key %d" % key, values[at : at + size - 20], ()))
            written += 1
        log.append_as_leader(build_batch(records, BatchOptions()), 0)
    log.update_high_watermark(log.log_end_offset)
    log.roll()
    job = CleanJob(log_to_clean(log, None, 0))
    started = time.thread_time()
    assert job.run_and_finish()
    took = time.thread_time() - started
    log.release()
    shutil.rmtree(log.folder)
    return job.stats.bytes_read / took / 1e6


def rows() -> list[Row]:
    found = []
    for measure in (append_rows, read_rows, lookup_rows, partition_rows, cleaner_rows):
        with tempfile.TemporaryDirectory(prefix="moldau-log-bench-") as name:
            found += measure(Path(name))
    return found


if __name__ == "__main__":
    for row in rows():
        print(row)
