"""DeleteRecords (key 21), versions 0-2. Moves the start of partitions up to an offset; -1 means the high watermark.

Answered with the low watermark, the smallest log start of all replicas that are alive, once that has reached the
offset, or with REQUEST_TIMED_OUT. Files go with the next retention check. Refused beyond the high watermark
(OFFSET_OUT_OF_RANGE), for topics that are compacted and never deleted (POLICY_VIOLATION), and for internal ones
(INVALID_TOPIC_EXCEPTION).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.broker.replicas.manager import PartitionUnavailable
from moldau.broker.requests.access import TOPIC, may
from moldau.broker.requests.changes import noted
from moldau.controller.acls import Operation
from moldau.controller.names import INTERNAL_TOPICS
from moldau.log.errors import LogError
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAudit, HasAuthorizer, HasImage, HasPurgatories, HasTime
    from moldau.broker.replicas.partition import Partition
    from moldau.broker.replicas.parts import HasReplicas

    class Needs(HasAudit, HasAuthorizer, HasImage, HasPurgatories, HasTime, HasReplicas, Protocol):
        """What this file may touch."""


_HIGH_WATERMARK = -1
_NO_LOW_WATERMARK = -1


Result = m.DeleteRecordsResponse.DeleteRecordsPartitionResult


def handle(broker: Needs, call: Call, request: m.DeleteRecordsRequest) -> m.DeleteRecordsResponse | None:
    response = m.DeleteRecordsResponse()
    waiting: list[tuple[Partition, int, Result]] = []
    may_delete = may(broker, call, Operation.DELETE, TOPIC)
    for topic in request.topics:
        if not may_delete(topic.name):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            refused = [Result(each.partition_index, _NO_LOW_WATERMARK, code) for each in topic.partitions]
            response.topics.append(m.DeleteRecordsResponse.DeleteRecordsTopicResult(topic.name, refused))
            continue
        results = [_delete(broker, topic.name, wanted, waiting) for wanted in topic.partitions]
        response.topics.append(m.DeleteRecordsResponse.DeleteRecordsTopicResult(topic.name, results))
    if not waiting:
        return response
    deadline_ms = broker.clock.monotonic_ms() + request.timeout_ms
    delayed = _DelayedDelete(broker, call, request, response, waiting)
    broker.produce_purgatory.watch(delayed, [partition.key for partition, _, _ in waiting], deadline_ms)
    return None


def _delete(
    broker: Needs,
    topic: str,
    wanted: m.DeleteRecordsRequest.DeleteRecordsPartition,
    waiting: list[tuple[Partition, int, Result]],
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
                    waiting.append((partition, offset, result))
        except (PartitionUnavailable, LogError) as error:
            result.error_code = error.code
    return result


class _DelayedDelete:
    """Waits until the records are gone from all replicas that are alive."""

    __slots__ = ("_broker", "_call", "_request", "_response", "_waiting")

    def __init__(
        self,
        broker: Needs,
        call: Call,
        request: m.DeleteRecordsRequest,
        response: m.DeleteRecordsResponse,
        waiting: list[tuple[Partition, int, Result]],
    ) -> None:
        self._broker = broker
        self._call = call
        self._request = request
        self._response = response
        self._waiting = waiting

    def _low_watermark(self, partition: Partition) -> int:
        start = partition.log.log_start_offset
        return start if partition.lead is None else partition.lead.low_watermark(start, self._broker.image.is_active)

    def is_ready(self) -> bool:
        return all(
            not partition.is_leader or self._low_watermark(partition) >= offset
            for partition, offset, _ in self._waiting
        )

    def on_complete(self, expired: bool) -> None:
        for partition, offset, result in self._waiting:
            if not partition.is_leader:
                result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                result.low_watermark = _NO_LOW_WATERMARK
                continue
            result.low_watermark = self._low_watermark(partition)
            if result.low_watermark < offset:
                result.error_code = ErrorCode.REQUEST_TIMED_OUT
        self._call.respond(noted(self._broker, self._call, self._request, self._response))
