"""KRaft: how the controllers agree on one log, and on who writes it.

`Raft` is one replica's part, without files, sockets or clock: time, requests, responses and facts about the log go in,
answers and effects come out. `broker.quorum` gives it a disk and a network, the tests give it worse ones. Who knows the
Raft paper will find it here with Kafka's differences: followers pull (KIP-595), candidates ask before they disturb
(pre-vote, KIP-996), voters come and go through the log itself (KIP-853).
"""

from moldau.raft.effects import (
    Append,
    AppendLeaderChange,
    Effect,
    HighWatermarkChanged,
    HistoryFound,
    InstallSnapshot,
    LeaderChanged,
    Persist,
    Send,
    SnapshotChunk,
    Truncate,
)
from moldau.raft.election_state import ElectionState, decode_quorum_state, encode_quorum_state
from moldau.raft.log_facts import LogFacts, SnapshotId
from moldau.raft.messages import (
    BeginQuorumEpoch,
    EndQuorumEpoch,
    EpochAnswer,
    Fetch,
    Fetched,
    FetchedSnapshot,
    FetchSnapshot,
    Vote,
    Voted,
)
from moldau.raft.replica import Raft
from moldau.raft.settings import RaftSettings, RaftViolation
from moldau.raft.voters import Address, ReplicaKey, Voter, VoterHistory, VoterSet

__all__ = [
    "Address",
    "Append",
    "AppendLeaderChange",
    "BeginQuorumEpoch",
    "Effect",
    "ElectionState",
    "EndQuorumEpoch",
    "EpochAnswer",
    "Fetch",
    "FetchSnapshot",
    "Fetched",
    "FetchedSnapshot",
    "HighWatermarkChanged",
    "HistoryFound",
    "InstallSnapshot",
    "LeaderChanged",
    "LogFacts",
    "Persist",
    "Raft",
    "RaftSettings",
    "RaftViolation",
    "ReplicaKey",
    "Send",
    "SnapshotChunk",
    "SnapshotId",
    "Truncate",
    "Vote",
    "Voted",
    "Voter",
    "VoterHistory",
    "VoterSet",
    "decode_quorum_state",
    "encode_quorum_state",
]
