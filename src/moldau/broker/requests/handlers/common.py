"""What several handlers need. Belongs to no API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from moldau.broker.replicas.manager import PartitionUnavailable
from moldau.wire import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.replicas.partition import Partition
    from moldau.broker.replicas.parts import HasReplicas

NO_EPOCH = -1
NO_AUTHORIZER = "No Authorizer is configured."


def replica(broker: HasReplicas, topic: str, index: int, current_leader_epoch: int, *, leader_only: bool) -> Partition:
    """This node's replica, if the client and we agree about the leader epoch; PartitionUnavailable otherwise."""
    partition = broker.replicas.get(topic, index)
    if partition is None:
        return broker.replicas.leader(topic, index)  # says why there is none
    if current_leader_epoch not in (NO_EPOCH, partition.leader_epoch):
        behind = current_leader_epoch < partition.leader_epoch
        raise PartitionUnavailable(ErrorCode.FENCED_LEADER_EPOCH if behind else ErrorCode.UNKNOWN_LEADER_EPOCH)
    if leader_only and not partition.is_leader:
        raise PartitionUnavailable(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return partition


class _Answered(Protocol):
    """A topic of an answer, with what became of each partition."""

    name: str
    partitions: list[Any]


A = TypeVar("A", bound=_Answered)


def add_refused(answered: list[A], refused: Iterable[A]) -> None:
    """Put together again what was answered by somebody else and what was refused before anybody was asked."""
    by_name = {topic.name: topic for topic in answered}
    for topic in refused:
        if topic.name in by_name:
            by_name[topic.name].partitions += topic.partitions
        else:
            answered.append(topic)
