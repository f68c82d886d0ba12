"""What other systems lack is done another way: the Linux calls are taken away here; nobody has run this on macOS."""

import errno
import fcntl
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from moldau.net import channel, cold
from moldau.net.channel import PlainChannel
from moldau.seams import disk
from moldau.seams.disk import RealDisk
from moldau.testing import Broker


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system with none of it."""
    for name in ("posix_fallocate", "memfd_create"):
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr(channel, "_sendfile", None)
    monkeypatch.setattr(channel, "_MORE", 0)
    monkeypatch.setattr(cold, "_NOWAIT", None)
    monkeypatch.setattr(disk, "sys", SimpleNamespace(platform="darwin"))


@pytest.mark.usefixtures("elsewhere")
def test_a_broker_serves_and_survives_a_crash(tmp_path: Path) -> None:
    large = [bytes([each]) * 100_000 for each in range(25)]
    with Broker({"log.segment.bytes": 1_048_576}, data_dir=str(tmp_path / "data"), topics={"t": 1}) as broker:
        broker.produce("t", large)
        assert [each.value for each in broker.read("t")] == large
        broker.restart(crash=True)
        assert [each.value for each in broker.read("t")] == large


@pytest.mark.usefixtures("elsewhere")
def test_a_mapped_file_grows_by_zeros(tmp_path: Path) -> None:
    mapped = RealDisk().map(str(tmp_path / "index"), 100)
    mapped.view[:3] = b"abc"
    mapped.resize(200_000)
    assert bytes(mapped.view) == b"abc" + bytes(199_997)
    assert os.stat(tmp_path / "index").st_blocks * 512 >= 200_000, "no holes"
    mapped.close()


@pytest.mark.usefixtures("elsewhere")
def test_a_full_disk_is_noticed_when_an_index_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes, position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    mapped = RealDisk().map(str(tmp_path / "index"), 100)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        mapped.resize(200)
    assert len(mapped.view) == 100
    mapped.close()


@pytest.mark.usefixtures("elsewhere")
def test_a_region_is_sent_without_sendfile(tmp_path: Path) -> None:
    data = os.urandom(600_000)
    (tmp_path / "segment").write_bytes(data)
    file = RealDisk().open(str(tmp_path / "segment"))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        sending, received, position = PlainChannel(ours), bytearray(), 1_000
        while position < len(data):
            try:
                position += sending.send_file(file, position, len(data) - position)
            except BlockingIOError:
                received += theirs.recv(1 << 20)
        while len(received) < len(data) - 1_000:
            received += theirs.recv(1 << 20)
        assert sending.send_file(file, len(data), 10) == 0
    assert received == data[1_000:]
    file.close()


def test_a_flush_reaches_the_medium_where_there_is_a_call_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    synced: list[int] = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, command: asked.append(command))
    monkeypatch.setattr(os, "fsync", synced.append)
    (tmp_path / "file").write_bytes(b"x")
    RealDisk().flush_file(str(tmp_path / "file"))
    assert (asked, synced) == ([51], [])

    def refuse(fd: int, command: int) -> None:
        raise OSError(errno.ENOTTY, "not here")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    RealDisk().flush_file(str(tmp_path / "file"))
    assert len(synced) == 1
