"""No descriptor left: refused, nothing changed, nothing offline; and files get what was held back for them."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.log import LogConfig, LogContext, open_log
from moldau.log.errors import OutOfDescriptors
from moldau.log.open_segments import DESCRIPTORS_PER_SEGMENT, default_capacity, raise_descriptor_limit, sockets_max
from moldau.seams import RealDisk
from tests.log.helpers import batch, values
from tests.support.sim_disk import SimDisk


@pytest.fixture
def no_more_descriptors() -> Iterator[list[int]]:
    """All descriptors that a small limit allows are taken, once the test asks for it by `fill`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        yield taken
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def fill(taken: list[int]) -> None:
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))


def test_files_get_the_descriptors_that_were_held_back(tmp_path: Path, no_more_descriptors: list[int]) -> None:
    disk = RealDisk()
    disk.check_descriptors()
    mapped = disk.map(str(tmp_path / "mapped"), 8)
    mapped.view[:] = b"12345678"
    fill(no_more_descriptors)
    file = disk.open(str(tmp_path / "file"))
    file.append(b"x")
    disk.write_file_atomically(str(tmp_path / "other"), b"y")
    mapped.resize(16)
    assert bytes(mapped.view[:8]) == b"12345678"
    kept = []
    with contextlib.suppress(OSError):
        for number in range(100):
            kept.append(disk.open(str(tmp_path / f"{number}")))
    with pytest.raises(OSError, match="Too many open files"):
        disk.check_descriptors()
    with pytest.raises(OSError, match="Too many open files"):
        mapped.resize(24)
    assert bytes(mapped.view[:8]) == b"12345678", "what fails leaves the mapping as it was"
    for each in kept:
        each.close()
    disk.check_descriptors()
    mapped.resize(4)
    assert bytes(mapped.view) == b"1234"
    assert os.path.getsize(tmp_path / "mapped") == 4
    mapped.close()


def test_what_needs_descriptors_is_refused_while_nothing_is_changed(context: LogContext, disk: SimDisk) -> None:
    disk.make_dirs("/data")
    log = open_log(context, "/data/t-0", "t", 0, LogConfig())
    log.append_as_leader(batch([b"a"]), 1)
    disk.is_out_of_descriptors = True
    before = disk.changes
    with pytest.raises(OutOfDescriptors):
        log.append_as_leader(batch([b"b"]), 2)  # a new epoch is written down
    with pytest.raises(OutOfDescriptors):
        log.truncate_to(0)
    assert (log.log_end_offset, log.is_offline, disk.changes) == (1, False, before)
    disk.is_out_of_descriptors = False
    log.append_as_leader(batch([b"b"]), 2)
    assert [value for _, value in values(log)] == [b"a", b"b"]
    again = open_log(LogContext(disk=disk.survived_process()), log.folder, log.topic, log.partition, log.config)
    assert again.log_end_offset == 2


@pytest.mark.parametrize("soft", [256, 1024, 4096, 65536, 1 << 20])
def test_sockets_and_files_fit_into_the_limit(soft: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    capacity = default_capacity()
    assert 0 < sockets_max(capacity) <= soft - capacity * DESCRIPTORS_PER_SEGMENT - 32


class Limits:
    """Of a system that gives at most so many, whatever it calls the hard limit."""

    RLIMIT_NOFILE, RLIM_INFINITY = 0, resource.RLIM_INFINITY

    def __init__(self, soft: int, hard: int, given_max: int) -> None:
        self.soft, self.hard, self.given_max = soft, hard, given_max

    def getrlimit(self, which: int) -> tuple[int, int]:
        return self.soft, self.hard

    def setrlimit(self, which: int, limits: tuple[int, int]) -> None:
        soft, hard = limits
        assert hard == self.hard, "what is given away never comes back"
        if soft == self.RLIM_INFINITY or soft > self.given_max:
            raise ValueError("Invalid argument")
        self.soft = soft


@pytest.mark.parametrize(
    ("soft", "hard", "given_max", "raised"),
    [
        (1_024, 524_288, 1_048_576, 524_288),  # Linux
        (1_024, 1_024, 1_048_576, 1_024),
        (256, resource.RLIM_INFINITY, 10_240, 10_240),  # macOS
        (256, resource.RLIM_INFINITY, 122_880, 65_536),
        (256, resource.RLIM_INFINITY, 300, 256),
        (20_000, resource.RLIM_INFINITY, 20_000, 20_000),
    ],
)
def test_as_many_as_the_system_gives(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, given_max: int, raised: int
) -> None:
    limits = Limits(soft, hard, given_max)
    monkeypatch.setattr("moldau.log.open_segments.resource", limits)
    raise_descriptor_limit()
    assert limits.soft == raised
