"""Following leaders: one fetcher per leader (and `num.replica.fetchers`), each carrying many partitions.

A fetcher is a loop around one Fetch at a time, in an incremental session, on a connection of its own. What the leader
answers is sorted out by `moldau.replication.follower`; here it is carried out: append, truncate, ask for offsets,
pause.

Invariants
- A follower's next fetch offset, by which the leader counts it, is the end of its log, and where the topic wants
  flushes, of what it has flushed.
- An answer counts only for the leader epoch, and the offset, it was asked with.
- A partition is in one fetcher at most.

A fetch waits at the leader for up to `replica.fetch.wait.max.ms`. Partitions that come meanwhile (a new topic, a new
leader) do not wait for it: they are fetched beside it, on a connection of their own, and join with its next round.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

from moldau.broker.channels import UnsupportedVersion
from moldau.broker.supervision import keep_going
from moldau.log.errors import LogError, OutOfDescriptors, StorageError, UnexpectedAppendOffset
from moldau.log.flush import FlushJob
from moldau.replication.follower import FollowedPartition, Next, decide, resume_offset, truncation_offset
from moldau.replication.session import FetchFrom, FetchPlan, FollowerSession, Key
from moldau.replication.throttle import ReplicationQuota, is_throttled
from moldau.seams.network import Disconnected, RequestTimedOut
from moldau.wire import ErrorCode, MalformedFrame
from moldau.wire import messages as m
from moldau.wire.fetch import FetchedFrame, FetchedPartition

if TYPE_CHECKING:
    from moldau.broker.parts import (
        HasConfig,
        HasIdentity,
        HasImage,
        HasLogs,
        HasLoop,
        HasPeers,
        HasPurgatories,
        HasTime,
    )
    from moldau.broker.replicas.partition import Partition

    class Needs(HasConfig, HasIdentity, HasImage, HasLogs, HasLoop, HasPeers, HasPurgatories, HasTime, Protocol):
        """What this file may touch."""


_log = logging.getLogger(__name__)
_LATEST, _EARLIEST = -1, -2
_NEVER = float("inf")
_THROTTLE_CHECK_MS = 100.0
_NEWCOMERS_WAIT_MS = 20  # more may come
_LOOK_AT_ALL_MS = 1_000.0

_Failed = (Disconnected, RequestTimedOut, UnsupportedVersion, MalformedFrame)


@dataclass(slots=True)
class _Followed:
    """A partition and where this node is in it."""

    partition: Partition
    state: FollowedPartition

    @property
    def position(self) -> tuple[int, int, int, int]:
        state = self.state
        return state.leader_epoch, state.fetch_offset, state.last_fetched_epoch, self.partition.log.log_start_offset

    def catch_up(self) -> None:
        """The log changed: go on at its end."""
        log = self.partition.log
        self.state.fetch_offset = log.log_end_offset
        self.state.last_fetched_epoch = log.epochs.latest


class ReplicaFetchers:
    """Belongs to the event loop."""

    def __init__(self, broker: Needs, quota: Callable[[], ReplicationQuota]) -> None:
        self._broker = broker
        self._quota = quota
        self._fetchers: dict[tuple[int, str], _Fetcher] = {}
        self._of: dict[Key, _Fetcher] = {}

    def follow(self, partition: Partition) -> None:
        """Fetch this partition from the leader its image names, from now on."""
        image = partition.image
        fetcher = self._of.get(partition.key)
        if fetcher is not None:
            followed = fetcher.partitions[partition.key]
            is_same = followed.partition is partition and followed.state.leader_epoch == image.leader_epoch
            if is_same and fetcher.leader_id == image.leader:
                return
            self.forget(partition.key)
        number = crc32(partition.topic.encode(), partition.index) % self._broker.config.get_int("num.replica.fetchers")
        fetcher = self._fetcher(image.leader, f"fetcher-{number}")
        if fetcher.is_asking:
            fetcher = self._beside(fetcher)
        log = partition.log
        state = FollowedPartition(image.leader_epoch, log.log_end_offset, log.epochs.latest)
        self._of[partition.key] = fetcher
        fetcher.add(_Followed(partition, state))

    def _fetcher(self, leader_id: int, lane: str, joins: _Fetcher | None = None) -> _Fetcher:
        fetcher = self._fetchers.get((leader_id, lane))
        if fetcher is None or fetcher.is_over or fetcher.joins is not joins:
            fetcher = self._fetchers[leader_id, lane] = _Fetcher(self._broker, self._quota, leader_id, lane, joins)
        return fetcher

    def _beside(self, fetcher: _Fetcher) -> _Fetcher:
        newcomers = self._fetcher(fetcher.leader_id, f"{fetcher.lane}-newcomers", joins=fetcher)
        fetcher.before_round = lambda: self._join(newcomers, fetcher)
        return newcomers

    def _join(self, newcomers: _Fetcher, fetcher: _Fetcher) -> None:
        """The fetch that was under way is over: from now on it carries the newcomers, too."""
        fetcher.before_round = None
        for followed in newcomers.hand_over():
            self._of[followed.partition.key] = fetcher
            fetcher.add(followed)

    def forget(self, key: Key) -> None:
        fetcher = self._of.pop(key, None)
        if fetcher is not None:
            fetcher.remove(key)

    async def stop(self) -> None:
        fetchers, self._fetchers = list(self._fetchers.values()), {}
        self._of.clear()
        await asyncio.gather(*(fetcher.stop() for fetcher in fetchers))


class _Fetcher:
    def __init__(
        self,
        broker: Needs,
        quota: Callable[[], ReplicationQuota],
        leader_id: int,
        lane: str,
        joins: _Fetcher | None,
    ) -> None:
        self._broker = broker
        self._quota = quota
        self.lane = lane
        self.leader_id = leader_id
        self.joins = joins
        # Whether a request is out, which may wait long for records.
        self.is_asking = False
        self.before_round: Callable[[], None] | None = None
        self.partitions: dict[Key, _Followed] = {}
        # What is asked for, and what of it must be looked at before the next request.
        self._positions: dict[Key, FetchFrom] = {}
        self._dirty: dict[Key, None] = {}
        self._asked: dict[Key, None] = {}
        # What was appended, by whichever fetcher or as leader, and must be flushed before the leader hears of it.
        self._unflushed: list[_Followed] = []
        self._looked_at_all_ms = float("-inf")
        self._session = FollowerSession(wants_session=joins is None)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] = keep_going(broker.loop, f"fetching from broker {leader_id}", self._run)

    @property
    def is_over(self) -> bool:
        return self._task.done()

    def add(self, followed: _Followed) -> None:
        self.partitions[followed.partition.key] = followed
        self._dirty[followed.partition.key] = None
        self._changed.set()

    def remove(self, key: Key) -> None:
        self.partitions.pop(key, None)
        self._dirty[key] = None
        self._changed.set()

    def hand_over(self) -> list[_Followed]:
        self._dirty.update(dict.fromkeys(self.partitions))
        followed, self.partitions = list(self.partitions.values()), {}
        self._changed.set()
        return followed

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # -- the loop

    async def _run(self) -> None:
        """Ends when nothing is left to follow; a new one is made when there is again."""
        await asyncio.sleep(0)  # the first partitions come right after
        while self.partitions or self.before_round is not None:
            try:
                await self._round()
            except Exception:  # one bad round must not end the replication of all these partitions
                _log.exception("fetching from broker %d failed", self.leader_id)
                self._session.on_failure()
                await self._pause(self._backoff_ms)

    @property
    def _backoff_ms(self) -> float:
        return self._broker.config.get_int("replica.fetch.backoff.ms")

    async def _round(self) -> None:
        self._changed.clear()
        if self.before_round is not None:
            self.before_round()
        wait_ms = self._update_wanted()
        if self._unflushed:
            self._dirty.update(self._asked)
            await self._flush(self._unflushed)
            return
        endpoint = self._endpoint()
        if endpoint is None or not self._positions:
            self._dirty.update(self._asked)
            await self._pause(self._backoff_ms if self._positions else wait_ms)
            return
        plan = self._session.plan(self._positions, self._asked)
        self.is_asking = True
        try:
            frame = await self._broker.channels.call(
                *endpoint,
                self._request(plan),
                timeout_ms=self._broker.config.get_int("replica.socket.timeout.ms"),
                lane=self.lane,
            )
        except _Failed as error:
            _log.info("broker %d cannot be fetched from now: %s", self.leader_id, error)
            self._session.on_failure()
            await self._pause(self._backoff_ms)
            return
        finally:
            self.is_asking = False
        if not self._session.on_response(frame.error_code, frame.session_id):
            _log.info("broker %d ended the fetch session: %s", self.leader_id, ErrorCode(frame.error_code).name)
            if frame.error_code not in _SESSION_ERRORS:
                await self._pause(self._backoff_ms)
            return
        try:
            await self._take(frame)
        except MalformedFrame as error:
            _log.warning("cannot use the answer of broker %d: %s", self.leader_id, error)
            self._session.on_failure()
            await self._pause(self._backoff_ms)

    async def _pause(self, timeout_ms: float) -> None:
        """Until something changes, or for so long."""
        try:
            async with asyncio.timeout(None if timeout_ms == _NEVER else timeout_ms / 1000):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _endpoint(self) -> tuple[str, int] | None:
        registered = self._broker.image.brokers.get(self.leader_id)
        name = self._broker.config.inter_broker_listener_name
        for each in registered.endpoints if registered is not None else ():
            if each.name == name:
                return each.host, each.port
        return None

    def _update_wanted(self) -> float:
        """Bring up to date what to fetch; returns how long until that may be more, if nobody calls before."""
        broker = self._broker
        now_ms = broker.clock.monotonic_ms()
        # What is at rest is not looked at, but now and then: its log start may have moved, or a throttle be set.
        if now_ms - self._looked_at_all_ms >= _LOOK_AT_ALL_MS:
            self._looked_at_all_ms = now_ms
            self._dirty.update(dict.fromkeys(self.partitions))
        dirty, self._dirty = self._dirty, {}
        max_bytes = broker.config.get_int("replica.fetch.max.bytes")
        is_exceeded = self._quota().is_exceeded(now_ms)
        soonest_ms = _NEVER
        self._unflushed = []
        for key in dirty:
            followed = self.partitions.get(key)
            if followed is None:
                self._positions.pop(key, None)
                continue
            ready_at_ms = followed.state.ready_at_ms
            if is_exceeded and not followed.state.is_in_sync and self._is_throttled(followed.partition):
                ready_at_ms = now_ms + _THROTTLE_CHECK_MS
            if ready_at_ms <= now_ms and followed.partition.log.needs_flush:
                self._unflushed.append(followed)
                self._positions.pop(key, None)
                self._dirty[key] = None
            elif ready_at_ms <= now_ms:
                self._positions[key] = FetchFrom(*followed.position, max_bytes)
            else:
                self._positions.pop(key, None)
                self._dirty[key] = None
                soonest_ms = min(soonest_ms, ready_at_ms)
        self._asked = dirty
        return soonest_ms - now_ms

    def _is_throttled(self, partition: Partition) -> bool:
        return is_throttled(partition.settings.follower_throttled_replicas, partition.index, self._broker.node_id)

    def _request(self, plan: FetchPlan) -> m.FetchRequest:
        config = self._broker.config
        request = m.FetchRequest(
            replica_state=m.FetchRequest.ReplicaState(self._broker.node_id, self._broker.broker_epoch),
            replica_id=self._broker.node_id,
            max_wait_ms=config.get_int("replica.fetch.wait.max.ms") if self.joins is None else _NEWCOMERS_WAIT_MS,
            min_bytes=config.get_int("replica.fetch.min.bytes"),
            max_bytes=config.get_int("replica.fetch.response.max.bytes"),
            session_id=plan.session_id,
            session_epoch=plan.session_epoch,
        )
        topics: dict[bytes, list[m.FetchRequest.FetchPartition]] = {}
        for (topic_id, index), position in plan.wanted:
            topics.setdefault(topic_id, []).append(
                m.FetchRequest.FetchPartition(
                    index,
                    position.leader_epoch,
                    position.fetch_offset,
                    position.last_fetched_epoch,
                    position.log_start_offset,
                    position.max_bytes,
                )
            )
        request.topics = [
            m.FetchRequest.FetchTopic(topic_id=topic_id, partitions=found) for topic_id, found in topics.items()
        ]
        forgotten: dict[bytes, list[int]] = {}
        for topic_id, index in plan.forgotten:
            forgotten.setdefault(topic_id, []).append(index)
        request.forgotten_topics_data = [
            m.FetchRequest.ForgottenTopic(topic_id=topic_id, partitions=found) for topic_id, found in forgotten.items()
        ]
        return request

    # -- what came back

    async def _take(self, frame: FetchedFrame) -> None:
        truncations: list[tuple[_Followed, int]] = []
        lost: list[_Followed] = []
        for topic_id, results in frame.topics:
            if not isinstance(topic_id, bytes):
                raise MalformedFrame("the answer names topics and not their ids: the leader is too old")
            for result in results:
                key = (topic_id, result.partition)
                followed, position = self.partitions.get(key), self._positions.get(key)
                self._dirty[key] = None
                if followed is None or position is None or followed.position[:3] != position[:3]:
                    continue  # the image moved on while the answer was on its way
                step = decide(result.error_code, result.diverging_epoch)
                if step is Next.APPEND:
                    self._append(followed, result)
                elif step is Next.TRUNCATE:
                    assert result.diverging_epoch is not None
                    log = followed.partition.log
                    truncations.append(
                        (followed, truncation_offset(result.diverging_epoch, log.epochs, log.log_end_offset))
                    )
                elif step is Next.FIND_OFFSET:
                    lost.append(followed)
                else:
                    self._set_aside(followed, ErrorCode(result.error_code), is_over=step is Next.STOP)
        self._truncate(truncations)
        if lost:
            await self._find_offsets(lost)

    def _append(self, followed: _Followed, result: FetchedPartition) -> None:
        partition, state = followed.partition, followed.state
        records = result.records[0] if result.records else b""
        assert isinstance(records, (bytes, memoryview))
        try:
            is_more_readable = partition.follow(
                records, state.leader_epoch, result.high_watermark, result.log_start_offset
            )
        except UnexpectedAppendOffset as error:
            # The log was opened longer than its checkpoint said, or ends within a batch of the leader's.
            followed.catch_up()
            if error.first_offset < state.fetch_offset <= error.last_offset:
                self._truncate([(followed, error.first_offset)])
            return
        except LogError as error:
            self._failed(followed, error)
            return
        state.lag = max(0, result.high_watermark - partition.log.log_end_offset)
        state.refusals = 0
        if records:
            followed.catch_up()
            if self._is_throttled(partition):
                self._quota().record(len(records), self._broker.clock.monotonic_ms())
        if is_more_readable:
            self._broker.fetch_purgatory.check_and_complete(partition.key)

    def _failed(self, followed: _Followed, error: LogError) -> None:
        self._complain(followed, error)
        # Its dir is offline until this node restarts.
        is_over = isinstance(error, StorageError) and not isinstance(error, OutOfDescriptors)
        followed.state.ready_at_ms = _NEVER if is_over else self._broker.clock.monotonic_ms() + self._backoff_ms

    def _complain(self, followed: _Followed, error: LogError | str) -> None:
        """People must hear of what no retry mends, and whose it is."""
        _log.error("cannot replicate %r from broker %d: %s", followed.partition, self.leader_id, error)

    def _set_aside(self, followed: _Followed, error: ErrorCode, *, is_over: bool) -> None:
        if error is ErrorCode.CORRUPT_MESSAGE:
            self._complain(followed, f"its log is damaged at offset {followed.state.fetch_offset} or soon after")
        else:
            _log.debug("%r: broker %d answered %s", followed.partition, self.leader_id, error.name)
        if is_over:
            followed.state.ready_at_ms = _NEVER
        else:
            followed.state.refused(self._broker.clock.monotonic_ms(), self._backoff_ms)

    def _truncate(self, truncations: Iterable[tuple[_Followed, int]]) -> None:
        """Truncate: one checkpoint per dir for all of them."""
        offsets = {}
        for followed, offset in truncations:
            log = followed.partition.log
            if log.is_offline:
                followed.state.ready_at_ms = _NEVER
                continue
            _log.info("%r: truncating the log to %d, which ended at %d", followed.partition, offset, log.log_end_offset)
            if offset < log.high_watermark:
                _log.warning("%r: that is below the high watermark %d", followed.partition, log.high_watermark)
            offsets[log.topic_partition] = offset
        try:
            self._broker.logs.truncate(offsets)
        except LogError as error:
            _log.error("cannot truncate logs: %s", error)
        for followed, _ in truncations:
            followed.catch_up()

    async def _flush(self, unflushed: list[_Followed]) -> None:
        """These topics want their records on the disk: they count as fetched only then."""
        jobs = []
        for followed in unflushed:
            if followed.partition.log.is_offline:
                followed.state.ready_at_ms = _NEVER
            else:
                jobs.append((followed, FlushJob(followed.partition.log)))
        executor = self._broker.executor
        await asyncio.gather(*(self._broker.loop.run_in_executor(executor, job.run) for _, job in jobs))
        for followed, job in jobs:
            try:
                job.finish()
            except LogError as error:
                self._failed(followed, error)

    # -- offsets that the leader does not have

    async def _find_offsets(self, lost: list[_Followed]) -> None:
        try:
            ends = await self._list_offsets(lost, _LATEST)
            starts = await self._list_offsets(lost, _EARLIEST)
        except _Failed as error:
            _log.info("broker %d does not tell its offsets: %s", self.leader_id, error)
            ends = starts = {}
        for followed in lost:
            partition = followed.partition
            if self.partitions.get(partition.key) is not followed:
                continue
            start, end = starts.get(partition.key), ends.get(partition.key)
            if start is None or end is None:
                self._set_aside(followed, ErrorCode.OFFSET_OUT_OF_RANGE, is_over=False)
                continue
            resume = resume_offset(partition.log.log_end_offset, start, end)
            if not resume.start_over:
                self._truncate([(followed, resume.offset)])
                continue
            _log.info("%r: starting over at %d, where the leader's log begins", partition, resume.offset)
            try:
                partition.log.truncate_fully_and_start_at(resume.offset)
            except LogError as error:
                self._failed(followed, error)
            followed.catch_up()

    async def _list_offsets(self, wanted: list[_Followed], timestamp: int) -> dict[Key, int]:
        endpoint = self._endpoint()
        if endpoint is None:
            return {}
        kind = m.ListOffsetsRequest
        topics: dict[str, m.ListOffsetsRequest.ListOffsetsTopic] = {}
        ids = {}
        for followed in wanted:
            partition = followed.partition
            ids[partition.topic] = partition.topic_id
            topic = topics.setdefault(partition.topic, kind.ListOffsetsTopic(partition.topic, []))
            topic.partitions.append(kind.ListOffsetsPartition(partition.index, followed.state.leader_epoch, timestamp))
        response = await self._broker.channels.call(
            *endpoint,
            kind(replica_id=self._broker.node_id, topics=list(topics.values())),
            timeout_ms=self._broker.config.get_int("replica.socket.timeout.ms"),
            lane=self.lane,
        )
        return {
            (ids[topic.name], found.partition_index): found.offset
            for topic in response.topics
            for found in topic.partitions
            if found.error_code == ErrorCode.NONE
        }


_SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
