"""Feature levels of Kafka 4.3: what a cluster may finalize, what each level brings, and how a new cluster starts.

`metadata.version` decides the versions of the metadata records; the others switch protocols on and off. Level numbers
are Kafka's. A level, once written to the log, is what every node must support to take part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moldau.wire import messages as m
from moldau.wire.message import Message

METADATA_VERSION = "metadata.version"
KRAFT_VERSION = "kraft.version"
TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"
ELR_VERSION = "eligible.leader.replicas.version"
SHARE_VERSION = "share.version"
STREAMS_VERSION = "streams.version"


@dataclass(slots=True, frozen=True)
class VersionRange:
    """The levels from first to last, both included."""

    first: int
    last: int

    def __contains__(self, level: int) -> bool:
        return self.first <= level <= self.last

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


NOT_SUPPORTED = VersionRange(0, 0)

METADATA_VERSION_FIRST = 7
METADATA_VERSION_LATEST = 30
# The levels as people know them; the first is level 7.
_RELEASES: Mapping[str, tuple[int, ...]] = {
    "3.3": (3,),
    "3.4": (0,),
    "3.5": (0, 1, 2),
    "3.6": (0, 1, 2),
    "3.7": (0, 1, 2, 3, 4),
    "3.8": (0,),
    "3.9": (0,),
    "4.0": (0, 1, 2, 3),
    "4.1": (0, 1),
    "4.2": (0, 1),
    "4.3": (0,),
}
# Levels whose records an older level cannot express: going below one of them would lose metadata.
_METADATA_CHANGED_AT = frozenset({7, 8, 11, 13, 14, 15, 17, 23, 30})

LEADER_EPOCH_BUMP_ON_SHRINK_BELOW = 12
DIRECTORY_ASSIGNMENT_FROM = 17
ELR_FROM = 23
CORDONED_LOG_DIRS_FROM = 30


@dataclass(slots=True, frozen=True)
class Feature:
    """A feature this code knows."""

    name: str
    latest: int
    # Level -> the level of metadata.version it came with: a cluster bootstrapped at that level starts with it.
    introduced_at: Mapping[int, int]
    # Level -> what else must be finalized, and how high.
    needs: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    def level_for(self, metadata_version: int) -> int:
        levels = [level for level, since in self.introduced_at.items() if since <= metadata_version]
        return max(levels, default=0)


FEATURES: Mapping[str, Feature] = {
    feature.name: feature
    for feature in (
        Feature(KRAFT_VERSION, 1, {1: 21}),
        Feature(TRANSACTION_VERSION, 2, {1: 24, 2: 24}),
        Feature(GROUP_VERSION, 1, {1: 22}),
        Feature(ELR_VERSION, 1, {1: 26}, {1: {METADATA_VERSION: ELR_FROM}}),
        Feature(SHARE_VERSION, 1, {1: 28}),
        Feature(STREAMS_VERSION, 1, {1: 29}),
    )
}

SUPPORTED: Mapping[str, VersionRange] = {
    METADATA_VERSION: VersionRange(METADATA_VERSION_FIRST, METADATA_VERSION_LATEST),
    **{name: VersionRange(0, feature.latest) for name, feature in FEATURES.items()},
}


def release_name(metadata_version: int) -> str:
    """4.3-IV0 for level 30."""
    names = [f"{release}-IV{step}" for release, steps in _RELEASES.items() for step in steps]
    return names[metadata_version - METADATA_VERSION_FIRST]


def loses_metadata(current: int, target: int) -> bool:
    """Whether going down from `current` to `target` crosses a level that changed the records."""
    return any(target < level <= current for level in _METADATA_CHANGED_AT)


def record_version(record: Message, metadata_version: int) -> int:
    """The version to write a record in, so that every node at this level of metadata.version can read it."""
    if isinstance(record, m.RegisterBrokerRecord):
        return 1 if metadata_version < 8 else 2 if metadata_version < 17 else 3 if metadata_version < 30 else 4
    if isinstance(record, m.PartitionRecord | m.PartitionChangeRecord):
        return 0 if metadata_version < DIRECTORY_ASSIGNMENT_FROM else 1 if metadata_version < ELR_FROM else 2
    if isinstance(record, m.BrokerRegistrationChangeRecord):
        if record.cordoned_log_dirs is not None:
            return 3
        return 2 if record.log_dirs else 1 if record.in_controlled_shutdown else 0
    return record.last_version


def bootstrap_records(
    metadata_version: int = METADATA_VERSION_LATEST, levels: Mapping[str, int] | None = None
) -> list[Message]:
    """The first records of a new cluster: its feature levels. `levels` overrides single ones (0 leaves one off).

    `kraft.version` is not among them: it lives in the control records of the Raft log.
    """
    wanted = {name: feature.level_for(metadata_version) for name, feature in FEATURES.items()} | dict(levels or {})
    wanted.pop(KRAFT_VERSION, None)
    unknown = sorted(set(wanted) - set(FEATURES))
    if unknown:
        raise ValueError(f"unknown features {', '.join(unknown)}; known are {', '.join(FEATURES)}")
    records: list[Message] = [m.FeatureLevelRecord(METADATA_VERSION, metadata_version)]
    records += [m.FeatureLevelRecord(name, level) for name, level in wanted.items() if level > 0]
    return records
