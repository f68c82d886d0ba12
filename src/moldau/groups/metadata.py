"""What a coordinator needs to know about topics, and the hash by which it notices that they changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from struct import pack
from typing import Protocol

from moldau.groups.xxh3 import xxh3_64


@dataclass(slots=True, frozen=True)
class TopicImage:
    """One topic as the cluster metadata has it. Immutable: a change makes a new object."""

    name: str
    topic_id: bytes
    partition_count: int
    racks: tuple[tuple[str, ...], ...] = ()
    """Racks of the replicas of each partition, for partitions where any is known."""


class MetadataImage(Protocol):
    """The cluster metadata at one moment. Never changes: the broker hands the shard a new one."""

    @property
    def version(self) -> int:
        """Grows with every change of the metadata (the offset in the metadata log)."""

    def topic_by_name(self, name: str) -> TopicImage | None: ...

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None: ...

    def topic_names(self) -> Iterable[str]: ...


@dataclass(slots=True, frozen=True)
class TopicsImage:
    """A MetadataImage made of a list of topics; brokers and tests may use it or bring their own."""

    version: int = 0
    by_name: Mapping[str, TopicImage] = field(default_factory=dict)
    by_id: Mapping[bytes, TopicImage] = field(default_factory=dict)

    @staticmethod
    def of(topics: Iterable[TopicImage], version: int) -> TopicsImage:
        listed = list(topics)
        return TopicsImage(
            version, {topic.name: topic for topic in listed}, {topic.topic_id: topic for topic in listed}
        )

    def topic_by_name(self, name: str) -> TopicImage | None:
        return self.by_name.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        return self.by_id.get(topic_id)

    def topic_names(self) -> Iterable[str]:
        return self.by_name


@dataclass(slots=True, frozen=True)
class TopicsDelta:
    """How an image differs from the one before it, as far as groups care."""

    created: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()
    """Names of topics whose partitions or racks changed, and of those created."""
    deleted: frozenset[str] = frozenset()


def topic_hash(topic: TopicImage) -> int:
    """Kafka's hash of a topic: id, name, partitions and their racks. Strings as UTF-16 followed by their length."""
    parts = [
        b"\x00",
        # Kafka hashes the two halves of the id as numbers, low byte first.
        topic.topic_id[:8][::-1],
        topic.topic_id[8:][::-1],
        _hashed_string(topic.name),
        pack("<i", topic.partition_count),
    ]
    for partition in range(topic.partition_count):
        parts.append(pack("<i", partition))
        racks = topic.racks[partition] if partition < len(topic.racks) else ()
        for rack in sorted(racks):
            parts.append(pack("<i", len(rack)))
            parts.append(_hashed_string(rack))
    return xxh3_64(b"".join(parts))


def subscription_hash(names: Iterable[str], image: MetadataImage, cache: dict[str, int]) -> int:
    """Kafka's hash over all subscribed topics that exist; 0 when none does. `cache` maps names to topic hashes."""
    hashes = []
    for name in sorted(names):
        topic = image.topic_by_name(name)
        if topic is not None:
            if name not in cache:
                cache[name] = topic_hash(topic)
            hashes.append(pack("<q", cache[name]))
    return xxh3_64(b"".join(hashes)) if hashes else 0


def _hashed_string(text: str) -> bytes:
    return text.encode("utf-16-le") + pack("<i", len(text))
