"""The cluster's image as group coordinators look at it: topics, their partitions, and the racks of their replicas."""

from __future__ import annotations

from collections.abc import Iterable

from moldau.controller.delta import ImageDelta
from moldau.controller.image import ClusterImage
from moldau.groups import TopicImage, TopicsDelta


class GroupsView:
    """Implements `moldau.groups.MetadataImage`."""

    __slots__ = ("_image", "version")

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self.version = image.offset

    def topic_by_name(self, name: str) -> TopicImage | None:
        topic = self._image.topics.get(name)
        if topic is None:
            return None
        brokers = self._image.brokers
        racks = []
        for partition in topic.partitions.values():
            known = (brokers.get(replica) for replica in partition.replicas)
            racks.append(tuple(broker.rack for broker in known if broker is not None and broker.rack is not None))
        return TopicImage(name, topic.topic_id, len(topic.partitions), tuple(racks) if any(racks) else ())

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        name = self._image.topic_names.get(topic_id)
        return None if name is None else self.topic_by_name(name)

    def topic_names(self) -> Iterable[str]:
        return self._image.topics


def view_of(image: ClusterImage) -> GroupsView:
    return GroupsView(image)


def topics_delta(delta: ImageDelta) -> TopicsDelta:
    created = frozenset(topic.name for topic in delta.topics_created)
    return TopicsDelta(
        created=created,
        changed=frozenset(change.topic.name for change in delta.partitions) | created,
        deleted=frozenset(topic.name for topic in delta.topics_deleted),
    )
