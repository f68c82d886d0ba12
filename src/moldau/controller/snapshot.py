"""An image back into records: what a snapshot of the metadata log holds.

Folding the records into an empty image gives an equal image. The order is Kafka's: features first, so that a reader
knows the level of what follows; a topic before its partitions.
"""

from __future__ import annotations

from collections.abc import Iterator

from moldau.controller.features import METADATA_VERSION, VersionRange
from moldau.controller.image import BrokerRegistration, ClusterImage, ControllerRegistration, PartitionImage
from moldau.wire import messages as m
from moldau.wire.message import Message


def snapshot_records(image: ClusterImage) -> Iterator[Message]:
    """All of the image. Not to be taken within a metadata transaction, whose records are in no snapshot yet."""
    if image.in_transaction:
        raise ValueError("a metadata transaction is open: take the snapshot after it has ended")
    yield from _features(image)
    yield from _cluster(image)
    yield from _topics(image)
    for resource, settings in image.configs.items():
        for name, value in settings.items():
            yield m.ConfigRecord(resource.type, resource.name, name, value)
    for entity, limits in image.quotas.items():
        for key, limit in limits.items():
            parts = [m.ClientQuotaRecord.EntityData(kind, name) for kind, name in entity]
            yield m.ClientQuotaRecord(parts, key, limit, False)
    if image.next_producer_id:
        yield m.ProducerIdsRecord(-1, -1, image.next_producer_id)
    for acl_id, acl in image.acls.items():
        yield m.AccessControlEntryRecord(acl_id, *acl)
    for (user, mechanism), credential in image.scram.items():
        yield m.UserScramCredentialRecord(
            user, mechanism, credential.salt, credential.stored_key, credential.server_key, credential.iterations
        )
    for token in image.delegation_tokens.values():
        yield m.DelegationTokenRecord(
            owner=token.owner,
            requester=token.requester,
            renewers=list(token.renewers),
            issue_timestamp=token.issue_timestamp_ms,
            max_timestamp=token.max_timestamp_ms,
            expiration_timestamp=token.expiration_timestamp_ms,
            token_id=token.token_id,
        )


def _features(image: ClusterImage) -> Iterator[Message]:
    level = image.features.get(METADATA_VERSION)
    if level is not None:
        yield m.FeatureLevelRecord(METADATA_VERSION, level)
    for name, level in image.features.items():
        if name != METADATA_VERSION:
            yield m.FeatureLevelRecord(name, level)


def _cluster(image: ClusterImage) -> Iterator[Message]:
    for broker in image.brokers.values():
        yield register_broker_record(broker)
    for controller in image.controllers.values():
        yield register_controller_record(controller)


def _topics(image: ClusterImage) -> Iterator[Message]:
    for topic in image.topics.values():
        yield m.TopicRecord(topic.name, topic.topic_id)
        for partition_id, partition in topic.partitions.items():
            yield partition_record(topic.topic_id, partition_id, partition)


def partition_record(topic_id: bytes, partition_id: int, partition: PartitionImage) -> m.PartitionRecord:
    return m.PartitionRecord(
        partition_id=partition_id,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas),
        adding_replicas=list(partition.adding_replicas),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        eligible_leader_replicas=list(partition.elr) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )


def register_broker_record(broker: BrokerRegistration) -> m.RegisterBrokerRecord:
    cordoned = broker.cordoned_directories
    return m.RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            m.RegisterBrokerRecord.BrokerEndpoint(e.name, e.host, e.port, e.security_protocol) for e in broker.endpoints
        ],
        features=[
            m.RegisterBrokerRecord.BrokerFeature(name, levels.first, levels.last)
            for name, levels in broker.features.items()
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.directories),
        cordoned_log_dirs=None if cordoned is None else list(cordoned),
    )


def register_controller_record(controller: ControllerRegistration) -> m.RegisterControllerRecord:
    def feature(name: str, levels: VersionRange) -> m.RegisterControllerRecord.ControllerFeature:
        return m.RegisterControllerRecord.ControllerFeature(name, levels.first, levels.last)

    return m.RegisterControllerRecord(
        controller_id=controller.controller_id,
        incarnation_id=controller.incarnation_id,
        zk_migration_ready=controller.zk_migration_ready,
        end_points=[
            m.RegisterControllerRecord.ControllerEndpoint(e.name, e.host, e.port, e.security_protocol)
            for e in controller.endpoints
        ],
        features=[feature(name, levels) for name, levels in controller.features.items()],
    )
