"""What a broker does together with others about its replicas, in one place: made with the first partition that has
more than one replica, or lies in one of several log dirs, so that a plain single node never loads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.broker.replicas.dir_assignments import DirAssignments
from moldau.broker.replicas.fetchers import ReplicaFetchers
from moldau.broker.replicas.isr_updates import IsrUpdates
from moldau.replication.throttle import ReplicationQuota

if TYPE_CHECKING:
    from moldau.broker.parts import HasConfig
    from moldau.broker.replicas.dir_assignments import Needs as DirAssignmentsNeeds
    from moldau.broker.replicas.fetchers import Needs as FetchersNeeds
    from moldau.broker.replicas.isr_updates import Needs as IsrUpdatesNeeds

    class Needs(FetchersNeeds, DirAssignmentsNeeds, IsrUpdatesNeeds, HasConfig, Protocol):
        """What this file may touch."""


class Replication:
    """Belongs to the event loop."""

    def __init__(self, broker: Needs) -> None:
        windows = broker.config.get_int("replication.quota.window.num")
        window_ms = broker.config.get_int("replication.quota.window.size.seconds") * 1_000.0
        self._broker = broker
        self._leader_quota = ReplicationQuota(windows, window_ms=window_ms)
        self._follower_quota = ReplicationQuota(windows, window_ms=window_ms)
        self.isr = IsrUpdates(broker)
        self.dirs = DirAssignments(broker)
        self.fetchers = ReplicaFetchers(broker, self.follower_quota)

    def leader_quota(self) -> ReplicationQuota:
        """For throttled replicas this broker sends to."""
        self._leader_quota.bytes_per_second = self._broker.config.get_int("leader.replication.throttled.rate")
        return self._leader_quota

    def follower_quota(self) -> ReplicationQuota:
        """For throttled replicas this broker fetches."""
        self._follower_quota.bytes_per_second = self._broker.config.get_int("follower.replication.throttled.rate")
        return self._follower_quota

    async def stop(self) -> None:
        await self.fetchers.stop()
        await self.isr.stop()
        await self.dirs.stop()
