"""DescribeQuorum (key 55), versions 0-2. The metadata quorum: who leads, in which epoch, and who has how much.

Only `__cluster_metadata-0`, alone, can be asked for; anything else is UNKNOWN_TOPIC_OR_PARTITION in every partition.
From version 1 on replicas tell when they last fetched and caught up, from 2 on their directories and addresses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.broker.metadata_log import TOPIC
from moldau.log.checkpoints import uuid_bytes
from moldau.wire import ZERO_UUID, ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.calls import Call

Partition = m.DescribeQuorumResponse.PartitionData


def handle(broker: Broker, _call: Call, request: m.DescribeQuorumRequest) -> m.DescribeQuorumResponse:
    asked = [
        (topic.topic_name, partition.partition_index) for topic in request.topics for partition in topic.partitions
    ]
    response = m.DescribeQuorumResponse()
    for topic in request.topics:
        partitions = [
            _leader(broker) if asked == [(TOPIC, 0)] else _unknown(each.partition_index) for each in topic.partitions
        ]
        response.topics.append(m.DescribeQuorumResponse.TopicData(topic.topic_name, partitions))
    if asked == [(TOPIC, 0)]:
        response.nodes = [_node(broker)]
    return response


def _unknown(index: int) -> Partition:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return Partition(index, code, code.meaning)


def _leader(broker: Broker) -> Partition:
    log = broker.metadata_log.log
    now_ms = broker.clock.wall_ms()
    voter = m.DescribeQuorumResponse.ReplicaState(
        broker.node_id, _directory_id(broker), log.log_end_offset, now_ms, now_ms
    )
    return Partition(
        partition_index=0,
        leader_id=broker.node_id,
        leader_epoch=broker.metadata_log.epoch,
        high_watermark=log.high_watermark,
        current_voters=[voter],
    )


def _directory_id(broker: Broker) -> bytes:
    log_dir = broker.logs.dirs.get(broker.config.metadata_log_dir)
    if log_dir is None or log_dir.properties is None or log_dir.properties.directory_id is None:
        return ZERO_UUID
    return uuid_bytes(log_dir.properties.directory_id)


def _node(broker: Broker) -> m.DescribeQuorumResponse.Node:
    listeners = [
        m.DescribeQuorumResponse.Listener(each.listener, each.host or "", each.port)
        for each in broker.config.controller_listeners
    ]
    return m.DescribeQuorumResponse.Node(broker.node_id, listeners)
