"""Vote (key 52), versions 0-2. Another controller asks for this one's vote, or (from version 2 on) whether it would
get it. The vote is on disk before the answer leaves.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from moldau.broker.quorum.messages import QuorumRequestRefused, decode_vote, encode_voted
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.quorum.parts import HasQuorum


def handle(broker: HasQuorum, _call: Call, request: m.VoteRequest) -> m.VoteResponse:
    quorum = broker.metadata_log
    try:
        vote = decode_vote(request, quorum.cluster_id)
    except QuorumRequestRefused as error:
        return m.VoteResponse(error.code)
    return encode_voted(quorum.ask(partial(quorum.raft.on_vote, vote=vote)))
