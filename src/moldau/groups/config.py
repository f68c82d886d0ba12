"""What an operator can set about groups, under Kafka's names, with the defaults of Kafka 4.3.

The attribute names are the configuration names with dots turned into underscores where that reads well; each field says
which key it is. Values are validated where they are parsed (broker config); this room takes them as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

_NO_LIMIT = 2**31 - 1


class MigrationPolicy(Enum):
    """group.consumer.migration.policy: may live members change a group's protocol, and in which direction."""

    DISABLED = "disabled"
    DOWNGRADE = "downgrade"
    UPGRADE = "upgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def allows_upgrade(self) -> bool:
        return self in {MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL}

    @property
    def allows_downgrade(self) -> bool:
        return self in {MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL}


@dataclass(slots=True, frozen=True)
class GroupConfig:
    """Settings of every group of a broker."""

    min_session_timeout_ms: int = 6_000
    """group.min.session.timeout.ms"""
    max_session_timeout_ms: int = 1_800_000
    """group.max.session.timeout.ms"""
    initial_rebalance_delay_ms: int = 3_000
    """group.initial.rebalance.delay.ms"""
    max_size: int = _NO_LIMIT
    """group.max.size"""
    new_member_join_timeout_ms: int = 300_000
    """Not configurable in Kafka either: how long a member that never got a JoinGroup answer may stay."""

    offset_metadata_max_bytes: int = 4_096
    """offset.metadata.max.bytes"""
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1_000
    """offsets.retention.minutes, in milliseconds"""
    offsets_retention_check_interval_ms: int = 600_000
    """offsets.retention.check.interval.ms"""

    consumer_session_timeout_ms: int = 45_000
    """group.consumer.session.timeout.ms"""
    consumer_heartbeat_interval_ms: int = 5_000
    """group.consumer.heartbeat.interval.ms"""
    consumer_max_size: int = _NO_LIMIT
    """group.consumer.max.size"""
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """group.consumer.assignors; the first is the default"""
    consumer_migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    """group.consumer.migration.policy"""
    consumer_assignment_interval_ms: int = 1_000
    """group.consumer.assignment.interval.ms: at most one target assignment per group in this time"""
    consumer_regex_refresh_interval_ms: int = 600_000
    """group.consumer.regex.refresh.interval.ms"""


@dataclass(slots=True, frozen=True)
class GroupOverrides:
    """What may be set per group (config resource type GROUP); None means the broker's value."""

    consumer_session_timeout_ms: int | None = None
    """consumer.session.timeout.ms"""
    consumer_heartbeat_interval_ms: int | None = None
    """consumer.heartbeat.interval.ms"""
    consumer_assignment_interval_ms: int | None = None
    """consumer.assignment.interval.ms"""


NO_OVERRIDES = GroupOverrides()
