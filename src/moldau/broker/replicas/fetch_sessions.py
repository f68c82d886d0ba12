"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only what changes.

Pure: the caller brings the time. A session belongs to whoever knows its id and its next epoch.

Invariant: a response to an incremental fetch leaves out only partitions about which the client already knows
everything: no records, no error, and the offsets it was last told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.seams import Random
from moldau.wire import ErrorCode
from moldau.wire.fetch import FetchedPartition, FetchFrame, FetchPartition, Topic

if TYPE_CHECKING:
    from moldau.replication.watch import FollowerWatch

_INITIAL_EPOCH = 0
_FINAL_EPOCH = -1
_EPOCH_MAX = 2**31 - 1
_PARTITIONS_MAX = 20_000  # of more, a session would save less than it costs: they are asked for in full each time

Key = tuple[Topic, int]
Wanted = list[tuple[Topic, FetchPartition]]


def wanted_of(request: FetchFrame) -> Wanted:
    return [(topic, partition) for topic, partitions in request.topics for partition in partitions]


@dataclass(slots=True)
class _Cached:
    """What a session remembers of one partition."""

    wanted: FetchPartition
    # What the client was last told; -1 makes the next answer include the partition.
    high_watermark: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class FetchSession:
    """A fetch that is continued: what it covers, and what was last answered."""

    id: int
    uses_topic_ids: bool
    is_follower: bool
    epoch: int
    created_ms: float
    last_used_ms: float
    partitions: dict[Key, _Cached] = field(default_factory=dict)
    # Only of followers who know topic ids.
    watch: FollowerWatch | None = None


@dataclass(slots=True)
class FetchContext:
    """One fetch: which partitions it reads, and how its answer is told."""

    asked: list[tuple[Topic, FetchPartition]]
    session: FetchSession | None
    is_incremental: bool

    @property
    def watch(self) -> FollowerWatch | None:
        return None if self.session is None else self.session.watch

    def wanted(self) -> list[tuple[Topic, FetchPartition]]:
        """What is to be read now: all that the session covers, or for a follower, what is not at rest."""
        watch = self.watch
        if watch is None or not self.is_incremental:
            return self.asked
        assert self.session is not None
        partitions = self.session.partitions
        return [(key[0], cached.wanted) for key in watch.changed if (cached := partitions.get(key)) is not None]

    @property
    def session_id(self) -> int:
        return 0 if self.session is None else self.session.id

    def knows(self, key: Key, high_watermark: int, log_start_offset: int) -> bool:
        """Whether the client has been told this."""
        cached = None if self.session is None else self.session.partitions.get(key)
        return (
            cached is not None
            and cached.high_watermark == high_watermark
            and cached.log_start_offset == log_start_offset
        )

    def tell(
        self, results: Iterable[tuple[Topic, FetchedPartition]], *, remember: bool = True
    ) -> Iterator[tuple[Topic, FetchedPartition]]:
        """Of the results, those the client must see. With `remember`, note what it was told."""
        session = self.session
        if session is None:
            yield from results
            return
        for topic, result in results:
            key = (topic, result.partition)
            cached = session.partitions.get(key)
            if cached is None:
                yield topic, result
                continue
            news = (
                result.error_code != 0
                or bool(result.records)
                or result.high_watermark != cached.high_watermark
                or result.log_start_offset != cached.log_start_offset
                or result.preferred_read_replica >= 0
                or result.diverging_epoch is not None
            )
            if remember:
                cached.high_watermark = -1 if result.error_code else result.high_watermark
                cached.log_start_offset = result.log_start_offset
                if self.is_incremental and result.records:
                    # Whoever was served goes to the end of the line, so that one busy partition starves no other.
                    session.partitions[key] = session.partitions.pop(key)
            if news or not self.is_incremental:
                yield topic, result


class FetchSessions:
    def __init__(self, random: Random, slots_max: int, eviction_ms: float = 120_000) -> None:
        self._random = random
        self._slots_max = slots_max
        self._eviction_ms = eviction_ms
        # Least recently used first.
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, request: FetchFrame, wanted: Wanted, *, uses_topic_ids: bool, now_ms: float
    ) -> FetchContext | ErrorCode:
        """What the request asks for, seen through its session; or why the session cannot go on."""
        if request.session_epoch in (_FINAL_EPOCH, _INITIAL_EPOCH):
            self._sessions.pop(request.session_id, None)
            session = None
            if request.session_epoch == _INITIAL_EPOCH and 0 < len(wanted) <= _PARTITIONS_MAX:
                session = self._create(wanted, uses_topic_ids, request.replica_id >= 0, now_ms)
            return FetchContext(wanted, session, is_incremental=False)
        session = self._sessions.get(request.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != uses_topic_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        self._update(session, wanted, request.forgotten)
        if not session.partitions:
            del self._sessions[session.id]
            return FetchContext([], None, is_incremental=False)
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        session.last_used_ms = now_ms
        self._sessions[session.id] = self._sessions.pop(session.id)
        watch = session.watch
        if watch is not None:
            if watch.is_time_for_all(now_ms):
                watch.changed.update(dict.fromkeys(session.partitions))  # type: ignore[arg-type]  # topic ids
            watch.last_fetch_ms = now_ms
            return FetchContext([], session, is_incremental=True)
        current = [(topic, cached.wanted) for (topic, _), cached in session.partitions.items()]
        return FetchContext(current, session, is_incremental=True)

    @staticmethod
    def _update(
        session: FetchSession, wanted: list[tuple[Topic, FetchPartition]], forgotten: list[tuple[Topic, list[int]]]
    ) -> None:
        for topic, partition in wanted:
            key = (topic, partition[0])
            cached = session.partitions.get(key)
            if cached is None:
                session.partitions[key] = _Cached(partition)
            else:
                cached.wanted = partition
            if session.watch is not None:
                session.watch.changed[key] = None  # type: ignore[index]  # topic ids
        for topic, indexes in forgotten:
            for index in indexes:
                session.partitions.pop((topic, index), None)
                if session.watch is not None:
                    session.watch.changed.pop((topic, index), None)  # type: ignore[arg-type]  # topic ids

    def _create(
        self, wanted: list[tuple[Topic, FetchPartition]], uses_topic_ids: bool, is_follower: bool, now_ms: float
    ) -> FetchSession | None:
        if len(self._sessions) >= self._slots_max and not self._make_room(len(wanted), is_follower, now_ms):
            return None
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = 1 + self._random.below(_EPOCH_MAX - 1)
        session = FetchSession(session_id, uses_topic_ids, is_follower, 1, now_ms, now_ms)
        session.partitions = {(topic, partition[0]): _Cached(partition) for topic, partition in wanted}
        if is_follower and uses_topic_ids:
            from moldau.replication.watch import FollowerWatch

            session.watch = FollowerWatch(dict.fromkeys(session.partitions), now_ms)  # type: ignore[arg-type]  # topic ids
        self._sessions[session_id] = session
        return session

    def _make_room(self, size: int, is_follower: bool, now_ms: float) -> bool:
        """Evict a session nobody uses, or one that saves less: a consumer's for a follower's, a small for a large."""
        if not self._sessions:
            return False
        stalest = next(iter(self._sessions.values()))
        if now_ms - stalest.last_used_ms > self._eviction_ms:
            del self._sessions[stalest.id]
            return True
        old = [each for each in self._sessions.values() if now_ms - each.created_ms > self._eviction_ms]
        weaker = [
            each
            for each in old
            if (is_follower and not each.is_follower)
            or (each.is_follower == is_follower and len(each.partitions) < size)
        ]
        if not weaker:
            return False
        del self._sessions[min(weaker, key=lambda each: (each.is_follower, len(each.partitions))).id]
        return True
