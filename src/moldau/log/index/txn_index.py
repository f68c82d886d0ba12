"""The index of aborted transactions: who, from where to where, and the last stable offset once it was decided.

Entries are in the order of their markers, so `last_offset` only grows. A fetch with read_committed collects the
entries that overlap what it returns; it may stop at the first one whose last stable offset is past its end, because
every later entry belongs to a transaction that began at or after that offset. No aborts, no file.
"""

import struct
from bisect import bisect_left
from operator import attrgetter
from typing import NamedTuple

from moldau.log.errors import CorruptIndex
from moldau.seams import Disk, DiskFile

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
_last_offset = attrgetter("last_offset")


class AbortedTxn(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TxnIndex:
    __slots__ = ("_disk", "_entries", "_file", "base_offset", "exists", "path")

    def __init__(self, disk: Disk, path: str, base_offset: int, *, exists: bool = False) -> None:
        self._disk = disk
        self.path = path
        self.base_offset = base_offset
        self.exists = exists
        self._entries: list[AbortedTxn] | None = None if exists else []
        self._file: DiskFile | None = None

    @property
    def entries(self) -> list[AbortedTxn]:
        """All entries, read once and kept: aborts are rare."""
        if self._entries is None:
            self._entries = self._read()
        return self._entries

    def _read(self) -> list[AbortedTxn]:
        data = self._disk.read_file(self.path)
        entries: list[AbortedTxn] = []
        for version, *fields in _ENTRY.iter_unpack(data[: len(data) - len(data) % _ENTRY.size]):
            entry = AbortedTxn._make(fields)
            grows = not entries or entry.last_offset > entries[-1].last_offset
            if version != _VERSION or not grows or not self._may_be(entry):
                raise CorruptIndex(f"transaction index {self.path} contradicts itself at entry {len(entries)}")
            entries.append(entry)
        return entries

    def _may_be(self, entry: AbortedTxn) -> bool:
        """The file has no checksum: what cannot be so is all that can be told."""
        producer_id, first_offset, last_offset, last_stable_offset = entry
        return (
            producer_id >= 0
            and 0 <= first_offset <= last_offset
            and last_offset >= self.base_offset
            and 0 <= last_stable_offset <= last_offset + 1
        )

    def append(self, entry: AbortedTxn) -> None:
        entries = self.entries  # read before the file grows
        if self._file is None:
            self._file = self._disk.open(self.path)
            self.exists = True
        self._file.append(_ENTRY.pack(_VERSION, *entry))
        entries.append(entry)

    def collect(self, fetch_offset: int, upper_bound_offset: int) -> tuple[list[AbortedTxn], bool]:
        """The aborted transactions overlapping [fetch_offset, upper_bound_offset), and whether later segments can
        have no more of them."""
        found = []
        entries = self.entries
        for index in range(bisect_left(entries, fetch_offset, key=_last_offset), len(entries)):
            entry = entries[index]
            if entry.first_offset < upper_bound_offset:
                found.append(entry)
            if entry.last_stable_offset >= upper_bound_offset:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Forget entries whose marker is at or above `offset`."""
        kept = [entry for entry in self.entries if entry.last_offset < offset]
        if len(kept) < len(self.entries):
            self._keep_only(kept)

    def reset(self) -> None:
        if self.exists:
            self._keep_only([])

    def _keep_only(self, kept: list[AbortedTxn]) -> None:
        if self._file is None:
            self._file = self._disk.open(self.path)
        self._file.truncate(len(kept) * _ENTRY.size)
        self._entries = kept

    def flush(self) -> None:
        if self.exists:
            self._disk.flush_file(self.path)

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def moved(self, path: str) -> None:
        self.path = path
        self.release()
