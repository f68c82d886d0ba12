"""The roles of a replica, one object each: what it remembers while it has the role, and how it votes then.

    Unattached   knows no leader; waits for one, or for the time to ask for votes
    Follower     fetches from the leader
    Prospective  lost its leader: asks whether an election would be won (pre-vote), disturbing nobody
    Candidate    asks for votes in an epoch of its own
    Leader       (in `leader`) has the log that counts
    Resigned     led this epoch and will not again: helps the others to elect

Observers are Unattached or Follower, with a deadline that never comes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from moldau.raft.log_facts import SnapshotId
from moldau.raft.messages import Vote
from moldau.raft.voters import Address, ReplicaKey, VoterSet

NEVER = float("inf")


class Outcome(Enum):
    OPEN = 0
    WON = 1
    LOST = 2


@dataclass(slots=True)
class Ballots:
    """The votes of one election, or pre-vote. Only the voters of the set it was called with count."""

    voters: VoterSet
    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)
    # A quorum is founded by all of its voters (see `founding`).
    all_needed: bool = False

    @property
    def outcome(self) -> Outcome:
        needed = len(self.voters) if self.all_needed else self.voters.majority
        if sum(1 for each in self.voters if each.key.id in self.granted) >= needed:
            return Outcome.WON
        left = sum(1 for each in self.voters if each.key.id not in self.rejected)
        return Outcome.LOST if left < needed else Outcome.OPEN

    def unanswered(self) -> list[ReplicaKey]:
        answered = self.granted | self.rejected
        return [each.key for each in self.voters if each.key.id not in answered]

    def note(self, node_id: int, *, granted: bool) -> None:
        (self.granted if granted else self.rejected).add(node_id)


@dataclass(slots=True)
class Unattached:
    """Waits: for a leader to show up, or for its deadline."""

    epoch: int
    deadline_ms: float
    leader_id: int | None = None
    voted: ReplicaKey | None = None

    def grants(self, vote: Vote, *, up_to_date: bool) -> bool:
        return _grants_if_free(self, vote, up_to_date=up_to_date)


def _grants_if_free(role: Unattached | Prospective, vote: Vote, *, up_to_date: bool) -> bool:
    """Of who follows nobody: one vote per epoch, and none in an epoch that has its leader."""
    if vote.pre_vote:
        return up_to_date
    if role.voted is not None:
        return role.voted.is_same(vote.candidate)
    return role.leader_id is None and up_to_date


@dataclass(slots=True)
class Follower:
    """Fetches, and waits for nothing else until its deadline."""

    epoch: int
    deadline_ms: float
    leader_id: int
    address: Address
    voted: ReplicaKey | None = None
    # Whoever hears from its leader does not help to depose it.
    has_fetched: bool = False
    snapshot: SnapshotId | None = None
    snapshot_position: int = 0

    def grants(self, vote: Vote, *, up_to_date: bool) -> bool:
        return vote.pre_vote and up_to_date and not self.has_fetched


@dataclass(slots=True)
class Prospective:
    """Asks for pre-votes."""

    epoch: int
    deadline_ms: float
    ballots: Ballots
    leader_id: int | None = None
    address: Address | None = None
    voted: ReplicaKey | None = None

    def grants(self, vote: Vote, *, up_to_date: bool) -> bool:
        return _grants_if_free(self, vote, up_to_date=up_to_date)


@dataclass(slots=True)
class Candidate:
    """Asks for votes."""

    epoch: int
    deadline_ms: float
    ballots: Ballots
    voted: ReplicaKey  # itself
    # Lost: wait a little before asking again, each a different time.
    is_backing_off: bool = False
    leader_id: int | None = None

    def grants(self, vote: Vote, *, up_to_date: bool) -> bool:
        return vote.pre_vote and up_to_date


@dataclass(slots=True)
class Resigned:
    """Tells the others that it no longer leads."""

    epoch: int
    deadline_ms: float
    leader_id: int | None  # itself: nobody else can win this epoch
    candidates: tuple[ReplicaKey, ...]
    voted: ReplicaKey | None = None
    # Voters that know already.
    told: set[int] = field(default_factory=set)

    def grants(self, vote: Vote, *, up_to_date: bool) -> bool:
        return vote.pre_vote and up_to_date
