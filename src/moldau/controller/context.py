"""What a command is given beside the image and the request, and what it gives back.

Commands are functions: time, randomness, the rules of configs and the offset to come are arguments. Nothing here
remembers anything; the only soft state of a controller, who is alive, is `sessions.BrokerSessions`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, NamedTuple, Protocol, TypeVar

from moldau.controller.features import DIRECTORY_ASSIGNMENT_FROM, SUPPORTED, VersionRange
from moldau.controller.image import (
    CLUSTER_DEFAULTS,
    MIGRATING_DIR,
    UNASSIGNED_DIR,
    ClusterImage,
    ConfigResource,
    ResourceType,
)
from moldau.controller.sessions import BrokerSession
from moldau.seams import Random
from moldau.wire import messages as m
from moldau.wire.message import Message

R_co = TypeVar("R_co", covariant=True)

# More records than this are not committed for one request: it would hold everybody else up.
RECORDS_PER_COMMAND_MAX = 10_000
PARTITIONS_PER_REQUEST_MAX = 10_000

MIN_INSYNC_REPLICAS = "min.insync.replicas"
UNCLEAN_LEADER_ELECTION = "unclean.leader.election.enable"


class ControllerResult(NamedTuple, Generic[R_co]):
    """The answer, and the records that make it true: it may be sent once they are committed.

    `refusal` is why the whole request was refused, for the log: not every response has room for it. `sessions` are the
    sessions that begin, go on or end (None) once the records are appended: deciding changes nothing.
    """

    response: R_co
    records: list[Message]
    refusal: str | None = None
    sessions: Mapping[int, BrokerSession | None] = MappingProxyType({})


class ConfigRules(Protocol):
    """What the controller must know about configs. The broker's config tables implement it."""

    def validate(self, resource: ConfigResource, proposed: Mapping[str, str], current: Mapping[str, str]) -> None:
        """ApiError (mostly INVALID_CONFIG) unless the resource may have exactly these dynamic settings."""

    def is_list(self, resource_type: int, name: str) -> bool:
        """Whether APPEND and SUBTRACT make sense."""

    def default(self, resource_type: int, name: str) -> str | None:
        """The value when nobody set one, as text; None when there is none."""

    def static_topic_default(self, name: str) -> str:
        """A topic config's value on this node without any dynamic setting: server.properties, or the default."""

    def describe_topic(
        self, overrides: Mapping[str, str], image: ClusterImage
    ) -> list[m.CreateTopicsResponse.CreatableTopicConfigs]:
        """Every effective config of a topic with these overrides, for the response to its creation."""


def _everything(_name: str) -> bool:
    return True


def _free(_partitions: int) -> None:
    return None


class Rehearsal(Protocol):
    """The quota as it is now, for one decision, which may have to be made again: nothing is charged before it is clear
    that it counts."""

    def charge(self, partitions: int) -> None:
        """As `ControllerContext.charge_partitions`; on any thread."""

    def pay(self) -> None:
        """What was charged is charged indeed."""


class _Free:
    def charge(self, partitions: int) -> None:
        return None

    def pay(self) -> None:
        return None


@dataclass(slots=True, frozen=True)
class ControllerContext:
    """What a command needs to know besides the image and its request."""

    rules: ConfigRules
    random: Random
    node_id: int
    cluster_id: str
    # The offset that the first record of this command will get; a broker's epoch comes from it.
    next_offset: int = 0
    # Monotonic.
    now_ms: float = 0.0
    default_partitions: int = 1
    default_replication_factor: int = 1
    delete_topic_enable: bool = True
    # What this node supports, the voters of the quorum, and the level of kraft.version in the Raft log.
    supported_features: Mapping[str, VersionRange] = field(default_factory=lambda: SUPPORTED)
    quorum_ids: Collection[int] = ()
    kraft_version: int = 1
    # Whether the caller may see the configs of the topic it creates.
    may_describe_configs: Callable[[str], bool] = _everything
    # Counts so many partitions against the quota for changes; ApiError THROTTLING_QUOTA_EXCEEDED when it is used up.
    charge_partitions: Callable[[int], None] = _free
    # For whoever carries the decision out: what to give it as `charge_partitions`, and to pay when it counts.
    rehearse_charges: Callable[[], Rehearsal] = _Free


def topic_setting(image: ClusterImage, context: ControllerContext, topic: str, name: str) -> str:
    """The effective value of a topic config, for those whose name is the same on brokers and topics."""
    for resource in (
        ConfigResource(ResourceType.TOPIC, topic),
        ConfigResource(ResourceType.BROKER, str(context.node_id)),
        CLUSTER_DEFAULTS,
    ):
        value = image.configs.get(resource, {}).get(name)
        if value is not None:
            return value
    return context.rules.static_topic_default(name)


def is_unclean_election_enabled(image: ClusterImage, context: ControllerContext, topic: str) -> bool:
    return topic_setting(image, context, topic, UNCLEAN_LEADER_ELECTION).strip().lower() == "true"


def effective_min_isr(image: ClusterImage, context: ControllerContext, topic: str, replicas: int) -> int:
    """min.insync.replicas, but never more than the partition has replicas: what its leader asks for, too."""
    return min(int(topic_setting(image, context, topic, MIN_INSYNC_REPLICAS)), replicas)


def default_directory(image: ClusterImage, broker_id: int) -> bytes:
    """Where a new replica on the broker lies, as far as the controller can tell."""
    if image.metadata_version < DIRECTORY_ASSIGNMENT_FROM:
        return MIGRATING_DIR
    broker = image.brokers.get(broker_id)
    if broker is None:
        return UNASSIGNED_DIR
    if not broker.directories:
        return MIGRATING_DIR
    # With several directories the broker chooses, and tells with AssignReplicasToDirs.
    return broker.directories[0] if len(broker.directories) == 1 else UNASSIGNED_DIR
