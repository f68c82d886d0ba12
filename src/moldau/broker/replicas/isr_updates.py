"""Changes of in-sync replicas, on their way to the controller (AlterPartition).

One request is out at a time; what is wanted meanwhile goes together in the next. A change that the controller refuses
is repeated, dropped, or left to the image, as `moldau.replication.leader` says. Where it knows more about a follower
than our image does (it is fenced, say), it is asked again when the image has news of brokers, not with every fetch.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from moldau.broker.supervision import begin
from moldau.replication.leader import IsrChange
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.controller.parts import HasControllerChannel
    from moldau.broker.parts import HasConfig, HasIdentity, HasImage, HasLoop, HasTime
    from moldau.broker.replicas.partition import Partition
    from moldau.controller.image import ClusterImage
    from moldau.timers.wheel import TimerHandle

    class Wakes(Protocol):
        def wake(self, partition: Partition) -> None:
            """Something about the partition changed that others may be waiting for."""

    class Needs(HasControllerChannel, HasConfig, HasIdentity, HasImage, HasLoop, HasTime, Protocol):
        """What this file may touch."""

        @property
        def replicas(self) -> Wakes: ...


_log = logging.getLogger(__name__)
_RETRY_SECONDS = 0.05
_REFUSED_MS = 1_000.0  # before a refused follower is proposed again, if the image says nothing new of brokers
_RECOVERED = 0

Key = tuple[bytes, int]
Request = m.AlterPartitionRequest


class IsrUpdates:
    """Belongs to the event loop."""

    def __init__(self, broker: Needs) -> None:
        self._broker = broker
        self._lag_max_ms = broker.config.get_int("replica.lag.time.max.ms")
        self._watched: dict[Key, Partition] = {}
        self._wanted: dict[Key, tuple[Partition, IsrChange]] = {}
        self._refused: dict[Key, tuple[float, ClusterImage]] = {}
        self._sending: asyncio.Task[None] | None = None
        self._timer: TimerHandle | None = None
        self.expansions = self.shrinkages = 0  # that were committed
        self._grows: dict[Key, bool] = {}  # of what is asked for: the image may know it before the answer does

    # -- when to ask

    def watch(self, partition: Partition) -> None:
        """Look at this partition's followers from time to time, as long as this node leads it."""
        self._watched[partition.key] = partition
        if self._timer is None:
            self._set_timer()

    def _set_timer(self) -> None:
        now_ms = self._broker.clock.monotonic_ms()
        self._timer = self._broker.wheel.add(now_ms + self._lag_max_ms / 2, self._look)

    def _look(self) -> None:
        """Take out followers that did not keep up."""
        now_ms = self._broker.clock.monotonic_ms()
        for key, partition in list(self._watched.items()):
            lead = partition.lead
            if lead is None:
                del self._watched[key]
                self._refused.pop(key, None)
                self._grows.pop(key, None)
                continue
            change = lead.shrinkage(partition.log.log_end_offset, now_ms, self._lag_max_ms)
            if change is not None:
                _log.info("%r: asking for ISR %s instead of %s", partition, _ids(change), sorted(lead.isr))
                self._ask(partition, change)
            elif partition.advance_high_watermark():  # it may have waited for a follower that gave up joining
                self._broker.replicas.wake(partition)
        self._timer = None
        if self._watched:
            self._set_timer()

    def on_fetch(self, partition: Partition, broker_id: int) -> None:
        """A follower that is not in sync has fetched: perhaps it is now."""
        lead = partition.lead
        if lead is None or (self._refused and self._is_too_soon(partition.key)):
            return
        change = lead.expansion(broker_id, partition.log.high_watermark)
        if change is not None:
            _log.info("%r: asking for ISR %s instead of %s", partition, _ids(change), sorted(lead.isr))
            self._ask(partition, change)

    def _is_too_soon(self, key: Key) -> bool:
        refused = self._refused.get(key)
        if refused is None:
            return False
        not_before_ms, image = refused
        if image.brokers is self._broker.image.brokers and self._broker.clock.monotonic_ms() < not_before_ms:
            return True
        del self._refused[key]
        return False

    # -- asking

    def _ask(self, partition: Partition, change: IsrChange) -> None:
        self._wanted[partition.key] = (partition, change)
        if partition.lead is not None:
            self._grows[partition.key] = len(change.isr) > len(partition.lead.isr)
        if self._sending is None:
            self._sending = begin(self._broker.loop, "changing ISRs", self._send())

    async def _send(self) -> None:
        try:
            while self._wanted:
                batch, self._wanted = self._wanted, {}
                try:
                    retries = await self._send_batch(batch)
                except Exception as error:  # whatever it was, the changes are still wanted
                    _log.warning("cannot change in-sync replicas now, will try again: %r", error)
                    retries = batch
                if retries:
                    for key, wanted in retries.items():
                        self._wanted.setdefault(key, wanted)
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            self._sending = None

    async def _send_batch(
        self, batch: dict[Key, tuple[Partition, IsrChange]]
    ) -> dict[Key, tuple[Partition, IsrChange]]:
        """Returns what is to be asked again."""
        current = {key: wanted for key, wanted in batch.items() if _is_current(*wanted)}
        if not current:
            return {}
        response = await self._broker.controller_channel.call(self._request(current))
        if response.error_code != ErrorCode.NONE:
            # STALE_BROKER_EPOCH: this broker is being registered anew, and the next request has the new epoch.
            _log.warning("the controller refused a change of ISRs: %s", ErrorCode(response.error_code).name)
            return current
        retries = {}
        for topic in response.topics:
            for answer in topic.partitions:
                key = (topic.topic_id, answer.partition_index)
                if key in current and (again := self._answered(*current[key], answer)) is not None:
                    retries[key] = (current[key][0], again)
        return retries

    def _request(self, wanted: dict[Key, tuple[Partition, IsrChange]]) -> Request:
        broker = self._broker
        topics: dict[bytes, Request.TopicData] = {}
        for (topic_id, index), (_, change) in wanted.items():
            members = [
                Request.BrokerState(broker_id, broker.broker_epoch if broker_id == broker.node_id else epoch)
                for broker_id, epoch in change.isr
            ]
            data = Request.PartitionData(
                partition_index=index,
                leader_epoch=change.leader_epoch,
                new_isr=[each.broker_id for each in members],
                new_isr_with_epochs=members,
                leader_recovery_state=_RECOVERED,
                partition_epoch=change.partition_epoch,
            )
            topics.setdefault(topic_id, Request.TopicData(topic_id, [])).partitions.append(data)
        return Request(broker_id=broker.node_id, broker_epoch=broker.broker_epoch, topics=list(topics.values()))

    def _answered(
        self, partition: Partition, change: IsrChange, answer: m.AlterPartitionResponse.PartitionData
    ) -> IsrChange | None:
        lead = partition.lead
        if lead is None:
            return None
        if answer.error_code != ErrorCode.NONE:
            _log.info("%r: ISR %s was refused: %s", partition, _ids(change), ErrorCode(answer.error_code).name)
            again = lead.on_refused(change, ErrorCode(answer.error_code))
            if lead.pending is None:
                self._refused[partition.key] = (self._broker.clock.monotonic_ms() + _REFUSED_MS, self._broker.image)
            return again
        if (grows := self._grows.pop(partition.key, None)) is not None:
            self.expansions += grows
            self.shrinkages += not grows
        if lead.on_committed(change, answer.isr, answer.leader_epoch, answer.partition_epoch):
            partition.advance_high_watermark()
            # Also without progress: an append may be waiting for a replica that is no longer in sync.
            self._broker.replicas.wake(partition)
        return None

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._watched.clear()
        self._wanted.clear()
        self._refused.clear()
        self._grows.clear()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)


def _is_current(partition: Partition, change: IsrChange) -> bool:
    return partition.lead is not None and partition.lead.pending is change


def _ids(change: IsrChange) -> list[int]:
    return [broker_id for broker_id, _ in change.isr]
