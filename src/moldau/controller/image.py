"""The cluster as the metadata log describes it, at one offset: an immutable value.

Every node folds the same records (see `fold`) and so has the same image at the same offset. Two images share whatever
did not change between them; `delta.diff` says what did. Uuids are 16 raw bytes, as everywhere in Moldau.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from moldau.controller.features import ELR_VERSION, METADATA_VERSION, METADATA_VERSION_FIRST, VersionRange
from moldau.controller.persistent import PersistentMap
from moldau.wire.message import Message
from moldau.wire.primitives import ZERO_UUID

NO_LEADER = -1
RECOVERED, RECOVERING = 0, 1

# Directory ids with a meaning of their own; a real directory never has one of the first hundred.
MIGRATING_DIR = ZERO_UUID
UNASSIGNED_DIR = bytes(15) + b"\x01"
LOST_DIR = bytes(15) + b"\x02"


def is_reserved_dir(directory: bytes) -> bool:
    return directory[:15] == bytes(15) and directory[15] < 100


class ResourceType:
    """Kinds of resource a config belongs to, as the protocol numbers them."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


RESOURCE_TYPE_NAMES: Mapping[int, str] = {
    2: "TOPIC",
    4: "BROKER",
    8: "BROKER_LOGGER",
    16: "CLIENT_METRICS",
    32: "GROUP",
}


class ConfigResource(NamedTuple):
    type: int
    name: str


# Dynamic broker configs that hold for every broker.
CLUSTER_DEFAULTS = ConfigResource(ResourceType.BROKER, "")


class PartitionImage(NamedTuple):
    """One partition. The ISR and the ELR are subsets of the replicas and share no member; epochs only grow."""

    replicas: tuple[int, ...]
    directories: tuple[bytes, ...]
    isr: tuple[int, ...]
    removing_replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    leader: int
    leader_recovery_state: int
    leader_epoch: int
    partition_epoch: int
    elr: tuple[int, ...]
    last_known_elr: tuple[int, ...]

    @property
    def preferred_leader(self) -> int:
        return self.replicas[0] if self.replicas else NO_LEADER

    @property
    def is_reassigning(self) -> bool:
        return bool(self.removing_replicas or self.adding_replicas)

    def directory_of(self, broker_id: int) -> bytes:
        """Where the replica lies; KeyError when the broker has none."""
        for replica, directory in zip(self.replicas, self.directories, strict=True):
            if replica == broker_id:
                return directory
        raise KeyError(broker_id)


class TopicImage(NamedTuple):
    name: str
    topic_id: bytes
    partitions: PersistentMap[int, PartitionImage]


@dataclass(slots=True, frozen=True)
class Endpoint:
    """Where a listener is reached."""

    name: str
    host: str
    port: int
    security_protocol: int


@dataclass(slots=True, frozen=True)
class BrokerRegistration:
    """What a broker said about itself, and what the controller thinks of it."""

    broker_id: int
    epoch: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, VersionRange]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    directories: tuple[bytes, ...] = ()
    cordoned_directories: tuple[bytes, ...] | None = None
    # The offset a broker must have reached to be unfenced. Knowledge about the log, not part of the cluster's state.
    registration_offset: int = field(default=-1, compare=False)

    @property
    def is_active(self) -> bool:
        return not self.fenced and not self.in_controlled_shutdown

    def has_online_dir(self, directory: bytes) -> bool:
        if directory in (UNASSIGNED_DIR, MIGRATING_DIR):
            return True
        if directory == LOST_DIR:
            return False
        # No directories at all: the broker registered before Kafka knew about them.
        return not self.directories or directory in self.directories

    @property
    def has_uncordoned_dirs(self) -> bool:
        if not self.directories or self.cordoned_directories is None:
            return True
        return any(directory not in self.cordoned_directories for directory in self.directories)


@dataclass(slots=True, frozen=True)
class ControllerRegistration:
    """What a controller said about itself."""

    controller_id: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, VersionRange]
    zk_migration_ready: bool = False


class Acl(NamedTuple):
    """One rule: principal may (or may not) do the operation on the resource, from the host."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


class ScramKey(NamedTuple):
    user: str
    mechanism: int


@dataclass(slots=True, frozen=True)
class ScramCredential:
    """What is kept of a password."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


# (entity type, entity name or None for the default), sorted by type: what a client quota applies to.
QuotaEntity = tuple[tuple[str, str | None], ...]


@dataclass(slots=True, frozen=True)
class DelegationToken:
    """A token and whom it speaks for."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp_ms: int
    max_timestamp_ms: int
    expiration_timestamp_ms: int


@dataclass(slots=True, frozen=True)
class ClusterImage:
    """Everything the metadata log says, up to an offset. Never changed: a new image shares what stayed the same."""

    # The last record folded in, and its leader epoch. -1: nothing yet.
    offset: int = field(default=-1, compare=False)
    epoch: int = field(default=-1, compare=False)
    features: PersistentMap[str, int] = field(default_factory=PersistentMap)
    brokers: PersistentMap[int, BrokerRegistration] = field(default_factory=PersistentMap)
    controllers: PersistentMap[int, ControllerRegistration] = field(default_factory=PersistentMap)
    topics: PersistentMap[str, TopicImage] = field(default_factory=PersistentMap)
    topic_names: PersistentMap[bytes, str] = field(default_factory=PersistentMap)
    # Names that would share their metrics (see `names.collision_key`).
    colliding_names: PersistentMap[str, tuple[str, ...]] = field(default_factory=PersistentMap, compare=False)
    configs: PersistentMap[ConfigResource, Mapping[str, str]] = field(default_factory=PersistentMap)
    acls: PersistentMap[bytes, Acl] = field(default_factory=PersistentMap)
    scram: PersistentMap[ScramKey, ScramCredential] = field(default_factory=PersistentMap)
    quotas: PersistentMap[QuotaEntity, Mapping[str, float]] = field(default_factory=PersistentMap)
    delegation_tokens: PersistentMap[str, DelegationToken] = field(default_factory=PersistentMap)
    next_producer_id: int = 0
    # Records of a metadata transaction that has begun and not ended: nobody sees their effect yet.
    transaction: tuple[Message, ...] | None = field(default=None, compare=False)

    @property
    def metadata_version(self) -> int:
        return self.features.get(METADATA_VERSION, METADATA_VERSION_FIRST)

    @property
    def is_elr_enabled(self) -> bool:
        return self.features.get(ELR_VERSION, 0) >= 1

    @property
    def in_transaction(self) -> bool:
        return self.transaction is not None

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic: str, partition_id: int) -> PartitionImage | None:
        found = self.topics.get(topic)
        return None if found is None else found.partitions.get(partition_id)

    def partitions(self) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
        """Every partition of the cluster, in the order of creation."""
        for topic in self.topics.values():
            for partition_id, partition in topic.partitions.items():
                yield topic, partition_id, partition

    def is_active(self, broker_id: int) -> bool:
        """Neither fenced nor shutting down: may lead, may be in an ISR."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """The dynamic settings of a resource; empty when it has none."""
        return self.configs.get(ConfigResource(resource_type, name), _NO_CONFIG)


_NO_CONFIG: Mapping[str, str] = {}
EMPTY_IMAGE = ClusterImage()
