"""What replicas of the quorum say to each other: Kafka's RPCs without their wrapping (see `broker.quorum_messages`).

`error` is Kafka's error code. Every answer tells who leads and in which epoch, as far as the answering replica knows.
"""

from __future__ import annotations

from typing import NamedTuple

from moldau.raft.log_facts import SnapshotId
from moldau.raft.voters import Address, ReplicaKey
from moldau.wire import ErrorCode

MAX_OFFSET = (1 << 63) - 1


class Vote(NamedTuple):
    """Please elect me; or, with `pre_vote`: would you?"""

    voter: ReplicaKey
    candidate: ReplicaKey
    epoch: int
    last_epoch: int
    end_offset: int
    pre_vote: bool = False


class Voted(NamedTuple):
    error: ErrorCode
    leader_id: int | None
    epoch: int
    leader_address: Address | None = None
    granted: bool = False


class BeginQuorumEpoch(NamedTuple):
    """I lead this epoch: fetch from me."""

    voter: ReplicaKey
    leader_id: int
    epoch: int
    endpoints: tuple[tuple[str, Address], ...] = ()


class EndQuorumEpoch(NamedTuple):
    """I no longer lead: elect another, these are the best ones, best first."""

    leader_id: int
    epoch: int
    candidates: tuple[ReplicaKey, ...] = ()
    endpoints: tuple[tuple[str, Address], ...] = ()


class EpochAnswer(NamedTuple):
    """To BeginQuorumEpoch and EndQuorumEpoch."""

    error: ErrorCode
    leader_id: int | None
    epoch: int
    leader_address: Address | None = None


class Fetch(NamedTuple):
    """Give me what follows; what is before is on my disk."""

    replica: ReplicaKey
    epoch: int
    offset: int
    last_epoch: int
    high_watermark: int = MAX_OFFSET


class Fetched(NamedTuple):
    error: ErrorCode
    leader_id: int | None
    epoch: int
    high_watermark: int = -1
    log_start_offset: int = -1
    # (epoch, end offset) where the logs part.
    diverging: tuple[int, int] | None = None
    snapshot: SnapshotId | None = None
    records: bytes | memoryview = b""
    leader_address: Address | None = None


class FetchSnapshot(NamedTuple):
    replica: ReplicaKey
    epoch: int
    snapshot: SnapshotId
    position: int


class FetchedSnapshot(NamedTuple):
    error: ErrorCode
    leader_id: int | None
    epoch: int
    snapshot: SnapshotId
    size: int = 0
    position: int = 0
    data: bytes | memoryview = b""
    leader_address: Address | None = None


Request = Vote | BeginQuorumEpoch | EndQuorumEpoch | Fetch | FetchSnapshot
Answer = Voted | EpochAnswer | Fetched | FetchedSnapshot
