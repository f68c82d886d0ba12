"""Writing the end of a transaction into the partitions it wrote to, here and on the brokers that lead the others.

Invariant: a marker counts as written only when it is committed. A leader that lost it with its leadership would leave
readers waiting for an end that the coordinator believes is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from moldau.broker.coordinators.groups import TOPIC as OFFSETS_TOPIC
from moldau.broker.coordinators.shards import when_committed
from moldau.broker.replicas.manager import PartitionUnavailable
from moldau.broker.supervision import begin
from moldau.log.errors import LogError
from moldau.log.origin import AppendOrigin
from moldau.records import EndTransactionMarker, build_end_transaction_marker
from moldau.transactions import TopicPartition
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.coordinators.groups import GroupCoordinator
    from moldau.broker.parts import (
        HasConfig,
        HasIdentity,
        HasImage,
        HasLoop,
        HasPeers,
        HasPurgatories,
        HasTime,
        HasTurns,
    )
    from moldau.broker.replicas.parts import HasReplicas

    class Needs(
        HasConfig,
        HasIdentity,
        HasImage,
        HasLoop,
        HasPeers,
        HasPurgatories,
        HasTime,
        HasTurns,
        HasReplicas,
        Protocol,
    ):
        """What this file may touch."""

        @property
        def groups(self) -> GroupCoordinator: ...


_log = logging.getLogger(__name__)
_LANE = "markers"
_AT_ONCE = 20
Results = Mapping[TopicPartition, ErrorCode]


class Marker(NamedTuple):
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int


def write_marker(broker: Needs, topic: str, index: int, marker: Marker, then: Callable[[ErrorCode], None]) -> None:
    """Append to a partition led here; `then` is called once, now or later, when the marker is committed or is not.

    What it decides becomes visible: to readers, and to the groups whose offsets it decides.
    """
    try:
        partition = broker.replicas.leader(topic, index)
        if not partition.has_enough_replicas:
            raise PartitionUnavailable(ErrorCode.NOT_ENOUGH_REPLICAS)  # noqa: TRY301 - one place answers
        batch = build_end_transaction_marker(
            EndTransactionMarker(marker.committed, marker.coordinator_epoch),
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            timestamp_ms=broker.clock.wall_ms(),
        )
        _, last_offset, _ = partition.append(
            batch, AppendOrigin.COORDINATOR, transaction_version=marker.transaction_version
        )
    except (PartitionUnavailable, LogError) as error:
        then(ErrorCode(error.code))
        return
    if topic == OFFSETS_TOPIC:
        broker.groups.on_transaction_marker(index, marker.producer_id, committed=marker.committed)
    broker.fetch_purgatory.check_and_complete(partition.key)

    def on_committed(is_committed: bool) -> None:
        then(ErrorCode.NONE if is_committed else ErrorCode.REQUEST_TIMED_OUT)

    timeout_ms = broker.config.get_int("request.timeout.ms")
    when_committed(broker, partition, last_offset + 1, timeout_ms, on_committed)


class MarkerSender:
    """Belongs to the event loop. Takes markers to the leaders of their partitions."""

    def __init__(self, broker: Needs) -> None:
        self._broker = broker
        self._sending: set[asyncio.Task[None]] = set()

    def write(self, marker: Marker, places: list[TopicPartition], then: Callable[[Results], None]) -> None:
        """`then` is called once per leader, now or later, with what happened to its partitions."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for place in places:
            image = self._broker.image.partition(place.topic, place.partition)
            by_leader.setdefault(-1 if image is None else image.leader, []).append(place)
        for leader_id, group in by_leader.items():
            if leader_id != self._broker.node_id:
                self._begin(self._send(leader_id, marker, group, then))
            elif len(group) > _AT_ONCE:
                self._begin(self._write_in_turns(marker, group, then))
            else:
                for place in group:
                    self._write_here(marker, place, then)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = begin(self._broker.loop, "a marker", work)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def _write_here(self, marker: Marker, place: TopicPartition, then: Callable[[Results], None]) -> None:
        write_marker(self._broker, *place, marker, lambda error: then({place: error}))

    async def _write_in_turns(
        self, marker: Marker, places: list[TopicPartition], then: Callable[[Results], None]
    ) -> None:
        """A transaction may have written to very many partitions."""
        for number, place in enumerate(places):
            if number % _AT_ONCE == 0:
                await self._broker.turns.next_turn()
            try:
                self._write_here(marker, place, then)
            except Exception:  # ours. The transaction must end all the same: this one is tried again.
                _log.exception("a marker cannot be written to %s", place)
                then({place: ErrorCode.NETWORK_EXCEPTION})

    async def _send(
        self, leader_id: int, marker: Marker, places: list[TopicPartition], then: Callable[[Results], None]
    ) -> None:
        endpoint = self._broker.endpoint_of(leader_id)
        results = dict.fromkeys(places, ErrorCode.LEADER_NOT_AVAILABLE)
        if endpoint is not None:
            timeout_ms = self._broker.config.get_int("request.timeout.ms")
            try:
                response = await self._broker.channels.call(
                    *endpoint, _request(marker, places), timeout_ms=timeout_ms, lane=_LANE
                )
                results |= _results(response)
            except Exception as error:  # whatever it was, the coordinator must hear of it, and tries again
                _log.info("broker %d did not answer for its markers: %r", leader_id, error)
                results = dict.fromkeys(places, ErrorCode.NETWORK_EXCEPTION)
        then(results)

    def stop(self) -> None:
        for task in tuple(self._sending):
            task.cancel()


def _request(marker: Marker, places: list[TopicPartition]) -> m.WriteTxnMarkersRequest:
    topics: dict[str, list[int]] = {}
    for place in places:
        topics.setdefault(place.topic, []).append(place.partition)
    kind = m.WriteTxnMarkersRequest
    return kind(
        markers=[
            kind.WritableTxnMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.committed,
                topics=[kind.WritableTxnMarkerTopic(name, indexes) for name, indexes in topics.items()],
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
            )
        ]
    )


def _results(response: m.WriteTxnMarkersResponse) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(topic.name, each.partition_index): ErrorCode(each.error_code)
        for result in response.markers
        for topic in result.topics
        for each in topic.partitions
    }
