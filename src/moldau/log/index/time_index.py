"""The sparse time index: timestamp (8 bytes) to relative offset (4 bytes).

An entry (t, o) says: no record before offset o is younger than t, and the batch ending at o has one of age t. Both
columns only grow, so the first record at or after a point in time is found by a binary search and a short scan.
A segment at rest ends with its largest timestamp: retention by time needs to read nothing else.
"""

import struct
from typing import NamedTuple

from moldau.log.index.index_file import IndexFile
from moldau.seams import Disk

ENTRY_BYTES = 12
NO_TIMESTAMP = -1

_ENTRY = struct.Struct(">qI")
_pack_entry = _ENTRY.pack_into
_read_entry = _ENTRY.unpack_from
_read_key = struct.Struct(">q").unpack_from


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int


class TimeIndex:
    __slots__ = ("_last", "base_offset", "file")

    def __init__(self, disk: Disk, path: str, base_offset: int, max_bytes: int, count: int = 0) -> None:
        self.base_offset = base_offset
        self.file = IndexFile(disk, path, ENTRY_BYTES, max_bytes, count)
        self._last: TimestampOffset | None = None

    @property
    def is_full(self) -> bool:
        """One slot is kept back for the entry that closes the segment."""
        return self.file.count >= self.file.max_entries - 1

    @property
    def last(self) -> TimestampOffset:
        last = self._last
        if last is None:
            count = self.file.count
            last = self._last = self.entry(count - 1) if count else TimestampOffset(NO_TIMESTAMP, self.base_offset)
        return last

    def entry(self, slot: int) -> TimestampOffset:
        timestamp, relative = _read_entry(self.file.view, slot * ENTRY_BYTES)
        return TimestampOffset(timestamp, self.base_offset + relative)

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry unless it would tell nothing new."""
        last = self._last or self.last
        if timestamp <= last[0] or offset < last[1]:
            return
        file = self.file
        count = file.count
        view = file.mapped_view if count < file.capacity else file.reserve()
        _pack_entry(view, count * ENTRY_BYTES, timestamp, offset - self.base_offset)
        file.count = count + 1
        self._last = TimestampOffset(timestamp, offset)

    def lookup(self, timestamp: int) -> TimestampOffset:
        """The last entry at or before `timestamp`; the start of the segment if there is none."""
        slot = self.file.slot_of(timestamp, _read_key)
        return self.entry(slot) if slot >= 0 else TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Forget entries at or above `offset`. Offsets grow with timestamps, so those are the last ones."""
        count = self.file.count
        while count and self.entry(count - 1).offset >= offset:
            count -= 1
        self.file.truncate(count)
        self._last = None

    def reset(self) -> None:
        self.file.truncate(0)
        self._last = None
