"""AlterReplicaLogDirs (key 34), versions 1-2. Moves replicas to other log dirs of this node.

Answered at once; the copying goes on beside the traffic, and DescribeLogDirs shows it. A dir this node does not have is
LOG_DIR_NOT_FOUND, an offline one KAFKA_STORAGE_ERROR, a cordoned one INVALID_REPLICA_ASSIGNMENT; a partition that is
not here UNKNOWN_TOPIC_OR_PARTITION or REPLICA_NOT_AVAILABLE.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.pieces import chunks
from moldau.log.errors import LogError
from moldau.timers.turns import Slices
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasImage, HasLogs
    from moldau.broker.replicas.parts import HasMoves, HasReplicas

    class Needs(HasImage, HasLogs, HasMoves, HasReplicas, Protocol):
        """What this file may touch."""


_LOOKED_AT = 1_000
_PER_SLICE = 50
_FOLDER_NAME_LENGTH_MAX = 255
_FUTURE_SUFFIX_LENGTH = len(".") + 32 + len("-future")  # with a uuid in between


def handle(broker: Needs, _call: Call, request: m.AlterReplicaLogDirsRequest) -> Slices[m.AlterReplicaLogDirsResponse]:
    # A partition named for two dirs goes to the last of them.
    targets: dict[tuple[str, int], str] = {}
    named = ((topic, each.path) for each in request.dirs for topic in each.topics)
    looked_at = 0
    for wanted, path in named:
        for indexes in chunks(wanted.partitions, _LOOKED_AT):
            targets.update(((wanted.name, index), path) for index in indexes)
            looked_at += len(indexes)
            if looked_at >= _LOOKED_AT:
                looked_at = 0
                yield
    results: dict[str, m.AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult] = {}
    for number, ((topic, index), path) in enumerate(targets.items(), 1):
        result = results.setdefault(topic, m.AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(topic))
        result.partitions.append(
            m.AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult(index, _move(broker, topic, index, path))
        )
        if number % _PER_SLICE == 0:
            yield
    return m.AlterReplicaLogDirsResponse(results=list(results.values()))


def _move(broker: Needs, topic: str, index: int, path: str) -> int:
    if len(f"{topic}-{index}") + _FUTURE_SUFFIX_LENGTH > _FOLDER_NAME_LENGTH_MAX:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    log_dirs = {os.path.abspath(each): log_dir for each, log_dir in broker.logs.dirs.items()}
    log_dir = log_dirs.get(path)
    if log_dir is None:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if log_dir.path in broker.logs.cordoned:
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT
    if not log_dir.is_online or (topic, index) in broker.logs.offline:
        return ErrorCode.KAFKA_STORAGE_ERROR
    partition = broker.replicas.get(topic, index)
    if partition is None:
        is_known = broker.image.partition(topic, index) is not None
        return ErrorCode.REPLICA_NOT_AVAILABLE if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        broker.moves.move(partition, log_dir.path)
    except LogError as error:
        return error.code
    return ErrorCode.NONE
