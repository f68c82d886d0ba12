"""A replica on this node: its log, and what the cluster's image says about it."""

from __future__ import annotations

from moldau.broker.config import TopicSettings
from moldau.controller.image import PartitionImage
from moldau.log.partition_log import PartitionLog
from moldau.log.producer_state import AppendOrigin
from moldau.log.results import AppendInfo


class Partition:
    """Belongs to the event loop."""

    __slots__ = (
        "appended_bytes",
        "image",
        "index",
        "is_leader",
        "key",
        "leader_epoch",
        "log",
        "node_id",
        "settings",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        log: PartitionLog,
        settings: TopicSettings,
        image: PartitionImage,
        node_id: int,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.settings = settings
        self.node_id = node_id
        self.key = (topic_id, index)  # what waits for this partition is watched under this
        # Counts what became readable since the start, so that a waiting fetch sees progress without reading.
        self.appended_bytes = 0
        self.become(image)

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    def become(self, image: PartitionImage) -> None:
        """Take the role the image gives this replica."""
        self.image = image
        self.leader_epoch = image.leader_epoch
        self.is_leader = image.leader == self.node_id
        if self.is_leader:
            self.log.assign_epoch(image.leader_epoch)
            self.advance_high_watermark()

    def append(
        self,
        batches: bytearray | memoryview,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        *,
        verification_guard: object | None = None,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """Append as leader. What is committed by it becomes readable at once when no other replica is in sync."""
        info = self.log.append_as_leader(
            batches,
            self.leader_epoch,
            origin,
            verification_guard=verification_guard,
            transaction_version=transaction_version,
        )
        self.appended_bytes += info.size_bytes
        self.advance_high_watermark()
        return info

    def advance_high_watermark(self) -> None:
        """The high watermark is what every in-sync replica has; alone in the ISR, the leader decides."""
        if len(self.image.isr) <= 1:
            self.log.update_high_watermark(self.log.log_end_offset)

    @property
    def has_enough_replicas(self) -> bool:
        needed = min(self.settings.min_insync_replicas, len(self.image.replicas))
        return len(self.image.isr) >= needed
