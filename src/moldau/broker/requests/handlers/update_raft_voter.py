"""UpdateRaftVoter (key 82), version 0. A voter tells the leader of the quorum where it listens now, and which
kraft.version it knows. The answer does not wait for the change to be committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.raft import Address, ReplicaKey, Voter
from moldau.raft.membership import VoterChangeRefused
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.quorum.parts import HasQuorum


def handle(broker: HasQuorum, _call: Call, request: m.UpdateRaftVoterRequest) -> m.UpdateRaftVoterResponse:
    quorum = broker.metadata_log
    response = m.UpdateRaftVoterResponse()
    if (leader := quorum.leader_endpoint()) is not None and quorum.leader_id is not None:
        response.current_leader = m.UpdateRaftVoterResponse.CurrentLeader(quorum.leader_id, quorum.epoch, *leader)
    if request.cluster_id is not None and request.cluster_id != quorum.cluster_id:
        response.error_code = ErrorCode.INCONSISTENT_CLUSTER_ID
        return response
    response.error_code = quorum.raft.leader_only(request.current_leader_epoch)
    if response.error_code:
        return response
    levels = request.kraft_version_feature
    voter = Voter(
        ReplicaKey(request.voter_id, request.voter_directory_id),
        tuple((each.name, Address(each.host, each.port)) for each in request.listeners),
        levels.min_supported_version,
        levels.max_supported_version,
    )
    try:
        quorum.voter_changes.update(voter)
    except VoterChangeRefused as refused:
        response.error_code = refused.code
    return response
