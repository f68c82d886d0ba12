"""DeleteRecords (key 21), versions 0-2. Moves the start of partitions up to an offset; -1 means the high watermark.

Answered with the low watermark: the new log start. Files go with the next retention check. Refused beyond the high
watermark (OFFSET_OUT_OF_RANGE), for topics that are compacted and never deleted (POLICY_VIOLATION), and for internal
ones (INVALID_TOPIC_EXCEPTION).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.broker.replicas import PartitionUnavailable
from moldau.controller.names import INTERNAL_TOPICS
from moldau.log.errors import LogError
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.calls import Call

_HIGH_WATERMARK = -1
_NO_LOW_WATERMARK = -1


def handle(broker: Broker, _call: Call, request: m.DeleteRecordsRequest) -> m.DeleteRecordsResponse:
    response = m.DeleteRecordsResponse()
    for topic in request.topics:
        results = [_delete(broker, topic.name, wanted) for wanted in topic.partitions]
        response.topics.append(m.DeleteRecordsResponse.DeleteRecordsTopicResult(topic.name, results))
    return response


def _delete(
    broker: Broker, topic: str, wanted: m.DeleteRecordsRequest.DeleteRecordsPartition
) -> m.DeleteRecordsResponse.DeleteRecordsPartitionResult:
    result = m.DeleteRecordsResponse.DeleteRecordsPartitionResult(wanted.partition_index, _NO_LOW_WATERMARK)
    if broker.image.partition(topic, wanted.partition_index) is None:
        result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif topic in INTERNAL_TOPICS:
        result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
    else:
        try:
            log = broker.replicas.leader(topic, wanted.partition_index).log
            if log.config.cleanup_policy == {"compact"}:
                result.error_code = ErrorCode.POLICY_VIOLATION
            else:
                offset = log.high_watermark if wanted.offset == _HIGH_WATERMARK else wanted.offset
                result.low_watermark = log.delete_records_before(offset)
        except (PartitionUnavailable, LogError) as error:
            result.error_code = error.code
    return result
