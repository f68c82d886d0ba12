"""What changed between two images, in the terms a node reacts to."""

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from moldau.controller.image import (
    BrokerRegistration,
    ClusterImage,
    ConfigResource,
    ControllerRegistration,
    PartitionImage,
    QuotaEntity,
    ScramKey,
    TopicImage,
)
from moldau.controller.persistent import PersistentMap, changed_keys

K = TypeVar("K")
V = TypeVar("V")


class Change(NamedTuple, Generic[K, V]):
    """One entry that appeared (before is None), went (after is None) or changed."""

    key: K
    before: V | None
    after: V | None


class PartitionDelta(NamedTuple):
    """A partition of a topic that exists now. `before` is None when it is new."""

    topic: TopicImage
    partition_id: int
    before: PartitionImage | None
    after: PartitionImage


@dataclass(slots=True, frozen=True)
class ImageDelta:
    """What differs between two images."""

    topics_created: tuple[TopicImage, ...]
    topics_deleted: tuple[TopicImage, ...]
    # New partitions, of new topics too, and changed ones. Those of deleted topics are in `topics_deleted`.
    partitions: tuple[PartitionDelta, ...]
    brokers: tuple[Change[int, BrokerRegistration], ...]
    controllers: tuple[Change[int, ControllerRegistration], ...]
    configs: tuple[ConfigResource, ...]
    features: tuple[Change[str, int], ...]
    acls: tuple[bytes, ...]
    scram: tuple[ScramKey, ...]
    quotas: tuple[QuotaEntity, ...]
    delegation_tokens: tuple[str, ...]
    producer_ids: bool

    @property
    def is_empty(self) -> bool:
        return not any(getattr(self, name) for name in self.__slots__)


def diff(before: ClusterImage, after: ClusterImage) -> ImageDelta:
    created: list[TopicImage] = []
    deleted: list[TopicImage] = []
    partitions: list[PartitionDelta] = []
    for name in changed_keys(before.topics, after.topics):
        old, new = before.topics.get(name), after.topics.get(name)
        if old is not None and (new is None or new.topic_id != old.topic_id):
            deleted.append(old)
            old = None
        if new is None:
            continue
        if old is None:
            created.append(new)
        known: PersistentMap[int, PartitionImage] = PersistentMap() if old is None else old.partitions
        partitions += [
            PartitionDelta(new, number, known.get(number), new.partitions[number])
            for number in changed_keys(known, new.partitions)
        ]
    return ImageDelta(
        topics_created=tuple(created),
        topics_deleted=tuple(deleted),
        partitions=tuple(partitions),
        brokers=_changes(before.brokers, after.brokers),
        controllers=_changes(before.controllers, after.controllers),
        configs=tuple(changed_keys(before.configs, after.configs)),
        features=_changes(before.features, after.features),
        acls=tuple(changed_keys(before.acls, after.acls)),
        scram=tuple(changed_keys(before.scram, after.scram)),
        quotas=tuple(changed_keys(before.quotas, after.quotas)),
        delegation_tokens=tuple(changed_keys(before.delegation_tokens, after.delegation_tokens)),
        producer_ids=before.next_producer_id != after.next_producer_id,
    )


def _changes(before: PersistentMap[K, V], after: PersistentMap[K, V]) -> tuple[Change[K, V], ...]:
    return tuple(Change(key, before.get(key), after.get(key)) for key in changed_keys(before, after))
