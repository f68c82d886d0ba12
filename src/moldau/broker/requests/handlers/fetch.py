"""Fetch (key 1), versions 4-18. Topics by name up to version 12, by id from 13 on; sessions from 7 on.

Reads give regions of segment files, sent without entering the process. A fetch that finds fewer than `min_bytes` waits
in the purgatory, woken by appends to its partitions, for up to `max_wait_ms`. An error in any partition answers at
once. The first partition with data gives at least one whole batch, however small the limits are.

Consumers read up to the high watermark (or the last stable offset): from the leader, or from version 11 on from any
replica; the leader may send them to one in their rack. Followers read to the end of the log, from the leader only; by
what they ask for, the leader knows what they have (`broker/replicas/follower_fetch.py`). On a controller's listener
the metadata log is fetched, by the other members of the quorum and by brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from moldau.broker.replicas.fetch_sessions import FetchContext, Wanted, wanted_of
from moldau.broker.replicas.manager import PartitionUnavailable
from moldau.broker.requests.access import TOPIC as ACL_TOPIC
from moldau.broker.requests.access import may_on_cluster
from moldau.broker.requests.topic_access import Allowed, nothing, topic_access
from moldau.controller.acls import Operation
from moldau.log.errors import LogError, OffsetOutOfRange, StorageError
from moldau.seams.disk import Buffer, FileRegion
from moldau.timers.turns import Slices, let_go, others_of
from moldau.wire import ErrorCode, MalformedFrame
from moldau.wire.fetch import (
    FetchedPartition,
    FetchFrame,
    FetchPartition,
    Topic,
    decode_fetch_request,
    encode_fetch_response,
)

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAuthorizer, HasConfig, HasImage, HasLoop, HasPurgatories, HasTime, HasTurns
    from moldau.broker.quorum.parts import HasQuorum
    from moldau.broker.replicas.follower_fetch import FollowerFetch
    from moldau.broker.replicas.follower_fetch import Needs as FollowerFetchNeeds
    from moldau.broker.replicas.partition import Partition
    from moldau.broker.replicas.parts import HasFetchSessions, HasReplicas
    from moldau.security.authorizer import Authorizer

    class Needs(
        FollowerFetchNeeds,
        HasAuthorizer,
        HasConfig,
        HasImage,
        HasLoop,
        HasPurgatories,
        HasTime,
        HasTurns,
        HasQuorum,
        HasFetchSessions,
        HasReplicas,
        Protocol,
    ):
        """What this file may touch."""


_FROM_ANY_REPLICA = 11
_TOPIC_IDS = 13
_TELLS_LEADER = 16
_READ_COMMITTED = 1
_CONSUMER = -1
_ASK_ELSEWHERE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
_LARGE_BYTES = 64 * 1024  # about two thousand partitions
_MANY = 2_000
_MANY_WAIT_MS = 500
_PER_SLICE = 200
_TOLD_PER_SLICE = 2_000
_TOLD_BYTES = 40  # of a partition, beside its records
_UNLIMITED = (1 << 31) - 1
_PER_SLICE_MAKING = 5  # of partitions whose files may have to be made first
_NOWHERE = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)

Results = list[tuple[Topic, FetchedPartition]]
Told = list[tuple[Topic, list[FetchedPartition]]]


def handle_frame(broker: Needs, call: Call, frame: memoryview, position: int) -> None:
    if len(frame) > _LARGE_BYTES:
        broker.go_on(call, _handle_large(broker, call, bytes(frame), position), len(frame))
        return
    rest = _handle(broker, call, decode_fetch_request(frame, position, call.version))
    if rest is not None:
        broker.go_on(call, rest)


def handle_controller_frame(broker: Needs, call: Call, frame: memoryview, position: int) -> None:
    """The metadata log and nothing else, for nodes and nobody else. Who is none is not read at length."""
    if may_on_cluster(broker, call, Operation.CLUSTER_ACTION):
        call.waits_since(broker.clock.monotonic_ms())
        broker.metadata_log.fetch(call, decode_fetch_request(frame, position, call.version))
        return
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    call.failed(code)
    refused: Told = []
    if call.version < _TOPIC_IDS and len(frame) <= _LARGE_BYTES:  # as Kafka has it: each of them, too
        asked = decode_fetch_request(frame, position, call.version).topics
        refused = [(topic, [FetchedPartition(each[0], code, aborted=()) for each in some]) for topic, some in asked]
    call.respond_payload(encode_fetch_response(call.version, refused, error_code=code))


async def _handle_large(broker: Needs, call: Call, data: bytes, position: int) -> None:
    """Thousands of partitions: even reading the request takes longer than others should wait."""
    work = partial(_read_at_length, data, position, call.version)
    try:
        # Not behind what clients may send of other kinds: it may be a follower's.
        async with broker.long_fetch:
            request, wanted = await broker.loop.run_in_executor(broker.executor, work)
    except MalformedFrame as error:
        call.slot.close(f"malformed request: {error}")
        return
    rest = _handle(broker, call, request, wanted)
    if rest is not None:
        await rest
        del rest
    # What was asked for is in `wanted`, which a fetch that waits or a session may still need.
    for each in (request.topics, request.forgotten):
        await broker.in_turns(let_go(*(some for _, some in each), each))
    kept = [wanted]
    del wanted
    if not others_of(kept):
        await broker.in_turns(let_go(kept[0]))


def _read_at_length(data: bytes, position: int, version: int) -> tuple[FetchFrame, Wanted]:
    request = decode_fetch_request(data, position, version)
    return request, wanted_of(request)


def _handle(
    broker: Needs, call: Call, request: FetchFrame, wanted: Wanted | None = None
) -> Coroutine[Any, Any, None] | None:
    """Answer, now or later; or what is to be done to answer, if it is much."""
    now_ms = broker.clock.monotonic_ms()
    if wanted is None:
        wanted = wanted_of(request)
    context = broker.fetch_sessions.open(request, wanted, uses_topic_ids=call.version >= _TOPIC_IDS, now_ms=now_ms)
    if isinstance(context, ErrorCode):
        call.failed(context)
        call.respond_payload(encode_fetch_response(call.version, (), error_code=context))
        return None
    follower = None
    readable = None
    if broker.authorizer is not None:
        readable = _readable(broker, broker.authorizer, call, request)
    if request.replica_id >= 0 and readable is None:
        from moldau.broker.replicas.follower_fetch import FollowerFetch

        follower = FollowerFetch(broker, request, context)
    fetch = _Fetch(broker, call, request, context, follower, readable)
    if follower is None and len(context.asked) > _MANY:
        return _fetch_many(broker, call, request, fetch)
    if fetch.read() or request.max_wait_ms <= 0 or (context.session is None and not context.asked):
        fetch.respond()
    else:
        call.waits_since(now_ms)
        broker.fetch_purgatory.watch(fetch, fetch.keys(), now_ms + request.max_wait_ms)
    if follower is not None:
        follower.tell()
    return None


def _readable(broker: Needs, authorizer: Authorizer, call: Call, request: FetchFrame) -> Allowed | None:
    """Which topics this client may read; None is all of them. A follower may if it belongs to the cluster."""
    access = topic_access(broker, authorizer, call.session)
    if request.replica_id < 0:
        return access.readable
    return None if may_on_cluster(broker, call, Operation.CLUSTER_ACTION) else nothing(broker)


async def _fetch_many(broker: Needs, call: Call, request: FetchFrame, fetch: _Fetch) -> None:
    """In turns with others, and without watching each of thousands of partitions: it looks twice."""
    if not await broker.in_turns(fetch.read_in_slices()) and request.max_wait_ms > 0:
        await asyncio.sleep(min(request.max_wait_ms, _MANY_WAIT_MS) / 1000)
        await broker.in_turns(fetch.read_in_slices())
    if fetch.is_silenced():
        return
    told = await broker.in_turns(fetch.tell_in_slices())  # changes the session, so no thread does it
    async with broker.long_look:
        body = await broker.loop.run_in_executor(broker.executor, fetch.encode, told)
    call.respond_payload(body)
    await broker.in_turns(let_go(*(results for _, results in told), told, fetch.results))


class _Fetch:
    """One fetch, perhaps waiting (see `moldau.timers.purgatory`)."""

    __slots__ = (
        "_broker",
        "_call",
        "_context",
        "_follower",
        "_generations",
        "_is_answer",
        "_is_fresh",
        "_left_bytes",
        "_max_bytes",
        "_offsets",
        "_partitions",
        "_readable",
        "_reads_to_end",
        "_request",
        "_total_bytes",
        "results",
    )

    def __init__(
        self,
        broker: Needs,
        call: Call,
        request: FetchFrame,
        context: FetchContext,
        follower: FollowerFetch | None,
        readable: Allowed | None,
    ) -> None:
        self._broker = broker
        self._call = call
        self._request = request
        self._context = context
        self._follower = follower
        self._readable = readable
        # More than a quota ever lets through at once would never be sent.
        self._max_bytes = _UNLIMITED
        if call.meter is not None and follower is None and (limit := call.meter.fetch_bytes_max()) is not None:
            self._max_bytes = min(_UNLIMITED, int(limit))
        self._reads_to_end = request.replica_id != _CONSUMER
        self._partitions: list[Partition] = []
        self.results: Results = []
        # Sums over the partitions, by which a waiting fetch sees that there is something new without reading.
        self._generations = 0
        self._offsets = 0
        self._is_fresh = False

    def keys(self) -> list[Hashable]:
        return [self._follower.key] if self._follower is not None else [each.key for each in self._partitions]

    def is_ready(self) -> bool:
        """Reads again only when there is more to read, or a partition has changed hands."""
        if self._follower is not None and self._follower.watch is not None:
            self._is_fresh = self._follower.watch.is_due and self.read()
            return self._is_fresh
        generations = offsets = 0
        for partition in self._partitions:
            generations += partition.generation
            offsets += partition.log.log_end_offset if self._reads_to_end else partition.log.high_watermark
        if generations != self._generations:
            return True
        self._is_fresh = offsets != self._offsets and self.read()
        return self._is_fresh

    def on_complete(self, expired: bool) -> None:
        if not self._is_fresh:
            self.read()
        self.respond()

    def read(self) -> bool:
        """Read every partition. True if that is an answer: enough bytes, or an error."""
        self._begin_read()
        self._read_some(self._context.wanted())
        return self._end_read()

    def read_in_slices(self) -> Slices[bool]:
        """The same, with pauses for others; fewer partitions at a time while the files of some are still to be made."""
        self._begin_read()
        wanted = self._context.wanted()
        start = 0
        while start < len(wanted):
            if start:
                yield
            end = start + (_PER_SLICE_MAKING if self._broker.replicas.is_making else _PER_SLICE)
            self._read_some(wanted[start:end])
            start = end
        return self._end_read()

    def _begin_read(self) -> None:
        self._left_bytes = min(self._request.max_bytes, self._broker.config.get_int("fetch.max.bytes"), self._max_bytes)
        self._total_bytes = 0
        self._is_answer = False
        self._partitions = []
        self.results = []
        self._generations = self._offsets = 0

    def _read_some(self, some: list[tuple[Topic, FetchPartition]]) -> None:
        left, total, is_answer = self._left_bytes, self._total_bytes, self._is_answer
        for topic, wanted in some:
            try:
                partition = self._find(topic, wanted[0])
                self._partitions.append(partition)
                partition.fetch_requests += 1
                self._generations += partition.generation
                result, size = self._read_partition(partition, wanted, left, is_first=total == 0)
                log = partition.log
                self._offsets += log.log_end_offset if self._reads_to_end else log.high_watermark
                total += size
                left = max(0, left - size)
                is_answer = is_answer or result.diverging_epoch is not None or result.preferred_read_replica >= 0
            except PartitionUnavailable as error:
                is_answer = True
                self._call.failed(error.code)
                result = self._unavailable(topic, wanted[0], error.code)
            except LogError as error:
                is_answer = True
                self._call.failed(error.code)
                self._count_failure(topic, wanted[0], error)
                result = FetchedPartition(wanted[0], error.code)
            self.results.append((topic, result))
        self._left_bytes, self._total_bytes, self._is_answer = left, total, is_answer

    def _end_read(self) -> bool:
        """Whether what was read is an answer."""
        follower = self._follower
        is_answer = self._is_answer
        if follower is not None:
            follower.is_known = True
            if follower.watch is not None:
                # A new high watermark alone is an answer where consumers read from followers.
                is_answer = is_answer or (follower.watch.wants_marks and follower.watch.is_due)
                follower.watch.is_due = False
        return is_answer or self._total_bytes >= min(self._request.min_bytes, self._max_bytes)

    def _find(self, topic: Topic, index: int) -> Partition:
        if self._readable is not None and not self._readable[topic]:
            self._broker.denied(self._call, Operation.READ, ACL_TOPIC, self._readable.name_of(topic) or "")
            raise PartitionUnavailable(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if self._request.replica_id == _CONSUMER and self._call.version >= _FROM_ANY_REPLICA:
            return self._broker.replicas.replica(topic, index)
        return self._broker.replicas.leader(topic, index)

    def _unavailable(self, topic: Topic, index: int, code: ErrorCode) -> FetchedPartition:
        if (
            code in _NOWHERE
        ):  # nobody knows it, or may know, so it has no aborted transactions; else nothing is said of them
            return FetchedPartition(index, code, aborted=[])
        partition = self._broker.replicas.get(topic, index)
        if partition is None or code not in _ASK_ELSEWHERE or self._call.version < _TELLS_LEADER:
            return FetchedPartition(index, code)
        return FetchedPartition(index, code, current_leader=(partition.image.leader, partition.leader_epoch))

    def _count_failure(self, topic: Topic, index: int, error: LogError) -> None:
        """Kafka's counter leaves out what clients do wrong, and disks of which it tells elsewhere."""
        partition = self._broker.replicas.get(topic, index)
        if partition is not None and not isinstance(error, OffsetOutOfRange | StorageError):
            partition.failed_fetch_requests += 1

    def _read_partition(
        self, partition: Partition, wanted: FetchPartition, left: int, *, is_first: bool
    ) -> tuple[FetchedPartition, int]:
        index, leader_epoch, offset, last_epoch, _, max_bytes, _ = wanted
        if leader_epoch >= 0 and leader_epoch != partition.leader_epoch:
            fenced = leader_epoch < partition.leader_epoch
            raise PartitionUnavailable(ErrorCode.FENCED_LEADER_EPOCH if fenced else ErrorCode.UNKNOWN_LEADER_EPOCH)
        follower = self._follower
        if follower is not None:
            follower.check(partition)
        log = partition.log
        high_watermark, stable, start = log.high_watermark, log.last_stable_offset, log.log_start_offset
        if last_epoch >= 0 and (diverging := _diverging_epoch(partition, last_epoch, offset)) is not None:
            return FetchedPartition(index, 0, high_watermark, stable, start, diverging_epoch=diverging), 0
        committed_only = self._request.isolation_level == _READ_COMMITTED
        if follower is not None:
            follower.note(partition, wanted)
            high_watermark, stable = log.high_watermark, log.last_stable_offset
            bound = log.log_end_offset
            if follower.holds_back(partition):
                return FetchedPartition(index, 0, high_watermark, stable, start), 0
        elif self._reads_to_end:
            bound = log.log_end_offset
        else:
            if partition.lead is not None and (closer := self._closer_replica(partition, offset)) is not None:
                return FetchedPartition(index, 0, high_watermark, stable, start, preferred_read_replica=closer), 0
            bound = stable if committed_only else high_watermark
        if bound <= offset <= log.log_end_offset and not log.is_offline:
            if not self._reads_to_end and offset > high_watermark:
                # It was given more by a leader who knew more: this replica will soon, and says nothing till then.
                return FetchedPartition(index, ErrorCode.OFFSET_NOT_AVAILABLE), 0
            # Nothing there, or not yet for this reader: nothing to give, and nothing wrong.
            return FetchedPartition(index, 0, high_watermark, stable, start, [] if committed_only else None), 0
        info = log.read(offset, min(max_bytes, left), upper_bound_offset=bound, min_one_batch=is_first)
        aborted = None
        if committed_only:
            aborted = [(each.producer_id, each.first_offset) for each in log.aborted_within(info, bound)]
        size = info.length
        if follower is None:
            partition.bytes_out += size
        else:
            partition.replication_bytes_out += size
            follower.sent(partition, size)
        records = () if info.region is None else (info.region,)
        return FetchedPartition(index, 0, high_watermark, stable, start, aborted, records), size

    def _closer_replica(self, partition: Partition, offset: int) -> int | None:
        """Where the consumer should rather read, if that is not here."""
        rack = self._request.rack_id
        if not rack or self._call.version < _FROM_ANY_REPLICA:
            return None
        from moldau.broker.replicas.follower_fetch import closer_replica

        return closer_replica(self._broker, partition, rack, offset)

    def is_silenced(self) -> bool:
        """Whether its client had too much already: then it has been told so, instead of what was read."""
        call = self._call
        if call.meter is None or self._follower is not None:
            return False
        size_bytes = self._total_bytes + _TOLD_BYTES * len(self.results)
        throttle_ms = call.meter.fetched(call, size_bytes)
        if throttle_ms > 0:
            session_id = self._context.session_id
            call.respond_payload(
                encode_fetch_response(call.version, (), throttle_time_ms=throttle_ms, session_id=session_id)
            )
        return throttle_ms > 0

    def respond(self) -> None:
        if self.is_silenced():
            return
        self._call.respond_payload(self.answer())
        if self._follower is not None:
            self._follower.note_sent(self.results)

    def answer(self) -> list[Buffer | FileRegion]:
        told: Told = []
        _add(told, self._context.tell(self.results))
        return self.encode(told)

    def tell_in_slices(self) -> Slices[Told]:
        told: Told = []
        for start in range(0, len(self.results), _TOLD_PER_SLICE):
            if start:
                yield
            _add(told, self._context.tell(self.results[start : start + _TOLD_PER_SLICE]))
        return told

    def encode(self, told: Told) -> list[Buffer | FileRegion]:
        return encode_fetch_response(self._call.version, told, session_id=self._context.session_id)


def _add(told: Told, results: Iterable[tuple[Topic, FetchedPartition]]) -> None:
    for topic, result in results:
        if told and told[-1][0] == topic:
            told[-1][1].append(result)
        else:
            told.append((topic, [result]))


def _diverging_epoch(partition: Partition, last_epoch: int, offset: int) -> tuple[int, int] | None:
    """Where the reader's log left ours, if it did (KIP-595): it must go back to there."""
    log = partition.log
    end = log.end_offset_for_epoch(last_epoch)
    if end is None:
        raise OffsetOutOfRange(f"nothing is known of leader epoch {last_epoch}, which the reader has seen")
    if offset < log.log_start_offset:
        raise OffsetOutOfRange(f"offset {offset} is before the log start {log.log_start_offset}")
    if end.epoch < last_epoch or end.end_offset < offset:
        return end.epoch, end.end_offset
    return None
