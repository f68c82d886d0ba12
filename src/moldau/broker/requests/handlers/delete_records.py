"""DeleteRecords (key 21), versions 0-2. Moves the start of partitions up to an offset; -1 means the high watermark.

Answered with the low watermark, the smallest log start of all replicas that are alive, once that has reached the
offset, or with REQUEST_TIMED_OUT. Files go with the next retention check. Refused beyond the high watermark
(OFFSET_OUT_OF_RANGE), for topics that are compacted and never deleted (POLICY_VIOLATION), and for internal ones
(INVALID_TOPIC_EXCEPTION).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from moldau.broker.replicas.manager import PartitionUnavailable
from moldau.broker.requests.access import TOPIC, may
from moldau.broker.requests.changes import noted
from moldau.broker.requests.pieces import is_long
from moldau.controller.acls import Operation
from moldau.controller.names import INTERNAL_TOPICS
from moldau.log.errors import LogError
from moldau.timers.turns import Slices, at_once
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAudit, HasAuthorizer, HasImage, HasPurgatories, HasTime, HasTurns
    from moldau.broker.replicas.partition import Partition
    from moldau.broker.replicas.parts import HasReplicas

    class Needs(HasAudit, HasAuthorizer, HasImage, HasPurgatories, HasTime, HasTurns, HasReplicas, Protocol):
        """What this file may touch."""


_HIGH_WATERMARK = -1
_NO_LOW_WATERMARK = -1
_PER_SLICE = 50


Result = m.DeleteRecordsResponse.DeleteRecordsPartitionResult


Wanted = m.DeleteRecordsRequest.DeleteRecordsTopic
Waiting = dict["Partition", tuple[int, Result]]
"""Which offset a partition is to begin at, and where that will be told. One named twice is told twice the same."""


def _partitions(topic: Wanted) -> list[m.DeleteRecordsRequest.DeleteRecordsPartition]:
    return topic.partitions


def handle(
    broker: Needs, call: Call, request: m.DeleteRecordsRequest
) -> m.DeleteRecordsResponse | Awaitable[m.DeleteRecordsResponse] | None:
    if is_long(request.topics, _partitions):
        return _in_turns(broker, call, request)
    response = m.DeleteRecordsResponse()
    waiting = at_once(_delete_all(broker, call, request, response))
    if not waiting:
        return response
    _wait(broker, request, waiting, lambda: call.respond(noted(broker, call, request, response)))
    return None


async def _in_turns(broker: Needs, call: Call, request: m.DeleteRecordsRequest) -> m.DeleteRecordsResponse:
    """Of very many partitions."""
    response = m.DeleteRecordsResponse()
    waiting = await broker.in_turns(_delete_all(broker, call, request, response))
    if waiting:
        gone = asyncio.Event()
        _wait(broker, request, waiting, gone.set)
        await gone.wait()
    return response


def _delete_all(
    broker: Needs, call: Call, request: m.DeleteRecordsRequest, response: m.DeleteRecordsResponse
) -> Slices[Waiting]:
    waiting: Waiting = {}
    may_delete = may(broker, call, Operation.DELETE, TOPIC)
    count = 0
    for topic in request.topics:
        is_allowed = may_delete(topic.name)
        told = m.DeleteRecordsResponse.DeleteRecordsTopicResult(topic.name)
        response.topics.append(told)
        for wanted in topic.partitions:
            if is_allowed:
                told.partitions.append(_delete(broker, topic.name, wanted, waiting))
            else:
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                told.partitions.append(Result(wanted.partition_index, _NO_LOW_WATERMARK, code))
            count += 1
            if count % _PER_SLICE == 0:
                yield
        if not topic.partitions:
            count += 1
            if count % _PER_SLICE == 0:
                yield
    return waiting


def _wait(broker: Needs, request: m.DeleteRecordsRequest, waiting: Waiting, then: Callable[[], None]) -> None:
    deadline_ms = broker.clock.monotonic_ms() + request.timeout_ms
    delayed = _DelayedDelete(broker, waiting, then)
    broker.produce_purgatory.watch(delayed, [partition.key for partition in waiting], deadline_ms)


def _delete(
    broker: Needs, topic: str, wanted: m.DeleteRecordsRequest.DeleteRecordsPartition, waiting: Waiting
) -> Result:
    result = Result(wanted.partition_index, _NO_LOW_WATERMARK)
    if broker.image.partition(topic, wanted.partition_index) is None:
        result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif topic in INTERNAL_TOPICS:
        result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
    else:
        try:
            partition = broker.replicas.leader(topic, wanted.partition_index)
            log = partition.log
            if log.config.cleanup_policy == {"compact"}:
                result.error_code = ErrorCode.POLICY_VIOLATION
            else:
                offset = log.high_watermark if wanted.offset == _HIGH_WATERMARK else wanted.offset
                result.low_watermark = log.delete_records_before(offset)
                if partition.lead is not None:
                    before = waiting.get(partition)
                    if before is not None:
                        offset, result = max(offset, before[0]), before[1]
                    waiting[partition] = offset, result
        except (PartitionUnavailable, LogError) as error:
            result.error_code = error.code
    return result


class _DelayedDelete:
    """Waits until the records are gone from all replicas that are alive."""

    __slots__ = ("_broker", "_left", "_then", "_waiting")

    def __init__(self, broker: Needs, waiting: Waiting, then: Callable[[], None]) -> None:
        self._broker = broker
        self._waiting = waiting
        self._left = list(waiting)
        self._then = then

    def _low_watermark(self, partition: Partition) -> int:
        start = partition.log.log_start_offset
        return start if partition.lead is None else partition.lead.low_watermark(start, self._broker.image.is_active)

    def is_ready(self) -> bool:
        """Asked whenever one of them has changed: what is gone is not looked at again."""
        left = self._left
        while left and (not left[-1].is_leader or self._low_watermark(left[-1]) >= self._waiting[left[-1]][0]):
            left.pop()
        return not left

    def on_complete(self, expired: bool) -> None:
        for partition, (offset, result) in self._waiting.items():
            if not partition.is_leader:
                result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                result.low_watermark = _NO_LOW_WATERMARK
                continue
            result.low_watermark = self._low_watermark(partition)
            if result.low_watermark < offset:
                result.error_code = ErrorCode.REQUEST_TIMED_OUT
        self._then()
