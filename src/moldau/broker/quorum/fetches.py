"""Fetches of the metadata log by other nodes. One that finds nothing new waits for records, for a higher high watermark
than it has been told (KIP-1166), or for the end of this node's leadership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from moldau.broker.quorum.errors import QuorumStopped
from moldau.broker.quorum.metadata_log import TOPIC, TOPIC_ID
from moldau.log.errors import LogError
from moldau.raft import Fetch, Fetched, Raft, ReplicaKey
from moldau.wire import ZERO_UUID, ErrorCode
from moldau.wire.fetch import (
    FetchedPartition,
    FetchFrame,
    FetchPartition,
    Topic,
    encode_fetch_response,
    high_watermark_of,
)

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.quorum.metadata_log import QuorumLog
    from moldau.log import PartitionLog

    class Needs(Protocol):
        """What of the quorum this file may touch."""

        cluster_id: str
        files: QuorumLog

        @property
        def raft(self) -> Raft: ...

        @property
        def log(self) -> PartitionLog: ...

        @property
        def epoch(self) -> int: ...

        @property
        def high_watermark(self) -> int: ...

        def ask(self, question: Callable[[float], Fetched]) -> Fetched: ...


_UUID_BYTES = 16
_TELLS_ENDPOINTS = 16


@dataclass(slots=True, eq=False)
class _Waiting:
    call: Call
    topic: Topic
    request: Fetch
    max_bytes: int
    timer: asyncio.TimerHandle | None = None


class QuorumFetches:
    """Belongs to the event loop. One fetch waits per connection at most, since its next request waits behind it."""

    def __init__(self, quorum: Needs) -> None:
        self._quorum = quorum
        self._waiting: list[_Waiting] = []
        self._waking: asyncio.Handle | None = None

    def fetch(self, call: Call, frame: FetchFrame) -> None:
        if frame.cluster_id is not None and frame.cluster_id != self._quorum.cluster_id:
            call.respond_payload(encode_fetch_response(call.version, (), error_code=ErrorCode.INCONSISTENT_CLUSTER_ID))
            return
        if len(frame.topics) != 1 or not _is_metadata(*frame.topics[0]):
            call.respond_payload(encode_fetch_response(call.version, (), error_code=ErrorCode.INVALID_REQUEST))
            return
        topic, [(_, epoch, offset, last_epoch, _, max_bytes, tags)] = frame.topics[0]
        directory_id = tags.get(0, b"") if isinstance(tags, dict) else b""
        if len(directory_id) != _UUID_BYTES:
            directory_id = ZERO_UUID
        key = ReplicaKey(frame.replica_id, directory_id)
        request = Fetch(key, epoch, offset, max(last_epoch, 0), high_watermark_of(tags))
        waiting = _Waiting(call, topic, request, min(max_bytes, frame.max_bytes))
        if not self._answer(waiting, must=frame.max_wait_ms <= 0):
            loop = asyncio.get_running_loop()
            waiting.timer = loop.call_later(frame.max_wait_ms / 1000, self._expire, waiting)
            self._waiting.append(waiting)

    def _expire(self, waiting: _Waiting) -> None:
        self._waiting.remove(waiting)
        self._answer(waiting, must=True)

    def wake_soon(self) -> None:
        """Something may have changed: answer those for whom it has, after whatever is going on now."""
        if self._waiting and self._waking is None:
            self._waking = asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._waking = None
        quorum = self._quorum
        end, known = quorum.files.end_offset, quorum.raft.told_high_watermark
        is_wrong = quorum.raft.leader_only(quorum.epoch) is not ErrorCode.NONE
        ready = [
            each
            for each in self._waiting
            if is_wrong
            or each.request.epoch not in (-1, quorum.epoch)
            or end > each.request.offset
            or known > each.request.high_watermark
        ]
        self._waiting = [each for each in self._waiting if each not in ready]
        for each in ready:
            if each.timer is not None:
                each.timer.cancel()
            self._answer(each, must=True)

    def _answer(self, waiting: _Waiting, *, must: bool) -> bool:
        """Whether it was answered, since there was something to say."""
        quorum, request = self._quorum, waiting.request
        try:
            answer = quorum.ask(partial(quorum.raft.on_fetch, fetch=request))
        except QuorumStopped:
            self._refuse(waiting)
            return True
        result = FetchedPartition(
            0,
            answer.error,
            answer.high_watermark,
            answer.high_watermark,
            answer.log_start_offset,
            diverging_epoch=answer.diverging,
            current_leader=(-1 if answer.leader_id is None else answer.leader_id, answer.epoch),
            snapshot_id=answer.snapshot,
        )
        if answer.error is ErrorCode.NONE and answer.diverging is None and answer.snapshot is None:
            bound = quorum.high_watermark if request.replica.id < 0 else None
            try:
                read = quorum.log.read(request.offset, waiting.max_bytes, upper_bound_offset=bound)
            except LogError as error:
                result = result._replace(error_code=error.code)
            else:
                has_news = read.region is not None or answer.high_watermark > request.high_watermark
                if not has_news and not must:
                    return False
                if read.region is not None:
                    result = result._replace(records=(read.region,))
        self._respond(waiting, answer, result)
        return True

    def _respond(self, waiting: _Waiting, answer: Fetched, result: FetchedPartition) -> None:
        call = waiting.call
        endpoints = []
        if answer.leader_id is not None and answer.leader_address is not None and call.version >= _TELLS_ENDPOINTS:
            endpoints.append((answer.leader_id, *answer.leader_address, None))
        body = encode_fetch_response(call.version, [(waiting.topic, [result])], node_endpoints=endpoints)
        call.respond_payload(body)

    def stop(self) -> None:
        """The node stops: nobody waits any longer."""
        waiting, self._waiting = self._waiting, []
        if self._waking is not None:
            self._waking.cancel()
        for each in waiting:
            if each.timer is not None:
                each.timer.cancel()
            self._refuse(each)

    def _refuse(self, waiting: _Waiting) -> None:
        answer = Fetched(ErrorCode.BROKER_NOT_AVAILABLE, None, self._quorum.epoch)
        self._respond(waiting, answer, FetchedPartition(0, answer.error))


def _is_metadata(topic: Topic, partitions: Sequence[FetchPartition]) -> bool:
    return topic in (TOPIC, TOPIC_ID) and [each[0] for each in partitions] == [0]
