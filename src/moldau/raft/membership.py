"""Voters come and go (KIP-853): which change the leader may make now, and which one a replica should ask it for.

One voter at a time, and only when the change before it is committed, in this leader's own epoch: so any two majorities
that could decide at the same moment share a voter (Raft dissertation, section 4.1, and the bug found in it later).
"""

from __future__ import annotations

from dataclasses import dataclass

from moldau.raft.leader import Leader
from moldau.raft.replica import Raft
from moldau.raft.voters import Address, ReplicaKey, Voter, VoterSet
from moldau.wire import ErrorCode

_CAUGHT_UP_WITHIN_MS = 3_600_000
RECONFIGURABLE = 1  # the kraft.version from which on voters are in the log


class VoterChangeRefused(Exception):
    """The code for the response, and what to do about it."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(slots=True, frozen=True)
class Add:
    """Make me a voter."""

    voter: Voter


@dataclass(slots=True, frozen=True)
class Remove:
    """This voter was me with another disk, and will not come back."""

    key: ReplicaKey


@dataclass(slots=True, frozen=True)
class Update:
    """I am a voter, but not where the others think I am."""

    voter: Voter


VoterChange = Add | Remove | Update


def changeable(raft: Raft) -> VoterSet:
    """The set a change may start from; VoterChangeRefused if none may be made now."""
    role = raft.role
    if not isinstance(role, Leader):
        raise VoterChangeRefused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This controller does not lead the quorum.")
    if role.high_watermark is None:
        raise VoterChangeRefused(
            ErrorCode.REQUEST_TIMED_OUT, "The leader is new and has committed nothing yet: try again."
        )
    if raft.history.kraft_version < RECONFIGURABLE:
        raise VoterChangeRefused(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Voters cannot change while kraft.version is {raft.history.kraft_version}: upgrade the feature first.",
        )
    if raft.history.latest_offset >= role.high_watermark:
        raise VoterChangeRefused(
            ErrorCode.REQUEST_TIMED_OUT, "The voter change before this one is not committed yet: try again."
        )
    return raft.voters


def with_added(raft: Raft, now_ms: float, voter: Voter) -> VoterSet:
    voters = changeable(raft)
    if voters.get(voter.key.id) is not None:
        raise VoterChangeRefused(ErrorCode.DUPLICATE_VOTER, f"Node {voter.key.id} is a voter already.")
    if not voter.first_kraft_version <= raft.history.kraft_version <= voter.last_kraft_version:
        raise VoterChangeRefused(
            ErrorCode.INVALID_REQUEST,
            f"Node {voter.key.id} knows kraft.version {voter.first_kraft_version} to {voter.last_kraft_version}, "
            f"and the cluster uses {raft.history.kraft_version}.",
        )
    role = raft.role
    progress = role.progress.get(voter.key) if isinstance(role, Leader) else None
    if progress is None or progress.last_caught_up_ms < 0 or progress.last_fetch_ms < now_ms - _CAUGHT_UP_WITHIN_MS:
        raise VoterChangeRefused(
            ErrorCode.REQUEST_TIMED_OUT,
            f"Node {voter.key.id} does not fetch the metadata log, or is still behind: start it as an observer first.",
        )
    return voters.with_voter(voter)


def without(raft: Raft, key: ReplicaKey) -> VoterSet:
    voters = changeable(raft)
    known = voters.get(key.id)
    if known is None or known.key != key:
        raise VoterChangeRefused(ErrorCode.VOTER_NOT_FOUND, f"No voter has node id {key.id} and that directory id.")
    if len(voters) == 1:
        raise VoterChangeRefused(ErrorCode.VOTER_NOT_FOUND, "The last voter cannot be removed: add another one first.")
    return voters.without(key)


def with_updated(raft: Raft, voter: Voter) -> VoterSet:
    voters = changeable(raft)
    known = voters.get(voter.key.id)
    if known is None or known.key != voter.key:
        raise VoterChangeRefused(
            ErrorCode.VOTER_NOT_FOUND, f"No voter has node id {voter.key.id} and that directory id."
        )
    if not voter.endpoints or not (voter.first_kraft_version <= raft.history.kraft_version <= voter.last_kraft_version):
        raise VoterChangeRefused(ErrorCode.INVALID_REQUEST, "Endpoints are missing, or the kraft.version is not known.")
    return voters.with_voter(voter)


def upgraded(raft: Raft) -> VoterSet:
    """The fixed voters with their directory ids, to be written into the log: from then on they can change."""
    role = raft.role
    if not isinstance(role, Leader) or role.high_watermark is None:
        raise VoterChangeRefused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This controller does not lead the quorum.")
    voters = []
    for voter in raft.voters:
        progress = role.progress_of(voter.key)
        key = raft.me if voter.key.id == raft.me.id else None if progress is None else progress.key
        if key is None or not any(key.directory_id):
            raise VoterChangeRefused(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"The directory id of voter {voter.key.id} is not known: start all voters, of a release that tells it.",
            )
        voters.append(voter._replace(key=key))
    return VoterSet(tuple(voters))


def wanted_change(raft: Raft, endpoints: tuple[tuple[str, Address], ...], *, may_join: bool) -> VoterChange | None:
    """What this replica should ask the leader for; only a controller asks."""
    me, voters = raft.me, raft.voters
    if raft.history.kraft_version < RECONFIGURABLE or isinstance(raft.role, Leader) or raft.leader_id is None:
        return None
    mine = Voter(me, endpoints)
    known = voters.get(me.id)
    if known is None:
        return Add(mine) if may_join else None
    if known.key != me:
        return Remove(known.key) if may_join else None
    return Update(mine) if endpoints and known != mine else None
