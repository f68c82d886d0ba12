"""All replicas of this node, found by topic name or id, and kept in step with the cluster's image."""

from __future__ import annotations

from collections.abc import Iterator

from moldau.broker.config import BrokerConfig, topic_settings_for
from moldau.broker.partition import Partition
from moldau.controller.delta import ImageDelta
from moldau.controller.image import ClusterImage, ResourceType, TopicImage
from moldau.log.errors import StorageError
from moldau.log.log_manager import LogManager
from moldau.wire import ErrorCode


class PartitionUnavailable(Exception):
    """This node cannot serve the partition; `code` says why, and `message` more, if there is more to say."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(code.name)
        self.code = code
        self.message = message


class ReplicaManager:
    """Belongs to the event loop."""

    def __init__(self, logs: LogManager, node_id: int, config: BrokerConfig) -> None:
        self._logs = logs
        self._node_id = node_id
        self._config = config
        self._image = ClusterImage()
        self._by_name: dict[str, dict[int, Partition]] = {}
        self._by_id: dict[bytes, dict[int, Partition]] = {}

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._by_name.values():
            yield from partitions.values()

    def get(self, topic: str | bytes, index: int) -> Partition | None:
        """By topic name or id."""
        partitions = self._by_name.get(topic) if isinstance(topic, str) else self._by_id.get(topic)
        return None if partitions is None else partitions.get(index)

    def leader(self, topic: str | bytes, index: int) -> Partition:
        """The partition, if this node leads it; PartitionUnavailable otherwise."""
        partitions = self._by_name.get(topic) if type(topic) is str else self._by_id.get(topic)  # type: ignore[arg-type]  # str or bytes
        if partitions is not None:
            partition = partitions.get(index)
            if partition is not None:
                if partition.is_leader:
                    return partition
                raise PartitionUnavailable(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        raise PartitionUnavailable(self._why_missing(topic, index))

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

    def apply(self, image: ClusterImage, delta: ImageDelta, config: BrokerConfig) -> None:
        """Create, delete and change replicas as the image says."""
        config_changed = config is not self._config
        self._image = image
        self._config = config
        for topic in delta.topics_deleted:
            self._delete(topic)
        for change in delta.partitions:
            self._place(change.topic, change.partition_id)
        names = {resource.name for resource in delta.configs if resource.type == ResourceType.TOPIC}
        for name in self._by_name if config_changed else names & self._by_name.keys():
            self._configure(name)

    def _overrides(self, topic: str) -> dict[str, str]:
        return dict(self._image.config(ResourceType.TOPIC, topic))

    def _place(self, topic: TopicImage, index: int) -> None:
        image = topic.partitions[index]
        partitions = self._by_name.setdefault(topic.name, {})
        existing = partitions.get(index)
        if self._node_id not in image.replicas:
            if existing is not None:
                del partitions[index]
                self._logs.delete(topic.name, index)
            return
        if existing is not None:
            existing.become(image)
            return
        settings = topic_settings_for(self._overrides(topic.name), self._config)
        try:
            log = self._logs.get_or_create(topic.name, index, topic_id=topic.topic_id, config=settings.log)
        except StorageError:  # its disk is offline: the manager said so, and requests will be told
            return
        partitions[index] = Partition(topic.name, topic.topic_id, index, log, settings, image, self._node_id)
        self._by_id[topic.topic_id] = partitions

    def _delete(self, topic: TopicImage) -> None:
        self._by_id.pop(topic.topic_id, None)
        for index in self._by_name.pop(topic.name, {}):
            self._logs.delete(topic.name, index)

    def _configure(self, topic: str) -> None:
        settings = topic_settings_for(self._overrides(topic), self._config)
        for partition in self._by_name[topic].values():
            partition.settings = settings
            partition.log.config = settings.log
