"""Opening what a crash, a bad disk or another program left behind."""

import pytest

from moldau.log import LogConfig, LogContext, PartitionLog, RecoveryReport, open_log
from moldau.log.cleaner.cleanable import log_to_clean
from moldau.log.cleaner.cleaner import CleanJob
from tests.log.helpers import START_MS, batch, read_records, sim_log, values
from tests.support.sim_disk import SimDisk

CONFIG = LogConfig(segment_bytes=800, index_interval_bytes=100)


@pytest.fixture
def log(context: LogContext) -> PartitionLog:
    log = sim_log(context, CONFIG)
    for number in range(60):
        log.append_as_leader(batch([b"%d" % number], START_MS + number), leader_epoch=number // 20)
    log.update_high_watermark(60)
    return log


def reopen(log: PartitionLog, *, recovery_point: int = 0, clean: bool = False) -> tuple[PartitionLog, RecoveryReport]:
    report = RecoveryReport()
    again = open_log(log.context, log.folder, "t", 0, CONFIG, recovery_point=recovery_point, clean=clean, report=report)
    return again, report


@pytest.mark.parametrize("kind", ["garbage", "half a batch", "zeros", "a flipped bit"])
def test_a_torn_tail_is_truncated_and_reported(log: PartitionLog, disk: SimDisk, kind: str) -> None:
    expected = values(log)
    file = disk.open(log.active_segment.path(".log"))
    if kind == "garbage":
        file.append(b"\xa5" * 100)
    elif kind == "zeros":
        file.append(bytes(300))
    elif kind == "half a batch":
        file.append(batch([b"never acknowledged"], base_offset=60)[:-9])
    else:
        file.write_at(file.size - 1, b"\x7f")
        expected = expected[:-1]
    again, report = reopen(log)
    assert values(again) == expected
    assert again.log_end_offset == len(expected)
    assert report.truncated_bytes > 0
    assert "truncated" in report.lines[0]
    assert again.append_as_leader(batch([b"next"]), 3)[0] == len(expected)


def test_damage_in_the_middle_ends_the_log_there(log: PartitionLog, disk: SimDisk) -> None:
    disk.open(log.segments[2].path(".log")).write_at(100, b"\1\2\3\4")
    again, report = reopen(log)
    assert again.log_end_offset <= log.segments[2].base_offset + 1
    assert values(again) == values_below(log, again.log_end_offset)
    assert any("removed" in line for line in report.lines)


def values_below(log: PartitionLog, offset: int) -> list[tuple[int, bytes | None]]:
    return [(o, b"%d" % o) for o in range(offset) if o < log.log_end_offset]


def test_only_segments_from_the_recovery_point_on_are_read(log: PartitionLog, disk: SimDisk) -> None:
    log.close()
    disk.open(log.segments[0].path(".log")).write_at(70, b"\0\0\0\0")  # damage nobody looks at
    again, report = reopen(log, recovery_point=log.segments[-1].base_offset + 1)
    assert again.log_end_offset == 60
    assert report.recovered_segments == 1


def test_after_a_clean_shutdown_nothing_is_read(log: PartitionLog, disk: SimDisk) -> None:
    log.close()
    for segment in log.segments:
        disk.fail(segment.path(".log"))
        disk.fail(segment.path(".index"))
    again, report = reopen(log, recovery_point=60, clean=True)
    assert again.log_end_offset == 60
    assert report.recovered_segments == 0
    disk.heal()
    assert values(again) == [(o, b"%d" % o) for o in range(60)]


@pytest.mark.parametrize("kind", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "zeros", "garbage", "too far", "odd size", "short"])
@pytest.mark.parametrize("clean", [True, False])
def test_an_index_that_lies_is_rebuilt(log: PartitionLog, disk: SimDisk, kind: str, damage: str, clean: bool) -> None:
    """Whether the start sees it (unclean) or only the first lookup (clean): answers are right."""
    log.close()
    for segment in log.segments:
        path = segment.path(kind)
        size = disk.file_size(path)
        if damage == "missing":
            disk.remove(path)
        elif damage == "zeros":
            disk.write_file_atomically(path, bytes(size))
        elif damage == "garbage":
            disk.write_file_atomically(path, bytes(range(1, 1 + size % 250)) * 3)
        elif damage == "odd size":
            disk.write_file_atomically(path, disk.read_file(path)[:-1])
        elif damage == "short":
            disk.write_file_atomically(path, disk.read_file(path)[: size // 24 * 12])
        else:
            disk.write_file_atomically(path, b"\0\0\0\1\0\0\1\0" * (size // 8))
    again, _ = reopen(log, recovery_point=60, clean=clean)
    for offset in range(60):
        assert read_records(again, offset)[0].offset == offset
        found = again.offset_for_timestamp(START_MS + offset)
        assert found is not None
        assert found.offset == offset


def test_offsets_are_never_given_twice_even_if_the_checkpoint_is_too_old(log: PartitionLog) -> None:
    log.close()
    again, _ = reopen(log, recovery_point=55, clean=True)
    assert again.append_as_leader(batch([b"x"]), 3)[0] == 60
    assert len(values(again)) == 61


def test_an_index_without_a_log_is_removed(log: PartitionLog, disk: SimDisk) -> None:
    disk.write_file_atomically(f"{log.folder}/00000000000000009999.index", b"12345678")
    _, report = reopen(log)
    assert not disk.exists(f"{log.folder}/00000000000000009999.index")
    assert any("no log" in line for line in report.lines)


def test_leftovers_are_removed(log: PartitionLog, disk: SimDisk) -> None:
    names = [
        "00000000000000000000.log.deleted",
        "00000000000000000003.snapshot.tmp",
        "00000000000000000000.log.cleaned",
    ]
    for name in names:
        disk.write_file_atomically(f"{log.folder}/{name}", b"x")
    again, _ = reopen(log)
    assert not set(names) & set(disk.list_dir(log.folder))
    assert len(values(again)) == 60


@pytest.mark.parametrize("damage", [b"", b"garbage", b"0\n1\n0 0\n1 20\n"])
def test_damaged_epochs_are_read_from_the_batches(log: PartitionLog, disk: SimDisk, damage: bytes) -> None:
    disk.write_file_atomically(f"{log.folder}/leader-epoch-checkpoint", damage)
    again, _ = reopen(log)
    assert again.epochs.entries == [(0, 0), (1, 20), (2, 40)]
    disk.remove(f"{log.folder}/leader-epoch-checkpoint")
    again, _ = reopen(log)
    assert again.epochs.entries == [(0, 0), (1, 20), (2, 40)]


def test_the_epoch_file_is_written_at_most_once(
    log: PartitionLog, disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = SimDisk.write_file_atomically

    def note(self: SimDisk, path: str, data: bytes, *, flush: bool = True) -> None:
        written.append(path)
        write(self, path, data, flush=flush)

    monkeypatch.setattr(SimDisk, "write_file_atomically", note)
    path = f"{log.folder}/leader-epoch-checkpoint"
    again, _ = reopen(log, recovery_point=30)
    assert again.epochs.entries == [(0, 0), (1, 20), (2, 40)]
    assert path not in written  # it says so already
    assert again.epochs.dirty  # but perhaps not for long: nobody knows whether it was flushed
    write(disk, path, b"0\n3\n0 0\n1 25\n9 70\n")
    again, _ = reopen(log, recovery_point=10)
    assert again.epochs.entries == [(0, 0), (1, 20), (2, 40)]
    assert written.count(path) == 1


def test_an_unreadable_epoch_file_of_an_empty_log_goes(context: LogContext, disk: SimDisk) -> None:
    log = sim_log(context, CONFIG)
    path = f"{log.folder}/leader-epoch-checkpoint"
    disk.write_file_atomically(path, b"nonsense")
    _, report = reopen(log)
    assert report.lines
    assert not disk.exists(path)


def test_epochs_beyond_the_end_are_forgotten(log: PartitionLog, disk: SimDisk) -> None:
    disk.write_file_atomically(f"{log.folder}/leader-epoch-checkpoint", b"0\n3\n0 0\n1 20\n9 70\n")
    again, _ = reopen(log)
    assert again.epochs.entries == [(0, 0), (1, 20), (2, 40)]


def test_a_log_that_ends_before_its_start_begins_anew(log: PartitionLog) -> None:
    again = open_log(log.context, log.folder, "t", 0, CONFIG, log_start_offset=500)
    assert (again.log_start_offset, again.log_end_offset) == (500, 500)


def test_a_hole_between_segments_is_where_the_log_ends(log: PartitionLog, disk: SimDisk) -> None:
    """A crash took the end of one segment and left the next: what follows was not flushed either."""
    second = log.segments[1]
    place = second.find(second.base_offset + 2)
    assert place is not None
    disk.open(second.path(".log")).truncate(place.position)
    again, report = reopen(log)
    assert again.log_end_offset == second.base_offset + 2
    assert any("lost" in line for line in report.lines)


def compact_files(context: LogContext) -> PartitionLog:
    log = sim_log(
        context, LogConfig(segment_bytes=800, index_interval_bytes=100, cleanup_policy=frozenset({"compact"}))
    )
    for number in range(60):
        log.append_as_leader(batch([(b"%d" % (number % 7), b"%d" % number)], START_MS), 1)
    log.update_high_watermark(60)
    return log


def test_a_swap_is_finished(context: LogContext, disk: SimDisk) -> None:
    """The crash came after `.swap` had its name and before the sources were gone."""
    log = compact_files(context)
    before = {record.key: record for record in read_records(log)}
    job = CleanJob(log_to_clean(log, None, START_MS))
    job.run()
    job._cleaned[0].segment.rename(".swap")
    again, report = reopen(log, recovery_point=60)
    assert any("swap" in line for line in report.lines)
    assert {record.key: record for record in read_records(again)} == before
    assert len(read_records(again)) < 60
    assert not [name for name in disk.list_dir(log.folder) if name.endswith(".swap")]


def test_a_half_renamed_swap_is_undone(context: LogContext, disk: SimDisk) -> None:
    """The crash came while `.cleaned` became `.swap`: the log file still has its old name, so the sources count."""
    log = compact_files(context)
    before = read_records(log)
    job = CleanJob(log_to_clean(log, None, START_MS))
    job.run()
    cleaned = job._cleaned[0].segment
    disk.rename(cleaned.path(".index"), cleaned.path(".index").replace(".cleaned", ".swap"))
    again, _ = reopen(log)
    assert read_records(again) == before
    assert not [name for name in disk.list_dir(log.folder) if "swap" in name or "cleaned" in name]


def test_producers_are_rebuilt_from_the_tail(context: LogContext, disk: SimDisk) -> None:
    log = sim_log(context, CONFIG)
    for sequence in range(40):
        log.append_as_leader(batch([b"x"], producer=(7, 0, sequence)), 1)
    assert log.snapshots.offsets
    again, _ = reopen(log)
    assert again.producers.producers[7].last_sequence == 39
    for offset in log.snapshots.offsets:
        disk.remove(log.snapshots.path(offset))
    again, _ = reopen(log)
    assert again.producers.producers[7].last_sequence == 39
    assert again.append_as_leader(batch([b"x"], producer=(7, 0, 39)), 1)[0] == 39
