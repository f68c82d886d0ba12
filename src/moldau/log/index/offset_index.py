"""The sparse offset index: relative offset (4 bytes) to file position (4 bytes), one entry every few KiB of log.

An entry names the last offset of a batch and where that batch starts, so the scan for an offset starts at the entry
at or below it and finds the batch within `index.interval.bytes`. Entries only grow.
"""

import struct
from bisect import bisect_left, bisect_right

from moldau.log.index.index_file import IndexFile
from moldau.seams import Disk

ENTRY_BYTES = 8
MAX_RELATIVE_OFFSET = 2**31 - 1

_ENTRY = struct.Struct(">II")
pack_entry = _ENTRY.pack_into
_read_entry = _ENTRY.unpack_from
_read_key = struct.Struct(">I").unpack_from


class OffsetIndex:
    __slots__ = ("base_offset", "file")

    def __init__(self, disk: Disk, path: str, base_offset: int, max_bytes: int, count: int = 0) -> None:
        self.base_offset = base_offset
        self.file = IndexFile(disk, path, ENTRY_BYTES, max_bytes, count)

    @property
    def is_full(self) -> bool:
        return self.file.count >= self.file.max_entries

    def append(self, offset: int, position: int) -> None:
        file = self.file
        count = file.count
        view = file.mapped_view if count < file.capacity else file.reserve()
        pack_entry(view, count * ENTRY_BYTES, offset - self.base_offset, position)
        file.count = count + 1

    def lookup(self, offset: int) -> int:
        """The position to scan from to find `offset`: of the last indexed batch ending at or below it, or 0."""
        return self.bounds(offset)[0]

    def bounds(self, offset: int) -> tuple[int, int]:
        """Between which positions the batch holding `offset` begins, both included; -1 if there is no upper one."""
        file = self.file
        slot = file.slot_of(offset - self.base_offset, _read_key)
        lower: int = _read_entry(file.view, slot * ENTRY_BYTES)[1] if slot >= 0 else 0
        slot += 1
        return lower, _read_entry(file.view, slot * ENTRY_BYTES)[1] if slot < file.count else -1

    def entry(self, slot: int) -> tuple[int, int]:
        relative, position = _read_entry(self.file.view, slot * ENTRY_BYTES)
        return self.base_offset + relative, position

    def position_before(self, position: int) -> int:
        """Where the last indexed batch at or before `position` begins, or 0."""
        slot = bisect_right(range(self.file.count), position, key=lambda slot: self.entry(slot)[1]) - 1
        return self.entry(slot)[1] if slot >= 0 else 0

    def first_offset_from(self, position: int) -> int | None:
        """An offset that batches before `position` do not reach: the last of the first indexed batch from there on."""
        slot = bisect_left(range(self.file.count), position, key=lambda slot: self.entry(slot)[1])
        return self.entry(slot)[0] if slot < self.file.count else None

    def truncate_to(self, offset: int) -> None:
        """Forget entries at or above `offset`."""
        slot = self.file.slot_of(offset - self.base_offset, _read_key)
        if slot >= 0 and self.entry(slot)[0] == offset:
            slot -= 1
        self.file.truncate(slot + 1)
