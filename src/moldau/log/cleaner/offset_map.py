"""The newest record of every key in the dirty part of a log, in bounded memory.

Short keys (a UUID in letters is one) are kept as they are. Longer ones by a 128-bit digest that is keyed with a secret
of the cleaning round, so nobody can choose two keys that collide. When the map is full, the round ends there and the
next one goes on.

A key's entry is a mark: twice the offset of its newest record, plus one if that is a tombstone. So the marks in order
say what stays of the mapped part without another look at its keys, and they cost no more than the map itself.
"""

import secrets
from bisect import bisect_left
from hashlib import blake2b

from moldau.log.cleaner.scan import ScannedRecords

# Measured with tracemalloc: an entry of a dict with the longest short key and an offset above 2^30, the table half
# empty, and its place in the order of marks.
ENTRY_BYTES = 224
_DIGEST_BYTES = 16
_BEYOND = 1 << 65  # no mark is as large: offsets have 63 bits


class OffsetMap:
    __slots__ = ("_marks", "_newest", "_secret", "first_offset", "latest_offset", "max_entries")

    def __init__(self, memory_bytes: int, first_offset: int) -> None:
        self.max_entries = max(1, memory_bytes // ENTRY_BYTES)
        # Everything from the one to the other, both included, is in the map.
        self.first_offset = first_offset
        self.latest_offset = first_offset - 1
        self._newest: dict[bytes | None, int] = {}  # never None, but keys come in lists that may hold it
        self._marks: list[int] | None = None
        self._secret = secrets.token_bytes(_DIGEST_BYTES)

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def is_full(self) -> bool:
        return len(self._newest) >= self.max_entries

    def put_batch(self, scanned: ScannedRecords) -> None:
        """Note the keys of a batch; batches come in order."""
        keys, marks = self._entries(scanned), scanned.marks
        if not scanned.odd_keys and (not marks or marks[0] >= self.first_offset << 1):
            self._newest.update(zip(keys, marks, strict=True))
        else:
            first_mark = self.first_offset << 1
            pairs = zip(keys, marks, strict=True)
            self._newest.update([(key, mark) for key, mark in pairs if key is not None and mark >= first_mark])
        self._marks = None

    def are_newest(self, scanned: ScannedRecords) -> list[bool]:
        """Which records have no newer one of the same key in the mapped part; null keys have always one."""
        newest = self._newest.get
        pairs = zip(self._entries(scanned), scanned.marks, strict=True)
        if scanned.odd_keys:
            return [key is not None and mark >= newest(key, -1) for key, mark in pairs]
        return [mark >= newest(key, -1) for key, mark in pairs]

    def _entries(self, scanned: ScannedRecords) -> list[bytes | None]:
        """What stands for each key in the map."""
        keys = scanned.keys
        if scanned.odd_keys:
            keys = keys.copy()
            for index in scanned.odd_keys:
                key = keys[index]
                keys[index] = None if key is None else self._digest(key)
        return keys

    @property
    def marks(self) -> list[int]:
        """The marks of all records that are the newest of their keys, in order, and one beyond all offsets."""
        marks = self._marks
        if marks is None:
            marks = self._marks = sorted(self._newest.values())
            marks.append(_BEYOND)
        return marks

    def marks_between(self, first_offset: int, last_offset: int) -> list[int]:
        """Those from one offset to another."""
        marks = self.marks
        return marks[bisect_left(marks, first_offset << 1) : bisect_left(marks, (last_offset + 1) << 1)]

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=_DIGEST_BYTES, key=self._secret).digest()
