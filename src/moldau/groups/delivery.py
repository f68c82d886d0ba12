"""Has a member heard what it was assigned?

An answer can come too late: librdkafka waits for one heartbeat interval, then sends its next heartbeat as if nothing
had happened. What the answer gave or took away would stay unknown to the member, and the partitions without a reader.
So an assignment that differs from what the member last said it owns is told again, once per heartbeat interval. (Kafka
tells it once, and relies on the client to ask for all after a failure, as the Java client does.)

Soft state: a coordinator that has just loaded the group waits for the next assignment, since whoever lost it meanwhile
asks for all.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from moldau.groups.records import TopicPartition


@dataclass(slots=True)
class Delivery:
    """What passed between the coordinator and one member."""

    reported: Set[TopicPartition] | None = None
    """What the member last said it owns; None: it did not, to this coordinator."""
    told_ms: float | None = None
    """When it was last told its assignment, on the monotonic clock."""
    used_epoch: int = 0
    """The epoch of its last heartbeat."""

    def is_due(self, assigned: Set[TopicPartition], interval_ms: int, now_ms: float) -> bool:
        """Must the assignment be told, although it is not new?"""
        return self.reported != assigned and self._is_long_ago(interval_ms, now_ms)

    def must_ask(self, assigned: Set[TopicPartition], interval_ms: int, now_ms: float) -> bool:
        """Of a member that has to give up partitions: would telling it change nothing, in its view?

        It was given partitions, which were taken back before it said that it has them. If it missed both, or did not
        get round to the first, it owns what it is assigned.
        """
        return self.reported == assigned and self._is_long_ago(interval_ms, now_ms)

    def _is_long_ago(self, interval_ms: int, now_ms: float) -> bool:
        return self.told_ms is not None and now_ms - self.told_ms >= interval_ms
