"""Metadata records into an image: the one way an image comes to be.

`apply` folds a batch and publishes once, so a batch of ten thousand records costs ten thousand small steps, not ten
thousand images. A record that cannot follow the ones before it raises MetadataCorrupt and leaves the image alone.
Records between BeginTransactionRecord and EndTransactionRecord take effect together, at the end, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from moldau.controller.errors import MetadataCorrupt
from moldau.controller.features import METADATA_VERSION, VersionRange
from moldau.controller.image import (
    MIGRATING_DIR,
    Acl,
    BrokerRegistration,
    ClusterImage,
    ConfigResource,
    ControllerRegistration,
    DelegationToken,
    Endpoint,
    PartitionImage,
    ResourceType,
    ScramCredential,
    ScramKey,
    TopicImage,
)
from moldau.controller.names import collision_key
from moldau.controller.persistent import MapBuilder, PersistentMap
from moldau.wire import messages as m
from moldau.wire.message import Message

_BEGIN_TRANSACTION, _END_TRANSACTION, _ABORT_TRANSACTION = 23, 24, 25
_NO_LEADER_CHANGE = -2


def apply(image: ClusterImage, records: Iterable[Message], *, offset: int = -1, epoch: int = -1) -> ClusterImage:
    """The image after these records, the last of which has this offset and leader epoch."""
    pending = None if image.transaction is None else list(image.transaction)
    visible: list[Message] = []
    for record in records:
        number = record.number
        if number == _BEGIN_TRANSACTION:
            if pending is not None:
                raise MetadataCorrupt("a metadata transaction begins within another")
            pending = []
        elif number in (_END_TRANSACTION, _ABORT_TRANSACTION):
            if pending is None:
                raise MetadataCorrupt("a metadata transaction ends that has not begun")
            if number == _END_TRANSACTION:
                visible += pending
            pending = None
        elif pending is not None:
            pending.append(record)
        else:
            visible.append(record)
    return _fold(image, visible, None if pending is None else tuple(pending), offset, epoch)


def _fold(
    image: ClusterImage, records: Sequence[Message], pending: tuple[Message, ...] | None, offset: int, epoch: int
) -> ClusterImage:
    builder = ImageBuilder(image, offset)
    for record in records:
        step = _STEPS.get(record.number)
        if step is None:
            raise MetadataCorrupt(f"no way to apply a {type(record).__name__}")
        step(builder, record)
    return builder.publish(pending, epoch)


class ImageBuilder:
    """An image under construction: one map builder per section, made when first needed."""

    __slots__ = ("_before", "_maps", "_next_producer_id", "_offset", "_partitions")

    def __init__(self, before: ClusterImage, offset: int) -> None:
        self._before = before
        self._offset = offset
        self._maps: dict[str, MapBuilder[Any, Any]] = {}
        # By topic id: a topic under construction gets its partitions one record at a time.
        self._partitions: dict[bytes, MapBuilder[int, PartitionImage]] = {}
        self._next_producer_id = before.next_producer_id

    def _map(self, section: str) -> MapBuilder[Any, Any]:
        builder = self._maps.get(section)
        if builder is None:
            builder = self._maps[section] = getattr(self._before, section).builder()
        return builder

    def publish(self, transaction: tuple[Message, ...] | None, epoch: int) -> ClusterImage:
        names = self._map("topic_names")
        for topic_id, partitions in self._partitions.items():
            name: str = names.get(topic_id) or ""
            self._map("topics").put(name, TopicImage(name, topic_id, partitions.publish()))
        return replace(
            self._before,
            offset=max(self._offset, self._before.offset),
            epoch=max(epoch, self._before.epoch),
            transaction=transaction,
            next_producer_id=self._next_producer_id,
            **{section: builder.publish() for section, builder in self._maps.items()},
        )

    def feature_level(self, record: m.FeatureLevelRecord) -> None:
        if record.feature_level == 0 and record.name != METADATA_VERSION:
            self._map("features").remove(record.name)
        else:
            self._map("features").put(record.name, record.feature_level)

    def register_broker(self, record: m.RegisterBrokerRecord) -> None:
        cordoned = record.cordoned_log_dirs
        self._map("brokers").put(
            record.broker_id,
            BrokerRegistration(
                broker_id=record.broker_id,
                epoch=record.broker_epoch,
                incarnation_id=record.incarnation_id,
                endpoints=_endpoints(record.end_points),
                features=_features(record.features),
                rack=record.rack,
                fenced=record.fenced,
                in_controlled_shutdown=record.in_controlled_shutdown,
                directories=tuple(record.log_dirs),
                cordoned_directories=None if cordoned is None else tuple(cordoned),
                registration_offset=self._offset,
            ),
        )

    def unregister_broker(self, record: m.UnregisterBrokerRecord) -> None:
        self._registered(record, record.broker_id, record.broker_epoch)
        self._map("brokers").remove(record.broker_id)

    def fence_broker(self, record: m.FenceBrokerRecord) -> None:
        broker = self._registered(record, record.id, record.epoch)
        self._map("brokers").put(record.id, replace(broker, fenced=True))

    def unfence_broker(self, record: m.UnfenceBrokerRecord) -> None:
        broker = self._registered(record, record.id, record.epoch)
        self._map("brokers").put(record.id, replace(broker, fenced=False))

    def change_broker(self, record: m.BrokerRegistrationChangeRecord) -> None:
        broker = self._registered(record, record.broker_id, record.broker_epoch)
        cordoned = record.cordoned_log_dirs
        # 1 fences, -1 unfences, 0 says nothing; a shutdown, once begun, is only ended by a new registration.
        changed = replace(
            broker,
            fenced=broker.fenced if record.fenced == 0 else record.fenced > 0,
            in_controlled_shutdown=broker.in_controlled_shutdown or record.in_controlled_shutdown > 0,
            directories=tuple(record.log_dirs) or broker.directories,
            cordoned_directories=broker.cordoned_directories if cordoned is None else tuple(cordoned),
        )
        self._map("brokers").put(record.broker_id, changed)

    def _registered(self, record: Message, broker_id: int, epoch: int) -> BrokerRegistration:
        broker: BrokerRegistration | None = self._map("brokers").get(broker_id)
        if broker is None or broker.epoch != epoch:
            found = "no broker has that id" if broker is None else f"the broker has epoch {broker.epoch}"
            raise MetadataCorrupt(f"{record}: {found}")
        return broker

    def register_controller(self, record: m.RegisterControllerRecord) -> None:
        registration = ControllerRegistration(
            controller_id=record.controller_id,
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record.end_points),
            features=_features(record.features),
            zk_migration_ready=record.zk_migration_ready,
        )
        self._map("controllers").put(record.controller_id, registration)

    def topic(self, record: m.TopicRecord) -> None:
        if (
            self._map("topics").get(record.name) is not None
            or self._map("topic_names").get(record.topic_id) is not None
        ):
            raise MetadataCorrupt(f"{record}: the topic exists already")
        partitions = self._partitions[record.topic_id] = MapBuilder(PersistentMap())
        self._map("topics").put(record.name, TopicImage(record.name, record.topic_id, partitions.publish()))
        self._map("topic_names").put(record.topic_id, record.name)
        key = collision_key(record.name)
        if key is not None:
            self._map("colliding_names").put(key, (*(self._map("colliding_names").get(key) or ()), record.name))

    def remove_topic(self, record: m.RemoveTopicRecord) -> None:
        name: str | None = self._map("topic_names").remove(record.topic_id)
        if name is None:
            raise MetadataCorrupt(f"{record}: no topic has that id")
        self._map("topics").remove(name)
        self._map("configs").remove(ConfigResource(ResourceType.TOPIC, name))
        self._partitions.pop(record.topic_id, None)
        key = collision_key(name)
        if key is not None:
            left = tuple(other for other in self._map("colliding_names").get(key) or () if other != name)
            if left:
                self._map("colliding_names").put(key, left)
            else:
                self._map("colliding_names").remove(key)

    def _partitions_of(self, record: Message, topic_id: bytes) -> MapBuilder[int, PartitionImage]:
        builder = self._partitions.get(topic_id)
        if builder is None:
            topic: TopicImage | None = self._map("topics").get(self._map("topic_names").get(topic_id))
            if topic is None:
                raise MetadataCorrupt(f"{record}: no topic has that id")
            builder = self._partitions[topic_id] = topic.partitions.builder()
        return builder

    def partition(self, record: m.PartitionRecord) -> None:
        self._partitions_of(record, record.topic_id).put(record.partition_id, partition_image(record))

    def change_partition(self, record: m.PartitionChangeRecord) -> None:
        partitions = self._partitions_of(record, record.topic_id)
        partition = partitions.get(record.partition_id)
        if partition is None:
            raise MetadataCorrupt(f"{record}: no partition has that number")
        partitions.put(record.partition_id, merge(partition, record))

    def clear_elr(self, record: m.ClearElrRecord) -> None:
        names = [record.topic_name] if record.topic_name else list(self._before.topics)
        for name in names:
            topic: TopicImage | None = self._map("topics").get(name)
            if topic is None:
                if record.topic_name:
                    raise MetadataCorrupt(f"{record}: no topic has that name")
                continue
            for partition_id, partition in topic.partitions.items():
                if partition.elr or partition.last_known_elr:
                    change = m.PartitionChangeRecord(
                        partition_id, topic.topic_id, eligible_leader_replicas=[], last_known_elr=[]
                    )
                    self.change_partition(change)

    def config(self, record: m.ConfigRecord) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        settings = dict(self._map("configs").get(resource) or {})
        if record.value is None:
            settings.pop(record.name, None)
        else:
            settings[record.name] = record.value
        if settings:
            self._map("configs").put(resource, settings)
        else:
            self._map("configs").remove(resource)

    def client_quota(self, record: m.ClientQuotaRecord) -> None:
        entity = tuple(sorted((part.entity_type, part.entity_name) for part in record.entity))
        limits = dict(self._map("quotas").get(entity) or {})
        if record.remove:
            limits.pop(record.key, None)
        else:
            limits[record.key] = record.value
        if limits:
            self._map("quotas").put(entity, limits)
        else:
            self._map("quotas").remove(entity)

    def producer_ids(self, record: m.ProducerIdsRecord) -> None:
        if record.next_producer_id <= self._next_producer_id and self._next_producer_id:
            raise MetadataCorrupt(f"{record}: producer ids from {self._next_producer_id} on are the next ones")
        self._next_producer_id = record.next_producer_id

    def acl(self, record: m.AccessControlEntryRecord) -> None:
        rule = Acl(
            record.resource_type,
            record.resource_name,
            record.pattern_type,
            record.principal,
            record.host,
            record.operation,
            record.permission_type,
        )
        self._map("acls").put(record.id, rule)

    def remove_acl(self, record: m.RemoveAccessControlEntryRecord) -> None:
        if self._map("acls").remove(record.id) is None:
            raise MetadataCorrupt(f"{record}: no ACL has that id")

    def scram(self, record: m.UserScramCredentialRecord) -> None:
        credential = ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)
        self._map("scram").put(ScramKey(record.name, record.mechanism), credential)

    def remove_scram(self, record: m.RemoveUserScramCredentialRecord) -> None:
        if self._map("scram").remove(ScramKey(record.name, record.mechanism)) is None:
            raise MetadataCorrupt(f"{record}: there is no such credential")

    def delegation_token(self, record: m.DelegationTokenRecord) -> None:
        token = DelegationToken(
            token_id=record.token_id,
            owner=record.owner,
            requester=record.requester,
            renewers=tuple(record.renewers),
            issue_timestamp_ms=record.issue_timestamp,
            max_timestamp_ms=record.max_timestamp,
            expiration_timestamp_ms=record.expiration_timestamp,
        )
        self._map("delegation_tokens").put(record.token_id, token)

    def remove_delegation_token(self, record: m.RemoveDelegationTokenRecord) -> None:
        self._map("delegation_tokens").remove(record.token_id)

    def nothing(self, _record: Message) -> None:
        """NoOpRecord keeps the log moving; ZkMigrationStateRecord is left from clusters that once knew ZooKeeper."""


def partition_image(record: m.PartitionRecord) -> PartitionImage:
    replicas = tuple(record.replicas)
    return PartitionImage(
        replicas=replicas,
        directories=tuple(record.directories) or (MIGRATING_DIR,) * len(replicas),
        isr=tuple(record.isr),
        removing_replicas=tuple(record.removing_replicas),
        adding_replicas=tuple(record.adding_replicas),
        leader=record.leader,
        leader_recovery_state=record.leader_recovery_state,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        elr=tuple(record.eligible_leader_replicas or ()),
        last_known_elr=tuple(record.last_known_elr or ()),
    )


def merge(partition: PartitionImage, change: m.PartitionChangeRecord) -> PartitionImage:
    """The partition after the change. Naming a leader, even the same one, starts a new leader epoch."""
    replicas = _or(change.replicas, partition.replicas)
    directories = _or(change.directories, partition.directories)
    if len(directories) != len(replicas):
        # Only before metadata.version 17, whose records do not speak of directories.
        directories = (MIGRATING_DIR,) * len(replicas)
    same_leader = change.leader == _NO_LEADER_CHANGE
    state = change.leader_recovery_state
    return PartitionImage(
        replicas=replicas,
        directories=directories,
        isr=_or(change.isr, partition.isr),
        removing_replicas=_or(change.removing_replicas, partition.removing_replicas),
        adding_replicas=_or(change.adding_replicas, partition.adding_replicas),
        leader=partition.leader if same_leader else change.leader,
        leader_recovery_state=partition.leader_recovery_state if state < 0 else state,
        leader_epoch=partition.leader_epoch if same_leader else partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
        elr=_or(change.eligible_leader_replicas, partition.elr),
        last_known_elr=_or(change.last_known_elr, partition.last_known_elr),
    )


def _or(new: list[Any] | None, old: tuple[Any, ...]) -> tuple[Any, ...]:
    return old if new is None else tuple(new)


def _endpoints(endpoints: Iterable[Any]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(e.name, e.host, e.port, e.security_protocol) for e in endpoints)


def _features(features: Iterable[Any]) -> Mapping[str, VersionRange]:
    return {f.name: VersionRange(f.min_supported_version, f.max_supported_version) for f in features}


# By record type. 23 to 25, the metadata transactions, are dealt with before.
_STEPS: Mapping[int, Callable[[ImageBuilder, Any], None]] = {
    0: ImageBuilder.register_broker,
    1: ImageBuilder.unregister_broker,
    2: ImageBuilder.topic,
    3: ImageBuilder.partition,
    4: ImageBuilder.config,
    5: ImageBuilder.change_partition,
    7: ImageBuilder.fence_broker,
    8: ImageBuilder.unfence_broker,
    9: ImageBuilder.remove_topic,
    10: ImageBuilder.delegation_token,
    11: ImageBuilder.scram,
    12: ImageBuilder.feature_level,
    14: ImageBuilder.client_quota,
    15: ImageBuilder.producer_ids,
    17: ImageBuilder.change_broker,
    18: ImageBuilder.acl,
    19: ImageBuilder.remove_acl,
    20: ImageBuilder.nothing,
    21: ImageBuilder.nothing,
    22: ImageBuilder.remove_scram,
    26: ImageBuilder.remove_delegation_token,
    27: ImageBuilder.register_controller,
    28: ImageBuilder.clear_elr,
}
