"""DescribeTopicPartitions (key 75), version 0. Partitions of topics, page by page, in the order of the topics' names.

Named topics, or all of them with none. A page has at most `response_partition_limit` partitions, never more than
`max.request.partition.size.limit`; `next_cursor` says where the next one begins. With names given, the cursor's topic
must be among them; a senseless cursor is INVALID_REQUEST for every topic. Unlike Metadata it tells eligible leader
replicas, and creates nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import merge
from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.access import TOPIC, authorized_operations, may
from moldau.broker.requests.pieces import chunks
from moldau.controller.acls import Operation
from moldau.controller.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from moldau.controller.names import INTERNAL_TOPICS, reason_name_is_invalid
from moldau.timers.turns import Slices
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAuthorizer, HasConfig, HasImage

    class Needs(HasAuthorizer, HasConfig, HasImage, Protocol):
        """What this file may touch."""


_SORTED_AT_ONCE = 2_000
_PER_SLICE = 100
Topic = m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
Partition = m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition
Cursor = m.DescribeTopicPartitionsResponse.Cursor


def handle(
    broker: Needs, call: Call, request: m.DescribeTopicPartitionsRequest
) -> Slices[m.DescribeTopicPartitionsResponse]:
    image, cursor = broker.image, request.cursor
    from_name, from_index = ("", 0) if cursor is None else (cursor.topic_name, cursor.partition_index)
    asked: list[str] = []
    for part in chunks(request.topics, _SORTED_AT_ONCE):
        if asked:
            yield
        asked += [topic.name for topic in part]
    if from_index < 0 or (asked and cursor is not None and from_name not in asked):
        response = m.DescribeTopicPartitionsResponse()
        for names in chunks(asked, _SORTED_AT_ONCE):
            if response.topics:
                yield
            response.topics += [Topic(ErrorCode.INVALID_REQUEST, name) for name in names]
        return response
    may_describe = may(broker, call, Operation.DESCRIBE, TOPIC, is_filter=not asked)
    limit = min(request.response_partition_limit, broker.config.get_int("max.request.partition.size.limit"))
    page = _Page(broker, call, from_name, from_index, max(limit, 1))
    hidden: list[str] = []
    ordered: list[list[str]] = []
    for names in chunks(asked or image.topics, _SORTED_AT_ONCE):
        if ordered:
            yield
        ordered.append(sorted(name for name in names if name >= from_name))
    before = None
    for number, name in enumerate(ordered[0] if len(ordered) == 1 else merge(*ordered), 1):
        if name != before:
            before = name
            if not may_describe(name):
                hidden.append(name)
            elif not page.is_full:
                page.add(image, name)
            elif not asked:
                break  # of those nobody asked for, nothing is said
        if number % _PER_SLICE == 0:
            yield
    for number, name in enumerate(hidden if asked else (), 1):
        page.response.topics.append(Topic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name))
        if number % _SORTED_AT_ONCE == 0:
            yield
    return page.response


class _Page:
    """Topics, in order, until there are so many partitions."""

    def __init__(self, broker: Needs, call: Call, from_name: str, from_index: int, limit: int) -> None:
        self.response = m.DescribeTopicPartitionsResponse()
        self.is_full = False
        self._broker = broker
        self._call = call
        self._from = from_name, from_index
        self._left = limit

    def add(self, image: ClusterImage, name: str) -> None:
        if self._left == 0:
            self._end(name, 0)
            return
        topic = image.topics.get(name)
        if topic is None:
            told = _missing(name)
        else:
            from_name, from_index = self._from
            first = from_index if name == from_name else 0
            end = min(len(topic.partitions), first + self._left)
            told = _describe(image, topic, range(first, end), self._call.connection.listener_name)
            if end < len(topic.partitions):
                self._end(name, end)
            self._left -= max(0, end - first)
        told.topic_authorized_operations = authorized_operations(self._broker, self._call, TOPIC, name)
        self.response.topics.append(told)

    def _end(self, name: str, index: int) -> None:
        self.response.next_cursor = Cursor(name, index)
        self.is_full = True


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
