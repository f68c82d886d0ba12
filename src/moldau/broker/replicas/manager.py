"""All replicas of this node, found by topic name or id, and kept in step with the cluster's image.

Invariant: no replica is made anew while a dir that may hold it is away (KIP-858). It would be an empty log that looks
like the one everybody counts on; offline, it is missed.

What writes files for many partitions is not done at one go, which would hold up everybody else. New replicas are made,
and new leaders note their epoch, a few in each turn of the loop; a partition somebody asks for catches up at once
(`_behind`). Replicas that go are not served from the moment the image says so; their folders lose their names in turns
(`_unremoved`), and a replica that gets such a name again waits until the former one has lost it.

What it takes to have followers, or to be one (fetchers, changes of the ISR, throttles), is loaded with the first
partition that has more than one replica.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from moldau.broker.config import BrokerConfig, topic_settings_for
from moldau.broker.replicas.partition import Partition, ReplicaContext
from moldau.broker.replicas.traffic import Departed
from moldau.controller.delta import ImageDelta
from moldau.controller.image import (
    MIGRATING_DIR,
    NO_LEADER,
    UNASSIGNED_DIR,
    ClusterImage,
    PartitionImage,
    ResourceType,
    TopicImage,
)
from moldau.log.errors import OutOfDescriptors, StorageError
from moldau.timers.turns import Slices
from moldau.wire import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.parts import HasConfig, HasIdentity, HasLogs, HasLoop, HasPurgatories, HasTime, HasTurns
    from moldau.broker.replicas.replication import Needs as ReplicationNeeds
    from moldau.broker.replicas.replication import Replication

    class Needs(
        ReplicationNeeds, HasConfig, HasIdentity, HasLogs, HasLoop, HasPurgatories, HasTime, HasTurns, Protocol
    ):
        """What this file may touch."""

        def flush_soon(self, partition: Partition) -> None: ...


_log = logging.getLogger(__name__)
_ANY_EPOCH = -1
_AT_ONCE_MAX = 16  # made or removed in the turn in which the image says so
_AGAIN_SECONDS = 1.0


class PartitionUnavailable(Exception):
    """This node cannot serve the partition; `code` says why, and `message` more, if there is more to say."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(code.name)
        self.code = code
        self.message = message


def follower_key(broker_id: int) -> tuple[str, int]:
    """What fetches of this follower wait under: one key, however many partitions they cover."""
    return "follower", broker_id


def _is_counted_on(image: PartitionImage, node_id: int) -> bool:
    """Whether somebody relies on what this replica holds: it may be elected without a loss."""
    return node_id == image.leader or node_id in image.isr or node_id in image.elr


class ReplicaManager:
    """Belongs to the event loop."""

    def __init__(self, broker: Needs) -> None:
        self._broker = broker
        self._logs = broker.logs
        self._node_id = broker.node_id
        self._config = broker.config
        self._image = ClusterImage()
        self._by_name: dict[str, dict[int, Partition]] = {}
        self._by_id: dict[bytes, dict[int, Partition]] = {}
        self._context = ReplicaContext(
            self._node_id,
            broker.clock.monotonic_ms,
            self._may_lead,
            broker.config.get_int("replica.lag.time.max.ms"),
            self._is_eligible,
            self._wake_followers_soon,
            broker.flush_soon,
        )
        self._followers_to_wake: dict[int, None] = {}
        self._replication: Replication | None = None
        self._is_started = False
        # Of a node with one log dir.
        self._only_dir_id = next(iter(broker.logs.dirs.values())).directory_id
        # Replicas of this node that are still to be made, or to lead as the image says: by topic id and index, oldest
        # first. None of them leads without the image's consent: losing a leadership takes no file, and is not put off.
        self._behind: dict[tuple[bytes, int], None] = {}
        # Somebody who asks may empty it before its next turn comes: that turn must not be asked for twice.
        self._is_catching_up = False
        # Replicas that are gone and whose folders have their names still, by topic name and index, oldest first.
        self._unremoved: dict[tuple[str, int], Partition] = {}
        # Not made at the start, because they may lie in a dir that was away: by topic id and index.
        self._away: set[tuple[bytes, int]] = set()
        self._offline: set[tuple[bytes, int]] = set()  # told people of
        self.departed = Departed()

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._by_name.values():
            yield from partitions.values()

    @property
    def is_making(self) -> bool:
        """Whether replicas are still to be made, or to lead: asking for one may take longer then."""
        return bool(self._behind)

    def get(self, topic: str | bytes, index: int) -> Partition | None:
        """By topic name or id."""
        if self._behind:
            self._catch_up(topic, index)
        partitions = self._by_name.get(topic) if isinstance(topic, str) else self._by_id.get(topic)
        return None if partitions is None else partitions.get(index)

    def leader(self, topic: str | bytes, index: int) -> Partition:
        """The partition, if this node leads it; PartitionUnavailable otherwise."""
        if self._behind:
            self._catch_up(topic, index)
        partitions = self._by_name.get(topic) if type(topic) is str else self._by_id.get(topic)  # type: ignore[arg-type]  # str or bytes
        if partitions is not None:
            partition = partitions.get(index)
            if partition is not None:
                if partition.is_leader:
                    return partition
                raise PartitionUnavailable(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        raise PartitionUnavailable(self._why_missing(topic, index))

    def replica(self, topic: str | bytes, index: int) -> Partition:
        """The partition, whether this node leads or follows; PartitionUnavailable if it has no replica."""
        partition = self.get(topic, index)
        if partition is None:
            raise PartitionUnavailable(self._why_missing(topic, index))
        return partition

    def _why_missing(self, topic: str | bytes, index: int) -> ErrorCode:
        found = self._image.topics.get(topic) if isinstance(topic, str) else self._image.topic_by_id(topic)
        if found is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if isinstance(topic, str) else ErrorCode.UNKNOWN_TOPIC_ID
        image = found.partitions.get(index)
        if image is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self._node_id in image.replicas:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    # -- with other brokers

    @property
    def replication(self) -> Replication:
        """Everything that is done together with other brokers."""
        if self._replication is None:
            from moldau.broker.replicas.replication import Replication

            self._replication = Replication(self._broker)
        return self._replication

    @property
    def made_replication(self) -> Replication | None:
        """The same for those who only look: None as long as no partition has more than one replica."""
        return self._replication

    def check_dir(self, partition: Partition) -> None:
        """The partition lies in another dir now: see that the controller knows."""
        self.replication.dirs.check(partition)

    def start(self) -> Slices[None]:
        """This broker is registered: begin to fetch from leaders, and to watch followers. In slices: the other members
        of the quorum are served all the while."""
        self._is_started = True
        for at, partition in enumerate(list(self)):
            if at % _AT_ONCE_MAX == _AT_ONCE_MAX - 1:
                yield
            is_there = self._by_name.get(partition.topic, {}).get(partition.index) is partition
            if is_there and partition.key not in self._behind:
                self._change(partition, partition.image)
                self._replicate(partition)

    async def stop(self) -> None:
        self._is_started = False
        self._behind.clear()  # the next start sees to them
        while self._remove_next():  # and would take these for strays
            pass
        if self._replication is not None:
            await self._replication.stop()

    def _replicate(self, partition: Partition) -> None:
        """The role of this replica is new, or may be."""
        if not self._is_started:
            return
        if self._may_lie_elsewhere(partition):
            self.replication.dirs.check(partition)
        if self._replication is None and len(partition.image.replicas) == 1:
            return
        if partition.image.leader not in (NO_LEADER, self._node_id):
            self.replication.fetchers.follow(partition)
        else:
            self.replication.fetchers.forget(partition.key)
        if partition.lead is not None:
            self.replication.isr.watch(partition)

    def _may_lie_elsewhere(self, partition: Partition) -> bool:
        """Whether the image may have another dir for this replica than it is in: one of several, or that of a disk
        which was replaced. While it has, the replica is never elected."""
        if len(self._logs.dirs) > 1:
            return True
        if self._node_id not in partition.image.replicas:
            return False
        known = partition.image.directory_of(self._node_id)
        return known not in (MIGRATING_DIR, UNASSIGNED_DIR) and known != self._only_dir_id

    def _may_lead(self) -> bool:
        registered = self._image.brokers.get(self._node_id)
        return registered is not None and registered.epoch == self._broker.broker_epoch

    def _is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        registered = self._image.brokers.get(broker_id)
        return registered is not None and registered.is_active and broker_epoch in (_ANY_EPOCH, registered.epoch)

    def _wake_followers_soon(self, broker_ids: Iterable[int]) -> None:
        """With all that is appended in this turn of the loop, not with the first of it."""
        if not self._followers_to_wake:
            self._broker.loop.call_soon(self._wake_followers)
        self._followers_to_wake.update(dict.fromkeys(broker_ids))

    def _wake_followers(self) -> None:
        broker_ids, self._followers_to_wake = self._followers_to_wake, {}
        for broker_id in broker_ids:
            self._broker.fetch_purgatory.check_and_complete(follower_key(broker_id))

    # -- what the image says

    def apply(self, image: ClusterImage, delta: ImageDelta, config: BrokerConfig) -> None:
        """Create, delete and change replicas as the image says."""
        config_changed = config is not self._config
        self._image = image
        self._config = config
        was_idle = not self._unremoved
        self._retire_all([gone for topic in delta.topics_deleted for gone in self._deleted(topic)])
        self._take_up([(change.topic, change.partition_id) for change in delta.partitions])
        names = {resource.name for resource in delta.configs if resource.type == ResourceType.TOPIC}
        for name in self._by_name if config_changed else sorted(names & self._by_name.keys()):
            self._configure(name)
        if delta.brokers and self._replication is not None:
            self._stop_waiting_for_the_fenced()
        if was_idle and self._unremoved:
            self._remove_in_turns()

    def _take_up(self, changes: list[tuple[TopicImage, int]]) -> None:
        """Now; but if there are many, those that write files in turns with everything else."""
        are_many = len(changes) > _AT_ONCE_MAX
        for topic, index in changes:
            key = (topic.topic_id, index)
            existing = self._by_name.get(topic.name, {}).get(index)
            may_wait = are_many and (self._is_started or existing is not None)
            if may_wait and self._writes_files(existing, topic.partitions[index]):
                self._behind[key] = None
            elif existing is not None or key not in self._behind:
                self._behind.pop(key, None)
                self._place(topic, index)
        if self._behind and not self._is_catching_up:
            self._is_catching_up = True
            self._broker.turns.add(self._catch_up_next)

    def _writes_files(self, existing: Partition | None, image: PartitionImage) -> bool:
        """Whether it does to take up the role: a replica is made, or a leader notes where its epoch begins."""
        if existing is None:
            return self._node_id in image.replicas
        return image.leader == self._node_id and existing.log.epochs.latest != image.leader_epoch

    def _catch_up_next(self) -> bool:
        self._is_catching_up = False  # should the following fail, the next change begins again
        if self._behind:
            topic_id, index = next(iter(self._behind))
            self._catch_up(topic_id, index)
        self._is_catching_up = bool(self._behind)
        return self._is_catching_up

    def _catch_up(self, topic: str | bytes, index: int) -> None:
        """Make the replica, or let it lead, if that was put off and is still wanted."""
        image = self._image.topics.get(topic) if isinstance(topic, str) else self._image.topic_by_id(topic)
        if image is None or (image.topic_id, index) not in self._behind:
            if isinstance(topic, bytes):
                self._behind.pop((topic, index), None)  # deleted meanwhile
            return
        del self._behind[image.topic_id, index]
        if index in image.partitions:
            self._place(image, index)

    def _stop_waiting_for_the_fenced(self) -> None:
        """The high watermark waits for followers that are about to join an ISR. If they are fenced, they are not."""
        for partition in self:
            if partition.lead is not None and partition.advance_high_watermark():
                self.wake(partition)

    def flushed(self, partition: Partition) -> None:
        """What its topic wants on the disk before it counts is there."""
        if partition.is_leader:
            partition.advance_high_watermark()
        self.wake(partition)

    def wake(self, partition: Partition) -> None:
        """Something about the partition changed that others may be waiting for."""
        self._broker.produce_purgatory.check_and_complete(partition.key)
        self._broker.fetch_purgatory.check_and_complete(partition.key)

    def _overrides(self, topic: str) -> dict[str, str]:
        return dict(self._image.config(ResourceType.TOPIC, topic))

    def _place(self, topic: TopicImage, index: int) -> None:
        image = topic.partitions[index]
        partitions = self._by_name.setdefault(topic.name, {})
        existing = partitions.get(index)
        if self._node_id not in image.replicas:
            if existing is not None:
                del partitions[index]
                self._retire_all([existing])
            return
        if existing is not None:
            self._change(existing, image)
            return
        self._remove(topic.name, index)
        settings = topic_settings_for(self._overrides(topic.name), self._config)
        try:
            log = self._logs.get_or_create(
                topic.name,
                index,
                topic_id=topic.topic_id,
                config=settings.log,
                log_dir=self._dir_of(image, topic, index),
            )
            partition = Partition(topic.name, topic.topic_id, index, log, settings, image, self._context)
        except StorageError as error:  # requests will be told
            if (topic.topic_id, index) not in self._offline:
                self._offline.add((topic.topic_id, index))
                _log.error("replica %s-%d is offline: %s", topic.name, index, error)
            if isinstance(error, OutOfDescriptors):
                self._again_later(topic.topic_id, index)
            return
        self._offline.discard((topic.topic_id, index))
        partitions[index] = partition
        self._by_id[topic.topic_id] = partitions
        self._replicate(partition)

    def _dir_of(self, image: PartitionImage, topic: TopicImage, index: int) -> str | None:
        """The log dir the image has for this replica; None if this node is to choose. StorageError if it may lie in a
        dir that is away."""
        logs = self._logs
        if len(logs.dirs) == 1:
            return None
        wanted = image.directory_of(self._node_id)
        for path, log_dir in logs.dirs.items():
            if log_dir.is_online and log_dir.directory_id == wanted:
                return path
        if not logs.has_offline_dirs:
            return None
        if wanted not in (UNASSIGNED_DIR, MIGRATING_DIR):
            raise StorageError("its log dir is away")
        # The controller was not told in which dir it lies. If it was there before this start, and somebody counts on
        # it, it may be in the one that is away; if not, it is new, or nothing is lost by fetching it again.
        if not self._is_started and logs.get(topic.name, index) is None:
            self._away.add((topic.topic_id, index))
        if (topic.topic_id, index) in self._away:
            if _is_counted_on(image, self._node_id):
                raise StorageError("it may be in the log dir that is away")
            self._away.discard((topic.topic_id, index))
        return None

    def _change(self, partition: Partition, image: PartitionImage) -> None:
        generation = partition.generation
        try:
            partition.become(image)
        except StorageError as error:  # the disk went away under it: the manager heard of it, requests will be told
            _log.error("%r cannot take its role: %s", partition, error)
            if isinstance(error, OutOfDescriptors):
                self._again_later(partition.topic_id, partition.index)
        if partition.generation != generation or partition.lead is not None:
            self._replicate(partition)
            self.wake(partition)

    def _again_later(self, topic_id: bytes, index: int) -> None:
        """What failed for want of descriptors is tried again, with the image of then."""
        self._broker.loop.call_later(_AGAIN_SECONDS, self._again, topic_id, index)

    def _again(self, topic_id: bytes, index: int) -> None:
        topic = self._image.topic_by_id(topic_id)
        if self._is_started and topic is not None and index in topic.partitions:
            self._place(topic, index)

    # -- what goes

    def _deleted(self, topic: TopicImage) -> Iterable[Partition]:
        """The replicas of a deleted topic, which nobody finds any more."""
        self._by_id.pop(topic.topic_id, None)
        for index in topic.partitions if self._behind else ():
            self._behind.pop((topic.topic_id, index), None)
        return self._by_name.pop(topic.name, {}).values()

    def _retire_all(self, gone: list[Partition]) -> None:
        """Nobody is served by these any more, and who waits for them is told. All first: whoever waits for several
        must not be told of one that it is gone and of the next that it leads."""
        for partition in gone:
            partition.retire()
            self.departed.add(partition, is_last=not self._by_name.get(partition.topic))
            self._unremoved[partition.topic, partition.index] = partition
            if self._replication is not None:
                self._replication.fetchers.forget(partition.key)
        for partition in gone:
            self.wake(partition)

    def _remove_in_turns(self) -> None:
        """The first few now, if there are not more."""
        if self._is_started and len(self._unremoved) > _AT_ONCE_MAX:
            self._broker.turns.add(self._remove_next)
            return
        while self._remove_next():
            pass

    def _remove_next(self) -> bool:
        if self._unremoved:
            self._remove(*next(iter(self._unremoved)))
        return bool(self._unremoved)

    def _remove(self, topic: str, index: int) -> None:
        """Free the name of a replica that is gone, if one still has it."""
        partition = self._unremoved.pop((topic, index), None)
        if partition is None:
            return
        try:
            self._logs.delete(topic, index)
        except (StorageError, KeyError) as error:  # it went offline with its dir; recovery will find it a stray
            _log.error("%r cannot be removed: %s", partition, error)

    def _configure(self, topic: str) -> None:
        settings = topic_settings_for(self._overrides(topic), self._config)
        for partition in self._by_name[topic].values():
            partition.settings = settings
            partition.log.config = settings.log
            if partition.lead is not None and partition.advance_high_watermark():  # fewer replicas may be enough now
                self.wake(partition)
