"""What the quorum's leader writes about the quorum itself: who leads since when, and who votes."""

from __future__ import annotations

from moldau.broker.quorum.snapshot_files import voters_record
from moldau.raft import AppendLeaderChange, ReplicaKey
from moldau.raft.voters import VoterHistory, VoterSet
from moldau.records import ControlType
from moldau.wire import encode
from moldau.wire import messages as m

ControlRecords = list[tuple[ControlType, bytes]]
_LEADER_CHANGE_VERSION = 0


def voter_records(voters: VoterSet, kraft_version: int | None) -> ControlRecords:
    """Another set of voters; with `kraft_version`, the level from which on they can change."""
    level = [] if kraft_version is None else [_level(kraft_version)]
    return [*level, (ControlType.KRAFT_VOTERS, encode(voters_record(voters), 0))]


def leader_change_records(leader: ReplicaKey, change: AppendLeaderChange, history: VoterHistory) -> ControlRecords:
    """The first ones of a leader's epoch."""
    # Version 1 has the voters' directories, but Apache Kafka (4.3) writes version 0 at every kraft.version and reads
    # nothing else: a node of it does not start on a log with a version 1.
    message = m.LeaderChangeMessage(
        version=_LEADER_CHANGE_VERSION,
        leader_id=leader.id,
        voters=[m.LeaderChangeMessage.Voter(each.id) for each in change.voters],
        granting_voters=[m.LeaderChangeMessage.Voter(each.id) for each in change.granting],
    )
    records: ControlRecords = [(ControlType.LEADER_CHANGE, encode(message, _LEADER_CHANGE_VERSION))]
    if history.kraft_version > 0 and history.latest_offset < 0:
        # The voters are known from the snapshot the quorum was founded with, which only its founders have.
        records += voter_records(history.latest, 1)
    return records


def _level(kraft_version: int) -> tuple[ControlType, bytes]:
    return ControlType.KRAFT_VERSION, encode(m.KRaftVersionRecord(kraft_version=kraft_version), 0)
