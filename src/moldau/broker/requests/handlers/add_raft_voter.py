"""AddRaftVoter (key 80), versions 0-1. Only the leader of the quorum adds a voter (KIP-853), which must have caught up.

The new voter is asked for its versions first. The answer comes when the change is committed; from version 1 on a
controller that adds itself may ask for it earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.raft import Address, ReplicaKey
from moldau.raft.membership import VoterChangeRefused
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.quorum.parts import HasQuorum


async def handle(broker: HasQuorum, _call: Call, request: m.AddRaftVoterRequest) -> m.AddRaftVoterResponse:
    quorum = broker.metadata_log
    if request.cluster_id is not None and request.cluster_id != quorum.cluster_id:
        code = ErrorCode.INCONSISTENT_CLUSTER_ID
        return m.AddRaftVoterResponse(error_code=code, error_message=code.meaning)
    if request.voter_id < 0 or not any(request.voter_directory_id):
        message = "A voter has a node id and a directory id."
        return m.AddRaftVoterResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=message)
    key = ReplicaKey(request.voter_id, request.voter_directory_id)
    endpoints = tuple((each.name, Address(each.host, each.port)) for each in request.listeners)
    try:
        await quorum.voter_changes.add(key, endpoints, request.timeout_ms, wait=request.ack_when_committed)
    except VoterChangeRefused as refused:
        return m.AddRaftVoterResponse(error_code=refused.code, error_message=refused.message)
    return m.AddRaftVoterResponse(error_message=None)
