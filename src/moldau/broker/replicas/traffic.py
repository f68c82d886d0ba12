"""What has passed through replicas, added up: counters of a topic or a node outlive the replicas they are about."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.broker.replicas.partition import Partition


@dataclass(slots=True)
class Traffic:
    bytes_in: int = 0
    bytes_out: int = 0
    records_in: int = 0
    produce_requests: int = 0
    failed_produce_requests: int = 0
    fetch_requests: int = 0
    failed_fetch_requests: int = 0
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0

    def add(self, partition: Partition | Traffic) -> None:
        self.bytes_in += partition.bytes_in
        self.bytes_out += partition.bytes_out
        self.records_in += partition.records_in
        self.produce_requests += partition.produce_requests
        self.failed_produce_requests += partition.failed_produce_requests
        self.fetch_requests += partition.fetch_requests
        self.failed_fetch_requests += partition.failed_fetch_requests
        self.replication_bytes_in += partition.replication_bytes_in
        self.replication_bytes_out += partition.replication_bytes_out

    def is_below(self, other: Traffic) -> bool:
        """Whether any of it is: the same topic cannot have sent less than before."""
        return any(getattr(self, each) < getattr(other, each) for each in self.__slots__)


class Departed:
    """What passed through replicas that are gone: of the node for ever, of a topic as long as others of it are here.
    A counter that falls is a restart for Prometheus: everything it counted would seem to have happened just now."""

    def __init__(self) -> None:
        self.of_node = Traffic()
        self._of_topics: dict[str, Traffic] = {}

    def of_topics(self) -> dict[str, Traffic]:
        """As it is now: what departs while somebody adds up must not be counted twice."""
        return {topic: replace(traffic) for topic, traffic in self._of_topics.items()}

    def add(self, partition: Partition, *, is_last: bool) -> None:
        """`is_last`: none of its topic is left here, and with them go the topic's numbers."""
        self.of_node.add(partition)
        if is_last:
            self._of_topics.pop(partition.topic, None)
        else:
            self._of_topics.setdefault(partition.topic, Traffic()).add(partition)
