"""The consumer protocol inside the classic one: subscriptions and assignments as clients put them into JoinGroup and
SyncGroup.

The coordinator passes these bytes on without looking, except where it has to know which topics a group reads (offset
expiry and deletion) and where a classic member takes part in a consumer group (upgrade and downgrade).
"""

from __future__ import annotations

from collections.abc import Iterable

from moldau.groups.metadata import MetadataImage
from moldau.groups.records import TopicPartition, by_topic
from moldau.wire import messages as m
from moldau.wire.codec import decode_prefix
from moldau.wire.internal import encode_value, prefix_of
from moldau.wire.primitives import MalformedFrame

PROTOCOL_TYPE = "consumer"


def version_of(data: bytes) -> int:
    """The version the client speaks, lowered to the newest one this broker knows."""
    version = prefix_of(data)
    if version < 0:
        raise MalformedFrame(f"consumer protocol version {version} does not exist")
    return min(version, m.ConsumerProtocolSubscription.last_version)


def assignment_version(subscriptions: Iterable[bytes]) -> int:
    """The version in which a member with these subscriptions, one per protocol it speaks, reads assignments. What
    cannot be read is passed over: the coordinator looks at no more than one of them when a member joins."""
    for data in subscriptions:
        try:
            return version_of(data)
        except MalformedFrame:
            continue
    return 0


def decode_subscription(data: bytes) -> m.ConsumerProtocolSubscription:
    """MalformedFrame when it is none. Clients may append fields of their own: trailing bytes are ignored."""
    return decode_prefix(m.ConsumerProtocolSubscription, version_of(data), data, 2)[0]


def decode_topics(data: bytes) -> list[str]:
    """Only the topics, which have the same place in every version."""
    version_of(data)
    return decode_prefix(m.ConsumerProtocolSubscription, 0, data, 2)[0].topics


def decode_assignment(data: bytes) -> m.ConsumerProtocolAssignment:
    return decode_prefix(m.ConsumerProtocolAssignment, version_of(data), data, 2)[0]


def encode_assignment(partitions: Iterable[TopicPartition], image: MetadataImage, version: int) -> bytes:
    """An assignment as classic clients read it: by topic name; topics that are gone are left out."""
    named = []
    for topic_id, indexes in by_topic(partitions).items():
        topic = image.topic_by_id(topic_id)
        if topic is not None:
            named.append(m.ConsumerProtocolAssignment.TopicPartition(topic=topic.name, partitions=indexes))
    named.sort(key=lambda topic: topic.topic)
    return encode_value(m.ConsumerProtocolAssignment(assigned_partitions=named), version)


def partitions_by_id(
    topics: Iterable[m.ConsumerProtocolAssignment.TopicPartition | m.ConsumerProtocolSubscription.TopicPartition],
    image: MetadataImage,
) -> set[TopicPartition]:
    """Named partitions with the topic ids of this image; topics it does not have are left out."""
    found: set[TopicPartition] = set()
    for named in topics:
        topic = image.topic_by_name(named.topic)
        if topic is not None:
            found.update((topic.topic_id, index) for index in named.partitions)
    return found
