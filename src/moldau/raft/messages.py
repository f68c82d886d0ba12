"""What replicas of the quorum say to each other: Kafka's RPCs without their wrapping (see `broker.quorum_messages`).

`error` is Kafka's error code. Every answer tells who leads and in which epoch, as far as the answering replica knows.
"""

from __future__ import annotations

from dataclasses import dataclass

from moldau.raft.log_facts import SnapshotId
from moldau.raft.voters import Address, ReplicaKey
from moldau.wire import ErrorCode

MAX_OFFSET = (1 << 63) - 1


@dataclass(slots=True, frozen=True)
class Vote:
    """Please elect me; or, with `pre_vote`: would you?"""

    voter: ReplicaKey
    candidate: ReplicaKey
    epoch: int
    last_epoch: int
    end_offset: int
    pre_vote: bool = False


@dataclass(slots=True, frozen=True)
class Voted:
    error: ErrorCode
    leader_id: int | None
    epoch: int
    leader_address: Address | None = None
    granted: bool = False


@dataclass(slots=True, frozen=True)
class BeginQuorumEpoch:
    """I lead this epoch: fetch from me."""

    voter: ReplicaKey
    leader_id: int
    epoch: int
    endpoints: tuple[tuple[str, Address], ...] = ()


@dataclass(slots=True, frozen=True)
class EndQuorumEpoch:
    """I no longer lead: elect another, these are the best ones, best first."""

    leader_id: int
    epoch: int
    candidates: tuple[ReplicaKey, ...] = ()
    endpoints: tuple[tuple[str, Address], ...] = ()


@dataclass(slots=True, frozen=True)
class EpochAnswer:
    """To BeginQuorumEpoch and EndQuorumEpoch."""

    error: ErrorCode
    leader_id: int | None
    epoch: int
    leader_address: Address | None = None


@dataclass(slots=True, frozen=True)
class Fetch:
    """Give me what follows; what is before is on my disk."""

    replica: ReplicaKey
    epoch: int
    offset: int
    last_epoch: int
    high_watermark: int = MAX_OFFSET


@dataclass(slots=True, frozen=True)
class Fetched:
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


@dataclass(slots=True, frozen=True)
class FetchSnapshot:
    replica: ReplicaKey
    epoch: int
    snapshot: SnapshotId
    position: int


@dataclass(slots=True, frozen=True)
class FetchedSnapshot:
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
