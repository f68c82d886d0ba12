"""RemoveRaftVoter (key 81), version 0. Only the leader of the quorum removes a voter (KIP-853), itself included: then
it resigns as soon as the change is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.raft import ReplicaKey
from moldau.raft.membership import VoterChangeRefused
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasConfig
    from moldau.broker.quorum.parts import HasQuorum

    class Needs(HasConfig, HasQuorum, Protocol):
        """What this file may touch."""


async def handle(broker: Needs, _call: Call, request: m.RemoveRaftVoterRequest) -> m.RemoveRaftVoterResponse:
    quorum = broker.metadata_log
    if request.cluster_id is not None and request.cluster_id != quorum.cluster_id:
        code = ErrorCode.INCONSISTENT_CLUSTER_ID
        return m.RemoveRaftVoterResponse(error_code=code, error_message=code.meaning)
    timeout_ms = broker.config.get_int("controller.quorum.request.timeout.ms")
    try:
        await quorum.voter_changes.remove(ReplicaKey(request.voter_id, request.voter_directory_id), timeout_ms)
    except VoterChangeRefused as refused:
        return m.RemoveRaftVoterResponse(error_code=refused.code, error_message=refused.message)
    return m.RemoveRaftVoterResponse(error_message=None)
