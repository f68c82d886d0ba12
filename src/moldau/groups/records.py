"""The records of `__consumer_offsets`, in the formats and versions Kafka 4.3 writes.

A key is its type and a body, a value its version and a body; both prefixes are int16. Values may be of any version
Kafka ever wrote, so an offsets topic that Apache Kafka filled can be loaded. Types this broker does not use (share
and streams groups) are left alone: they decode to None and stay in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moldau.groups.effects import Entry, Record
from moldau.wire import messages as m
from moldau.wire.codec import decode
from moldau.wire.internal import decode_value, encode_key, encode_value, prefix_of
from moldau.wire.message import Message

GROUP_METADATA_VERSION = 3  # 4 exists, and Kafka 4.3 does not write it yet
OFFSET_COMMIT_VERSION = 4
OFFSET_COMMIT_WITH_EXPIRY_VERSION = 1  # the only version with an expire timestamp
_FIRST_VERSION = 0

TopicPartition = tuple[bytes, int]
"""A partition by topic id, which a recreated topic does not share with its predecessor."""
Epochs = Mapping[TopicPartition, int]
"""Partitions of a member, each with the epoch at which it was assigned."""

_KEYS = {
    0: ("LegacyOffsetCommitKey", "LegacyOffsetCommitValue"),
    1: ("OffsetCommitKey", "OffsetCommitValue"),
    2: ("GroupMetadataKey", "GroupMetadataValue"),
    3: ("ConsumerGroupMetadataKey", "ConsumerGroupMetadataValue"),
    4: ("ConsumerGroupPartitionMetadataKey", "ConsumerGroupPartitionMetadataValue"),
    5: ("ConsumerGroupMemberMetadataKey", "ConsumerGroupMemberMetadataValue"),
    6: ("ConsumerGroupTargetAssignmentMetadataKey", "ConsumerGroupTargetAssignmentMetadataValue"),
    7: ("ConsumerGroupTargetAssignmentMemberKey", "ConsumerGroupTargetAssignmentMemberValue"),
    8: ("ConsumerGroupCurrentMemberAssignmentKey", "ConsumerGroupCurrentMemberAssignmentValue"),
    16: ("ConsumerGroupRegularExpressionKey", "ConsumerGroupRegularExpressionValue"),
}


def encode_entry(key: Message, value: Message | None) -> Record:
    return Record(encode_key(key), None if value is None else encode_value(value, _version_to_write(value)))


def decode_entry(key: bytes, value: bytes | None) -> Entry | None:
    """The record as messages; None for a type that is none of this broker's business. MalformedFrame on bad bytes."""
    names = _KEYS.get(prefix_of(key))
    if names is None:
        return None
    key_class: type[Message] = getattr(m, names[0])
    value_class: type[Message] = getattr(m, names[1])
    decoded = None if value is None else decode_value(value_class, value)
    return Entry(decode(key_class, 0, key[2:]), decoded)


def _version_to_write(value: Message) -> int:
    if isinstance(value, m.OffsetCommitValue):
        return OFFSET_COMMIT_VERSION if value.expire_timestamp == -1 else OFFSET_COMMIT_WITH_EXPIRY_VERSION
    if isinstance(value, m.GroupMetadataValue):
        return GROUP_METADATA_VERSION
    return _FIRST_VERSION


def offset_key(group_id: str, topic: str, partition: int) -> m.OffsetCommitKey:
    return m.OffsetCommitKey(group=group_id, topic=topic, partition=partition)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[bytes, list[int]]:
    """Partitions grouped by topic id, both in order, so that equal assignments are equal bytes."""
    grouped: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        grouped.setdefault(topic_id, []).append(partition)
    return grouped


def target_assignment_value(partitions: Iterable[TopicPartition]) -> m.ConsumerGroupTargetAssignmentMemberValue:
    value = m.ConsumerGroupTargetAssignmentMemberValue
    return value(
        topic_partitions=[
            value.TopicPartition(topic_id=topic_id, partitions=indexes)
            for topic_id, indexes in by_topic(partitions).items()
        ]
    )


def epochs_to_record(
    epochs: Epochs,
) -> list[m.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
    return [
        m.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(
            topic_id=topic_id,
            partitions=indexes,
            assignment_epochs=[epochs[topic_id, index] for index in indexes],
        )
        for topic_id, indexes in by_topic(epochs).items()
    ]


def epochs_from_record(
    topics: Iterable[m.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions], member_epoch: int
) -> dict[TopicPartition, int]:
    """Brokers before 4.2 wrote no assignment epochs: the member epoch stands in for them."""
    epochs: dict[TopicPartition, int] = {}
    for topic in topics:
        known = topic.assignment_epochs
        if known is None or len(known) != len(topic.partitions):
            known = [max(member_epoch, 0)] * len(topic.partitions)
        epochs.update(((topic.topic_id, index), epoch) for index, epoch in zip(topic.partitions, known, strict=True))
    return epochs
