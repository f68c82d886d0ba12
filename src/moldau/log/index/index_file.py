"""Fixed-size entries in a mapped file: what the offset index and the time index have in common.

The file is mapped when it is first looked at, and may be unmapped again at any time between two calls: `count` is
kept in memory, so an idle partition costs neither a descriptor nor a mapping. While a segment is active its index
files are larger than their entries (space is reserved ahead, in doubling steps, so that a full disk is an error
before the records are written); `trim` shortens them to size, and a trimmed file is exactly its entries, as in Kafka.

Entries grow by their first field, the key. A lookup is a binary search that tries the last 8 KiB of entries first (the
warm section): consumers read near the end, so those pages are in memory, while a plain binary search would touch a few
cold ones whenever the midpoints move.
"""

from collections.abc import Callable
from typing import Any

from moldau.seams import Disk, MappedFile

_FIRST_RESERVE_BYTES = 4096
WARM_BYTES = 8192
_NOTHING = memoryview(b"")


class IndexFile:
    __slots__ = ("_disk", "_mapped", "capacity", "count", "entry_bytes", "mapped_view", "max_entries", "path")

    def __init__(self, disk: Disk, path: str, entry_bytes: int, max_bytes: int, count: int) -> None:
        self._disk = disk
        self._mapped: MappedFile | None = None
        self.path = path
        self.entry_bytes = entry_bytes
        self.max_entries = max_bytes // entry_bytes
        self.count = count
        self.capacity = 0  # entries that fit into the mapping
        self.mapped_view = _NOTHING  # the mapping, while there is one

    @property
    def view(self) -> memoryview:
        """The mapped bytes; entries beyond `count` are reserve."""
        if self._mapped is None and self.count:
            self._map(self.count * self.entry_bytes)
        return self.mapped_view

    def _map(self, size: int) -> None:
        """Map the file, growing or shortening it to `size`."""
        if self._mapped is None:
            self._mapped = self._disk.map(self.path, size)
        else:
            self._mapped.resize(size)
        self.mapped_view = self._mapped.view
        self.capacity = size // self.entry_bytes

    def reserve(self, entries: int = 1) -> memoryview:
        """Make room for more entries, as far as there may be more; OSError if the disk is full. The view of them."""
        needed = min(self.count + entries, max(self.max_entries, self.count + 1)) * self.entry_bytes
        view = self.view
        if len(view) < needed:
            limit = self.max_entries * self.entry_bytes
            size = max(needed, min(limit, max(_FIRST_RESERVE_BYTES, 2 * len(view))))
            size -= size % self.entry_bytes
            self._map(size)
        return self.mapped_view

    def slot_of(self, key: int, read_key: Callable[[memoryview, int], tuple[Any, ...]]) -> int:
        """The last slot whose key is at or below the given one; -1 if there is none."""
        count = self.count
        if not count:
            return -1
        view, entry_bytes = self.view, self.entry_bytes
        warm = count - 1 - WARM_BYTES // entry_bytes
        if warm < 0 or read_key(view, warm * entry_bytes)[0] <= key:
            low, high = max(warm, 0), count - 1
        else:
            low, high = 0, warm - 1
        if read_key(view, low * entry_bytes)[0] > key:
            return -1
        while low < high:
            middle = (low + high + 1) >> 1
            if read_key(view, middle * entry_bytes)[0] > key:
                high = middle - 1
            else:
                low = middle
        return low

    def truncate(self, count: int) -> None:
        self.count = count

    def trim(self) -> None:
        """Cut the file to its entries, creating it if there are none: a segment at rest has all its files."""
        size = self.count * self.entry_bytes
        if self._mapped is not None:
            if len(self.mapped_view) != size:
                self._map(size)
        elif not self._disk.exists(self.path) or self._disk.file_size(self.path) != size:
            self._map(size)

    def flush(self) -> None:
        self._disk.flush_file(self.path)  # stores into the mapping are in the file's own pages

    def release(self) -> None:
        """Unmap, keeping the file as it is: the next look maps it again."""
        if self._mapped is not None:
            self.mapped_view = _NOTHING
            self._mapped.close()
            self._mapped = None
            self.capacity = 0

    def moved(self, path: str) -> None:
        """The file was renamed; a mapping, if any, stays valid."""
        self.path = path
        self.release()
