"""A disk for data that is deleted when the test ends: the real one, without waiting for anything to be durable, and
full when the test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.seams.disk import Buffer, RealDisk, RealFile, RealMappedFile

if TYPE_CHECKING:
    from moldau.testing.faults import Faults


class FillableDisk(RealDisk):
    """The real disk, until `faults` say that it is full."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults

    def open(self, path: str, *, create: bool = True) -> RealFile:
        file = _FillableFile(self._descriptors, path, create=create)
        file.faults = self._faults
        return file

    def map(self, path: str, size: int) -> RealMappedFile:
        self._check(path)
        return super().map(path, size)

    def write_file_atomically(self, path: str, data: bytes, *, flush: bool = True) -> None:
        self._check(path)
        super().write_file_atomically(path, data, flush=flush)

    def make_dir(self, path: str) -> None:
        self._check(path)
        super().make_dir(path)

    def _check(self, path: str) -> None:
        if self._faults.is_disk_full:
            raise self._faults.disk_error(path)


class _FillableFile(RealFile):
    __slots__ = ("faults",)
    faults: Faults

    def append(self, data: Buffer) -> None:
        if self.faults.is_disk_full:
            raise self.faults.disk_error(self.path)
        super().append(data)


class ThrowawayDisk(FillableDisk):
    """Nothing here needs to survive a power loss, and an fsync takes longer than most tests."""

    def write_file_atomically(self, path: str, data: bytes, *, flush: bool = True) -> None:
        super().write_file_atomically(path, data, flush=False)

    def flush_file(self, path: str) -> None:
        """Not needed."""

    def flush_dir(self, path: str) -> None:
        """Not needed."""

    def flush_volume(self, path: str) -> None:
        """Not needed."""
