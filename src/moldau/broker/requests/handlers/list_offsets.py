"""ListOffsets (key 2), versions 1-11. Offsets by timestamp, or by a meaning that a negative one stands for.

-1 is the latest offset (the high watermark; with read_committed the last stable offset; for a replica the log end),
-2 the earliest, -3 (from version 7) the first record with the largest timestamp, -4 (8) the earliest local one. Nothing
is tiered here, so -5 (9), the latest tiered, and -6 (11), the earliest not yet tiered, find nothing. So does a search
that ends at or beyond what the client may read. What a version does not know is UNSUPPORTED_VERSION. The leader epoch
of the offset is told from version 4 on. A partition named twice is INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from moldau.broker.replicas.manager import PartitionUnavailable
from moldau.broker.requests.access import TOPIC, may
from moldau.broker.requests.handlers.common import replica
from moldau.broker.requests.mentions import Mentions
from moldau.controller.acls import Operation
from moldau.log.errors import LogError
from moldau.log.timestamps import FoundOffset
from moldau.timers.turns import Slices
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAuthorizer
    from moldau.broker.replicas.partition import Partition
    from moldau.broker.replicas.parts import HasReplicas

    class Needs(HasAuthorizer, HasReplicas, Protocol):
        """What this file may touch."""


Topic = m.ListOffsetsRequest.ListOffsetsTopic
Wanted = m.ListOffsetsRequest.ListOffsetsPartition
Found = m.ListOffsetsResponse.ListOffsetsPartitionResponse

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
_SINCE_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_CONSUMER, _DEBUGGER = -1, -2
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_NOTHING = FoundOffset(-1, -1, -1)
# After so many partitions others get a turn. Searches read batches.
_PER_SLICE = 320
_SEARCH_COSTS = 5
_LOOKED_AT = 2_000


def handle(broker: Needs, call: Call, request: m.ListOffsetsRequest) -> Slices[m.ListOffsetsResponse]:
    response = m.ListOffsetsResponse()
    left = _PER_SLICE
    for wanted in _answers(broker, call, request, response):
        if wanted is None:
            yield
            continue
        left -= _SEARCH_COSTS if _is_search(wanted) else 1
        if left <= 0:
            left = _PER_SLICE
            yield
    return response


def _is_search(wanted: Wanted) -> bool:
    return wanted.timestamp >= 0 or wanted.timestamp == MAX_TIMESTAMP


def _answers(
    broker: Needs, call: Call, request: m.ListOffsetsRequest, response: m.ListOffsetsResponse
) -> Iterator[Wanted | None]:
    """Answer one partition after the other, into the response. None: some time was spent on finding doubles."""
    mentions = Mentions(sum(len(topic.partitions) for topic in request.topics))
    looked_at = 0
    for topic in request.topics:
        for wanted in topic.partitions:
            looked_at += 1
            if looked_at % _LOOKED_AT == 0:
                yield None
            mentions.add((topic.name, wanted.partition_index))
    may_describe = may(broker, call, Operation.DESCRIBE, TOPIC)
    refused: list[m.ListOffsetsResponse.ListOffsetsTopicResponse] = []
    for topic in request.topics:
        if not may_describe(topic.name):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            partitions = [Found(each.partition_index, code) for each in topic.partitions]
            refused.append(m.ListOffsetsResponse.ListOffsetsTopicResponse(topic.name, partitions))
            continue
        answer = m.ListOffsetsResponse.ListOffsetsTopicResponse(topic.name)
        response.topics.append(answer)
        for wanted in topic.partitions:
            times = mentions.take((topic.name, wanted.partition_index))
            if times == 0:
                looked_at += 1
                if looked_at % _LOOKED_AT == 0:
                    yield None
                continue
            if times > 1:
                answer.partitions.append(Found(wanted.partition_index, ErrorCode.INVALID_REQUEST))
            else:
                answer.partitions.append(_answer(broker, call, request, topic.name, wanted))
            yield wanted
    response.topics += refused


def _answer(broker: Needs, call: Call, request: m.ListOffsetsRequest, topic: str, wanted: Wanted) -> Found:
    timestamp, index = wanted.timestamp, wanted.partition_index
    if timestamp < 0 and call.version < _SINCE_VERSION.get(timestamp, call.version + 1):
        return Found(index, ErrorCode.UNSUPPORTED_VERSION)
    if request.isolation_level not in (_READ_UNCOMMITTED, _READ_COMMITTED):
        return Found(index, ErrorCode.UNKNOWN_SERVER_ERROR)  # Kafka's answer to a senseless isolation level
    try:
        partition = replica(
            broker, topic, index, wanted.current_leader_epoch, leader_only=request.replica_id != _DEBUGGER
        )
        found = _find(partition, timestamp, request)
    except PartitionUnavailable as error:
        code = error.code
        if code is ErrorCode.OFFSET_NOT_AVAILABLE and call.version < 5:
            code = ErrorCode.LEADER_NOT_AVAILABLE
        return Found(index, code)
    except LogError as error:
        return Found(index, error.code)
    return Found(index, ErrorCode.NONE, *found)


def _find(partition: Partition, timestamp: int, request: m.ListOffsetsRequest) -> FoundOffset:
    log = partition.log
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.earliest()
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NOTHING
    is_consumer = request.replica_id == _CONSUMER
    bound = log.log_end_offset
    if is_consumer:
        bound = log.last_stable_offset if request.isolation_level == _READ_COMMITTED else log.high_watermark
    # A new leader's high watermark may lag behind what the former one had told: better no answer than one that goes
    # backwards.
    lags = is_consumer and _epoch_start(partition) > log.high_watermark
    if timestamp == LATEST:
        if lags:
            raise PartitionUnavailable(ErrorCode.OFFSET_NOT_AVAILABLE)
        return FoundOffset(-1, bound, partition.leader_epoch)
    found = log.offset_of_max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    if found is None or found.offset >= bound:
        if lags:
            raise PartitionUnavailable(ErrorCode.OFFSET_NOT_AVAILABLE)
        return _NOTHING
    return found


def _epoch_start(partition: Partition) -> int:
    """Where the current leader's epoch began; -1 for the first epoch, which has nobody before it."""
    log = partition.log
    return log.epochs.end_offset_for(partition.leader_epoch - 1, log.log_end_offset).end_offset
