"""What a shard of groups has appended and the replicas may not have yet: answers must not tell of it before.

Each group waits for its own. While a replica is missing, the high watermark stands still, and what one group wrote just
before that is committed when the replica is back: nobody else waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable


class PendingAppends:
    """Of one shard."""

    __slots__ = ("_by_group", "_for_all", "_latest")

    def __init__(self, end_offset: int) -> None:
        """What was replayed is everybody's."""
        self._for_all = self._latest = end_offset
        self._by_group: dict[bytes, int] = {}

    def appended(self, keys: Iterable[bytes], end_offset: int, high_watermark: int) -> None:
        """Records with these keys, up to that offset of the log."""
        if high_watermark >= self._latest:
            self._by_group.clear()
        self._latest = end_offset
        for key in keys:
            self._by_group[_group_of(key)] = end_offset

    def appended_for_all(self, end_offset: int) -> None:
        """Nobody knows of which groups."""
        self._for_all = self._latest = end_offset

    def end_for(self, group_id: str | None) -> int:
        """Up to where the log must be committed before anything is told about this group; None: about all."""
        if group_id is None:
            return self._latest
        return max(self._for_all, self._by_group.get(group_id.encode(), 0))


def _group_of(key: bytes) -> bytes:
    """All keys of the offsets' topic begin with a version and the group's name."""
    return key[4 : 4 + int.from_bytes(key[2:4], "big")]
