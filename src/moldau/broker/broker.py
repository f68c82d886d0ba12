"""What a handler can reach: one object that knows everything this node has, and does nothing by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.broker.config import BrokerConfig
from moldau.broker.producer_ids import ProducerIds
from moldau.broker.telemetry import Telemetry
from moldau.controller.image import EMPTY_IMAGE, ClusterImage
from moldau.log.log_manager import LogManager
from moldau.seams import Clock, Random
from moldau.seams.network import Connection
from moldau.timers.purgatory import Purgatory
from moldau.timers.wheel import TimingWheel

if TYPE_CHECKING:
    from moldau.broker.controller import LocalController
    from moldau.broker.fetch_sessions import FetchSessions
    from moldau.broker.flusher import Flusher
    from moldau.broker.group_coordinator import GroupCoordinator
    from moldau.broker.log_dir_moves import LogDirMoves
    from moldau.broker.metadata_log import MetadataLog
    from moldau.broker.partition import Partition
    from moldau.broker.replicas import ReplicaManager
    from moldau.broker.transaction_coordinator import TransactionCoordinator


@dataclass(slots=True)
class Broker:
    config: BrokerConfig
    cluster_id: str
    loop: asyncio.AbstractEventLoop
    clock: Clock
    random: Random
    wheel: TimingWheel
    logs: LogManager
    fetch_sessions: FetchSessions
    image: ClusterImage = EMPTY_IMAGE
    broker_epoch: int = -1
    replicas: ReplicaManager = field(init=False)
    controller: LocalController = field(init=False)
    metadata_log: MetadataLog = field(init=False)
    flusher: Flusher = field(init=False)
    groups: GroupCoordinator = field(init=False)
    transactions: TransactionCoordinator = field(init=False)
    moves: LogDirMoves = field(init=False)
    producer_ids: ProducerIds = field(init=False)
    telemetry: Telemetry = field(init=False)
    # An acks=all Produce waits here for the high watermark, a Fetch for `fetch.min.bytes`.
    produce_purgatory: Purgatory = field(init=False)
    fetch_purgatory: Purgatory = field(init=False)
    # Called when a connection is gone, by whoever waits on its behalf.
    disconnect_listeners: list[Callable[[Connection], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.produce_purgatory = Purgatory("produce", self.wheel)
        self.fetch_purgatory = Purgatory("fetch", self.wheel)
        self.producer_ids = ProducerIds(self)
        self.telemetry = Telemetry(self.random)
        self.disconnect_listeners.append(self.telemetry.on_disconnect)

    @property
    def node_id(self) -> int:
        return self.config.node_id

    def flush_soon(self, partition: Partition) -> None:
        """Make the partition durable off the loop; whoever waits for it is woken then."""
        self.flusher.add(partition)

    def on_disconnect(self, connection: Connection) -> None:
        for listener in self.disconnect_listeners:
            listener(connection)
