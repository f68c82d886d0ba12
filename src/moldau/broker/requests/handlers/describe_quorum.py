"""DescribeQuorum (key 55), versions 0-2. The metadata quorum: who leads, in which epoch, and who has how much.

Only `__cluster_metadata-0`, alone, can be asked for; anything else is UNKNOWN_TOPIC_OR_PARTITION in every partition.
From version 1 on replicas tell when they last fetched and caught up, from 2 on their directories and addresses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.broker.quorum.description import describe
from moldau.broker.quorum.metadata_log import TOPIC
from moldau.timers.turns import Slices
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasConfig, HasIdentity, HasTime
    from moldau.broker.quorum.description import ReplicaState
    from moldau.broker.quorum.parts import HasQuorum

    class Needs(HasConfig, HasIdentity, HasTime, HasQuorum, Protocol):
        """What this file may touch."""


_PER_SLICE = 500
Partition = m.DescribeQuorumResponse.PartitionData


def handle(broker: Needs, _call: Call, request: m.DescribeQuorumRequest) -> Slices[m.DescribeQuorumResponse]:
    response = m.DescribeQuorumResponse()
    kind = m.DescribeQuorumResponse.TopicData
    if _is_the_quorum(request):
        response.topics.append(kind(TOPIC, [_leader(broker)]))
        response.nodes = _nodes(broker)
        return response
    count = 0
    for topic in request.topics:
        told = kind(topic.topic_name)
        response.topics.append(told)
        for each in topic.partitions:
            told.partitions.append(_unknown(each.partition_index))
            count += 1
            if count % _PER_SLICE == 0:
                yield
        count += 1
        if count % _PER_SLICE == 0:
            yield
    return response


def _is_the_quorum(request: m.DescribeQuorumRequest) -> bool:
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return False
    (topic,) = request.topics
    return topic.topic_name == TOPIC and topic.partitions[0].partition_index == 0


def _unknown(index: int) -> Partition:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return Partition(index, code, code.meaning)


def _leader(broker: Needs) -> Partition:
    found = describe(broker.metadata_log, broker.clock)
    if found is None:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return Partition(0, code, code.meaning, *_known_leader(broker))
    return Partition(
        partition_index=0,
        leader_id=found.leader_id,
        leader_epoch=found.epoch,
        high_watermark=found.high_watermark,
        current_voters=[_state(each) for each in found.voters],
        observers=[_state(each) for each in found.observers],
    )


def _known_leader(broker: Needs) -> tuple[int, int]:
    leader_id = broker.metadata_log.leader_id
    return -1 if leader_id is None else leader_id, broker.metadata_log.epoch


def _state(replica: ReplicaState) -> m.DescribeQuorumResponse.ReplicaState:
    return m.DescribeQuorumResponse.ReplicaState(
        *replica.key, replica.end_offset, replica.last_fetch_ms, replica.last_caught_up_ms
    )


def _nodes(broker: Needs) -> list[m.DescribeQuorumResponse.Node]:
    """The voters and where they listen; of itself a node knows best."""
    kind = m.DescribeQuorumResponse
    nodes = []
    for voter in broker.metadata_log.voters:
        listeners = [kind.Listener(name, address.host, address.port) for name, address in voter.endpoints]
        if voter.key.id == broker.node_id:
            own = broker.config.controller_listeners
            listeners = [kind.Listener(each.listener, each.host or "", each.port) for each in own] or listeners
        nodes.append(kind.Node(voter.key.id, listeners))
    return nodes
