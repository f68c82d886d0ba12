"""OffsetForLeaderEpoch (key 23), versions 2-4. Where an epoch ends: how followers and consumers notice a truncation.

The answer is the largest epoch up to the one asked for, and the offset after its last record; -1 for both if this
leader knows nothing about it. Only the leader answers, and only to those who know it as the leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.broker.replicas.manager import PartitionUnavailable
from moldau.broker.requests.access import TOPIC, may, may_on_cluster
from moldau.broker.requests.handlers.common import replica
from moldau.controller.acls import Operation
from moldau.timers.turns import Slices
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAuthorizer
    from moldau.broker.replicas.parts import HasReplicas

    class Needs(HasAuthorizer, HasReplicas, Protocol):
        """What this file may touch."""


_PER_SLICE = 100  # partitions; then others get a turn
Wanted = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition
End = m.OffsetForLeaderEpochResponse.EpochEndOffset


def handle(broker: Needs, call: Call, request: m.OffsetForLeaderEpochRequest) -> Slices[m.OffsetForLeaderEpochResponse]:
    response = m.OffsetForLeaderEpochResponse()
    is_broker = may_on_cluster(broker, call, Operation.CLUSTER_ACTION, is_filter=True)
    may_describe = may(broker, call, Operation.DESCRIBE, TOPIC)
    refused = []
    answered = 0
    for topic in request.topics:
        if not is_broker and not may_describe(topic.topic):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            unseen = [End(code, each.partition) for each in topic.partitions]
            refused.append(m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic.topic, unseen))
            continue
        ends = []
        for wanted in topic.partitions:
            ends.append(_answer(broker, topic.topic, wanted))
            answered += 1
            if answered % _PER_SLICE == 0:
                yield
        response.topics.append(m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic.topic, ends))
    response.topics += refused
    return response


def _answer(broker: Needs, topic: str, wanted: Wanted) -> End:
    end = End(partition=wanted.partition)
    try:
        partition = replica(broker, topic, wanted.partition, wanted.current_leader_epoch, leader_only=True)
    except PartitionUnavailable as error:
        end.error_code = error.code
        return end
    found = partition.log.end_offset_for_epoch(wanted.leader_epoch)
    if found is not None:
        end.leader_epoch, end.end_offset = found
    return end
