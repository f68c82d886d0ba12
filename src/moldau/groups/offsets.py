"""Committed offsets, and those that wait for their transaction to end.

Invariants
- A transactional commit is invisible until its marker: it then replaces the committed offset unless a later commit,
  in log order, was made meanwhile. An abort forgets it.
- Log order is kept as a sequence number given to each applied commit; loading a log gives the same order again.
- A tombstone also forgets pending commits of its partition: offsets deleted while a transaction is open do not come
  back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from moldau.wire.primitives import ZERO_UUID

NO_EXPIRY = -1


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = NO_EXPIRY
    """Set by commits of version 2 to 4 that asked for a retention time; else the group's retention holds."""
    topic_id: bytes = ZERO_UUID
    sequence: int = 0


class OffsetKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


class OffsetStore:
    __slots__ = ("_committed", "_open", "_pending", "_sequence")

    def __init__(self) -> None:
        self._committed: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self._pending: dict[int, dict[OffsetKey, CommittedOffset]] = {}
        self._open: dict[str, dict[tuple[str, int], set[int]]] = {}  # producers with pending commits
        self._sequence = 0

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self._committed.get(group_id, {}).get(topic, {}).get(partition)

    def topics_of(self, group_id: str) -> dict[str, dict[int, CommittedOffset]]:
        """Committed offsets of a group by topic and partition. To be read, not changed."""
        return self._committed.get(group_id, {})

    def has_open_transactions(self, group_id: str) -> bool:
        return group_id in self._open

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        return (topic, partition) in self._open.get(group_id, {})

    def open_partitions(self, group_id: str) -> list[tuple[str, int]]:
        """Partitions of the group with commits in open transactions."""
        return list(self._open.get(group_id, ()))

    def entries(self) -> Iterator[tuple[OffsetKey, bytes]]:
        """Every committed or pending offset, with the topic id it was committed for."""
        for group_id, topics in self._committed.items():
            for topic, partitions in topics.items():
                for partition, committed in partitions.items():
                    yield OffsetKey(group_id, topic, partition), committed.topic_id
        for pending in self._pending.values():
            for key, committed in pending.items():
                yield key, committed.topic_id

    def next_sequence(self) -> int:
        """For the commit that is applied next."""
        self._sequence += 1
        return self._sequence

    def commit(self, key: OffsetKey, offset: CommittedOffset) -> None:
        topics = self._committed.setdefault(key.group_id, {})
        topics.setdefault(key.topic, {})[key.partition] = offset

    def commit_pending(self, producer_id: int, key: OffsetKey, offset: CommittedOffset) -> None:
        self._pending.setdefault(producer_id, {})[key] = offset
        partitions = self._open.setdefault(key.group_id, {})
        partitions.setdefault((key.topic, key.partition), set()).add(producer_id)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        for key, offset in self._pending.pop(producer_id, {}).items():
            self._close(key, producer_id)
            if committed:
                current = self.get(*key)
                if current is None or offset.sequence > current.sequence:
                    self._committed.setdefault(key.group_id, {}).setdefault(key.topic, {})[key.partition] = offset

    def delete(self, key: OffsetKey) -> None:
        topics = self._committed.get(key.group_id, {})
        partitions = topics.get(key.topic, {})
        partitions.pop(key.partition, None)
        if not partitions:
            topics.pop(key.topic, None)
            if not topics:
                self._committed.pop(key.group_id, None)
        for producer_id in tuple(self._open.get(key.group_id, {}).get((key.topic, key.partition), ())):
            pending = self._pending[producer_id]
            del pending[key]
            if not pending:
                del self._pending[producer_id]
            self._close(key, producer_id)

    def _close(self, key: OffsetKey, producer_id: int) -> None:
        partitions = self._open[key.group_id]
        producers = partitions[key.topic, key.partition]
        producers.discard(producer_id)
        if not producers:
            del partitions[key.topic, key.partition]
            if not partitions:
                del self._open[key.group_id]
