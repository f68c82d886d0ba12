"""The quorum as its leader sees it: who votes, who watches, and who has how much."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moldau.raft import ReplicaKey
from moldau.raft.leader import Leader, Progress

if TYPE_CHECKING:
    from moldau.broker.quorum.quorum import MetadataQuorum
    from moldau.seams import Clock


class ReplicaState(NamedTuple):
    """A replica as the leader sees it; times are wall-clock milliseconds, -1 for never."""

    key: ReplicaKey
    end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int


class QuorumDescription(NamedTuple):
    """What DescribeQuorum tells."""

    leader_id: int
    epoch: int
    high_watermark: int
    voters: list[ReplicaState]
    observers: list[ReplicaState]


def describe(quorum: MetadataQuorum, clock: Clock) -> QuorumDescription | None:
    """Only the leader knows."""
    me, role = quorum.raft.me, quorum.raft.role
    if not isinstance(role, Leader):
        return None
    now_ms, wall_ms = clock.monotonic_ms(), clock.wall_ms()

    def at(monotonic_ms: float) -> int:
        return -1 if monotonic_ms < 0 else int(wall_ms - (now_ms - monotonic_ms))

    def state(key: ReplicaKey, progress: Progress | None) -> ReplicaState:
        if key.id == me.id:
            return ReplicaState(key, quorum.next_offset, wall_ms, wall_ms)
        if progress is None:
            return ReplicaState(key, -1, -1, -1)
        return ReplicaState(key, progress.end_offset, at(progress.last_fetch_ms), at(progress.last_caught_up_ms))

    return QuorumDescription(
        me.id,
        role.epoch,
        -1 if role.high_watermark is None else role.high_watermark,
        [state(each.key, role.progress_of(each.key)) for each in role.voters],
        [state(key, progress) for key, progress in sorted(role.progress.items()) if key not in role.voters],
    )
