"""What the console knows of a cluster at one moment. Immutable: pages read one snapshot while the next is gathered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

Where = tuple[str, int]


@dataclass(slots=True, frozen=True)
class Partition:
    index: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]
    start: int  # -1: nobody could say
    end: int

    @property
    def records(self) -> int:
        return max(0, self.end - self.start)

    @property
    def is_short(self) -> bool:
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True)
class Topic:
    """Sums are made once: the watching thread asks for them first, and pages find them there."""

    name: str
    is_internal: bool
    partitions: tuple[Partition, ...]
    size_bytes: int | None  # of all replicas
    rate: float  # records a second, of late
    lag: int | None  # of all groups that read it
    groups: tuple[str, ...]

    @cached_property
    def records(self) -> int:
        return sum(partition.records for partition in self.partitions)

    @cached_property
    def replication(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)

    @cached_property
    def short(self) -> int:
        """Partitions with fewer in-sync replicas than replicas."""
        return sum(partition.is_short for partition in self.partitions)

    @cached_property
    def leaderless(self) -> int:
        return sum(partition.leader < 0 for partition in self.partitions)


class Member(NamedTuple):
    id: str
    instance: str
    client: str
    host: str
    assigned: tuple[tuple[str, tuple[int, ...]], ...]


class Position(NamedTuple):
    committed: int
    end: int  # -1: nobody could say
    metadata: str

    @property
    def lag(self) -> int:
        return max(0, self.end - self.committed) if self.end >= 0 else 0


@dataclass(slots=True, frozen=True)
class Group:
    name: str
    kind: str  # classic, consumer, share, streams; the protocol type of older brokers
    state: str
    assignor: str
    coordinator: int
    members: tuple[Member, ...]
    positions: Mapping[Where, Position]
    lag: int
    trend: float  # records a second; above zero the lag grows
    judgement: str  # ok, slow, stalled, stopped

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({topic for topic, _ in self.positions}))

    def lag_of(self, topic: str) -> int:
        return sum(position.lag for (name, _), position in self.positions.items() if name == topic)


class LogDir(NamedTuple):
    path: str
    size_bytes: int
    total_bytes: int  # of the disk; -1: not said
    usable_bytes: int
    replicas: int
    error: str


@dataclass(slots=True, frozen=True)
class Broker:
    id: int
    host: str
    port: int
    rack: str
    is_up: bool
    leaders: int
    replicas: int
    short: int  # replicas of it that are out of sync
    log_dirs: tuple[LogDir, ...]
    rate: float  # records a second into partitions it leads
    answer_s: float | None = None  # how long it took for a question that costs nothing

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.log_dirs)


class Voter(NamedTuple):
    id: int
    is_voter: bool
    end: int
    lag: int
    fetched_ms: int
    caught_up_ms: int


@dataclass(slots=True, frozen=True)
class Quorum:
    leader: int
    epoch: int
    high_watermark: int
    replicas: tuple[Voter, ...]


@dataclass(frozen=True)
class Snapshot:
    number: int
    at_ms: int
    took_s: float
    cluster_id: str
    controller: int
    brokers: Mapping[int, Broker]
    topics: Mapping[str, Topic]
    groups: Mapping[str, Group]
    quorum: Quorum | None
    problems: tuple[str, ...] = field(default=())  # what could not be asked, in sentences

    @cached_property
    def partitions(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())

    @cached_property
    def rate(self) -> float:
        return sum(topic.rate for topic in self.topics.values())

    @cached_property
    def lag(self) -> int:
        return sum(group.lag for group in self.groups.values())


EMPTY = Snapshot(0, 0, 0.0, "", -1, {}, {}, {}, None)
