"""Writing the end of a transaction into a partition this node leads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moldau.broker.group_coordinator import TOPIC as OFFSETS_TOPIC
from moldau.broker.replicas import PartitionUnavailable
from moldau.log.errors import LogError
from moldau.log.producer_state import AppendOrigin
from moldau.records import EndTransactionMarker, build_end_transaction_marker
from moldau.wire import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.broker import Broker


class Marker(NamedTuple):
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int


def write_marker(broker: Broker, topic: str, index: int, marker: Marker) -> ErrorCode:
    """Append the marker, and make what it decides visible: to readers, and to the groups whose offsets it settles."""
    try:
        partition = broker.replicas.leader(topic, index)
        batch = build_end_transaction_marker(
            EndTransactionMarker(marker.committed, marker.coordinator_epoch),
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            timestamp_ms=broker.clock.wall_ms(),
        )
        partition.append(batch, AppendOrigin.COORDINATOR, transaction_version=marker.transaction_version)
    except (PartitionUnavailable, LogError) as error:
        return ErrorCode(error.code)
    if topic == OFFSETS_TOPIC:
        broker.groups.on_transaction_marker(index, marker.producer_id, committed=marker.committed)
    broker.fetch_purgatory.check_and_complete(partition.key)
    return ErrorCode.NONE
