"""DescribeTopicPartitions (key 75), version 0. Partitions of topics, page by page, in the order of the topics' names.

Named topics, or all of them with none. A page has at most `response_partition_limit` partitions, never more than
`max.request.partition.size.limit`; `next_cursor` says where the next one begins. With names given, the cursor's topic
must be among them; a senseless cursor is INVALID_REQUEST for every topic. Unlike Metadata it tells eligible leader
replicas, and creates nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.access import TOPIC, authorized_operations, may
from moldau.controller.acls import Operation
from moldau.controller.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from moldau.controller.names import INTERNAL_TOPICS, reason_name_is_invalid
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAuthorizer, HasConfig, HasImage

    class Needs(HasAuthorizer, HasConfig, HasImage, Protocol):
        """What this file may touch."""


Topic = m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
Partition = m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition
Cursor = m.DescribeTopicPartitionsResponse.Cursor


def handle(broker: Needs, call: Call, request: m.DescribeTopicPartitionsRequest) -> m.DescribeTopicPartitionsResponse:
    image, cursor = broker.image, request.cursor
    from_name, from_index = ("", 0) if cursor is None else (cursor.topic_name, cursor.partition_index)
    asked = {topic.name for topic in request.topics}
    if from_index < 0 or (asked and cursor is not None and from_name not in asked):
        refused = [Topic(ErrorCode.INVALID_REQUEST, topic.name) for topic in request.topics]
        return m.DescribeTopicPartitionsResponse(topics=refused)
    may_describe = may(broker, call, Operation.DESCRIBE, TOPIC, is_filter=not asked)
    names = sorted(name for name in asked or image.topics if name >= from_name)
    hidden = [name for name in names if not may_describe(name)]
    if hidden:
        unseen = set(hidden)
        names = [name for name in names if name not in unseen]
    limit = min(request.response_partition_limit, broker.config.get_int("max.request.partition.size.limit"))
    left = max(limit, 1)
    response = m.DescribeTopicPartitionsResponse()
    for name in names:
        if left == 0:
            response.next_cursor = Cursor(name, 0)
            break
        topic = image.topics.get(name)
        if topic is None:
            response.topics.append(_missing(name))
            continue
        first = from_index if name == from_name else 0
        end = min(len(topic.partitions), first + left)
        response.topics.append(_describe(image, topic, range(first, end), call.connection.listener_name))
        if end < len(topic.partitions):
            response.next_cursor = Cursor(name, end)
            break
        left -= max(0, end - first)
    for topic_data in response.topics:
        topic_data.topic_authorized_operations = authorized_operations(broker, call, TOPIC, topic_data.name or "")
    if asked:  # of those nobody asked for, nothing is said
        response.topics += [Topic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name) for name in hidden]
    return response


def _missing(name: str) -> Topic:
    invalid = reason_name_is_invalid(name) is not None
    code = ErrorCode.INVALID_TOPIC_EXCEPTION if invalid else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return Topic(code, name, is_internal=name in INTERNAL_TOPICS)


def _describe(image: ClusterImage, topic: TopicImage, indexes: Iterable[int], listener: str) -> Topic:
    return Topic(
        ErrorCode.NONE,
        topic.name,
        topic.topic_id,
        topic.name in INTERNAL_TOPICS,
        [_partition(image, index, topic.partitions[index], listener) for index in indexes],
    )


def _partition(image: ClusterImage, index: int, partition: PartitionImage, listener: str) -> Partition:
    offline = [replica for replica in partition.replicas if not _is_online(image, partition, replica, listener)]
    return Partition(
        ErrorCode.NONE,
        index,
        NO_LEADER if partition.leader in offline else partition.leader,
        partition.leader_epoch,
        list(partition.replicas),
        list(partition.isr),
        list(partition.elr),
        list(partition.last_known_elr),
        offline,
    )


def _is_online(image: ClusterImage, partition: PartitionImage, broker_id: int, listener: str) -> bool:
    broker = image.brokers.get(broker_id)
    return (
        broker is not None
        and not broker.fenced
        and any(each.name == listener for each in broker.endpoints)
        and broker.has_online_dir(partition.directory_of(broker_id))
    )
