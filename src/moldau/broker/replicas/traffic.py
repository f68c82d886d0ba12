"""What has passed through replicas, added up: counters of a topic or a node outlive the replicas they are about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.broker.replicas.partition import Partition


@dataclass(slots=True)
class Traffic:
    bytes_in: int = 0
    bytes_out: int = 0
    records_in: int = 0
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0

    def add(self, partition: Partition | Traffic) -> None:
        self.bytes_in += partition.bytes_in
        self.bytes_out += partition.bytes_out
        self.records_in += partition.records_in
        self.replication_bytes_in += partition.replication_bytes_in
        self.replication_bytes_out += partition.replication_bytes_out
