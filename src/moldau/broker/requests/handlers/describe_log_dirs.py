"""DescribeLogDirs (key 35), versions 1-5. What lies in which log dir of this node, and how large it is.

All partitions (null), or those asked for. A partition on its way to another dir is there twice, the copy marked as
future. From version 4 on dirs tell their space, from 5 on whether they are cordoned. An offline dir is
KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.pieces import chunks
from moldau.log.checkpoints import TopicPartition
from moldau.log.dirs.log_manager import DirInfo
from moldau.timers.turns import Slices
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasLogs
    from moldau.broker.replicas.parts import HasMoves

    class Needs(HasLogs, HasMoves, Protocol):
        """What this file may touch."""


_LOOKED_AT = 1_000
Result = m.DescribeLogDirsResponse.DescribeLogDirsResult
Partition = m.DescribeLogDirsResponse.DescribeLogDirsPartition


def handle(broker: Needs, _call: Call, request: m.DescribeLogDirsRequest) -> Slices[m.DescribeLogDirsResponse]:
    wanted: set[TopicPartition] | None = None
    if request.topics is not None:
        wanted = set()
        looked_at = 0
        for topic in request.topics:
            looked_at += 1
            for indexes in chunks(topic.partitions, _LOOKED_AT):
                wanted.update((topic.topic, index) for index in indexes)
                looked_at += len(indexes)
                if looked_at >= _LOOKED_AT:
                    looked_at = 0
                    yield
    return m.DescribeLogDirsResponse(results=[_describe(broker, info, wanted) for info in broker.logs.describe_dirs()])


def _describe(broker: Needs, info: DirInfo, wanted: set[TopicPartition] | None) -> Result:
    path = os.path.abspath(info.path)
    if info.error is not None:
        return Result(ErrorCode.KAFKA_STORAGE_ERROR, path)
    topics: defaultdict[str, list[Partition]] = defaultdict(list)
    for (topic, index), size_bytes in info.log_bytes.items():
        if wanted is None or (topic, index) in wanted:
            topics[topic].append(Partition(index, size_bytes, _lag(broker, topic, index), False))
    for future in broker.moves.futures():
        if future.log_dir == info.path and (wanted is None or future.topic_partition in wanted):
            topic, index = future.topic_partition
            topics[topic].append(Partition(index, future.size_bytes, future.offset_lag, True))
    return Result(
        ErrorCode.NONE,
        path,
        [m.DescribeLogDirsResponse.DescribeLogDirsTopic(topic, partitions) for topic, partitions in topics.items()],
        info.total_bytes,
        info.usable_bytes,
        info.path in broker.logs.cordoned,
    )


def _lag(broker: Needs, topic: str, index: int) -> int:
    """How far the replica's log ends before what is committed."""
    log = broker.logs.get(topic, index)
    return -1 if log is None else max(0, log.high_watermark - log.log_end_offset)
