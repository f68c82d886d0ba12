"""What a replica wants done, in order. `Persist` must be durable before anything after it is done or said."""

from __future__ import annotations

from typing import NamedTuple

from moldau.raft.election_state import ElectionState
from moldau.raft.log_facts import SnapshotId
from moldau.raft.messages import Request
from moldau.raft.voters import Address, ReplicaKey


class Persist(NamedTuple):
    """Write `quorum-state`, and flush it."""

    state: ElectionState


class Send(NamedTuple):
    """Send, and tell `Raft.on_answer` or `Raft.on_failure` what came of it, once."""

    node_id: int
    address: Address
    request: Request


class AppendLeaderChange(NamedTuple):
    """The first record of a leader's epoch. Appended at once; flushing may follow."""

    epoch: int
    voters: tuple[ReplicaKey, ...]
    granting: tuple[ReplicaKey, ...]


class Append(NamedTuple):
    """Batches from the leader of `epoch`, to be appended at once as they are; flushing may follow."""

    records: bytes | memoryview
    epoch: int


class Truncate(NamedTuple):
    """Remove what is at or after `offset`: the leader does not have it, so it was never committed."""

    offset: int


class HighWatermarkChanged(NamedTuple):
    """Everything before `offset` is committed."""

    offset: int


class LeaderChanged(NamedTuple):
    leader_id: int | None
    epoch: int


class SnapshotChunk(NamedTuple):
    """A part of a snapshot that is being fetched; position 0 begins a new one."""

    snapshot: SnapshotId
    position: int
    data: bytes | memoryview


class InstallSnapshot(NamedTuple):
    """All parts of the snapshot are here: if it is whole, it replaces the log, which goes on after it. Tell
    `Raft.on_installed` or `Raft.on_damaged_snapshot`."""

    snapshot: SnapshotId


class HistoryFound(NamedTuple):
    """This voter has nothing on its disk, and another one (at least) has: it must not take part. See `founding`."""

    node_id: int
    epoch: int


Effect = (
    Persist
    | Send
    | AppendLeaderChange
    | Append
    | Truncate
    | HighWatermarkChanged
    | LeaderChanged
    | SnapshotChunk
    | InstallSnapshot
    | HistoryFound
)


def without_repetition(effects: list[Effect]) -> list[Effect]:
    """Of election states that follow each other at once only the last needs to be on disk."""
    kept: list[Effect] = []
    persist: Persist | None = None
    for effect in effects:
        if isinstance(effect, Persist):
            persist = effect
            continue
        is_harmless = isinstance(effect, LeaderChanged) and effect.leader_id is None
        if persist is not None and not is_harmless:
            kept.append(persist)
            persist = None
        kept.append(effect)
    return kept if persist is None else [*kept, persist]
