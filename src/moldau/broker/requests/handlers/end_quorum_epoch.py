"""EndQuorumEpoch (key 54), versions 0-1. The leader of the quorum gives up, and names those who should follow it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from moldau.broker.quorum.messages import QuorumRequestRefused, decode_end, encode_end_answer
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.quorum.parts import HasQuorum


def handle(broker: HasQuorum, _call: Call, request: m.EndQuorumEpochRequest) -> m.EndQuorumEpochResponse:
    quorum = broker.metadata_log
    try:
        end = decode_end(request, quorum.cluster_id)
    except QuorumRequestRefused as error:
        return m.EndQuorumEpochResponse(error.code)
    return encode_end_answer(quorum.ask(partial(quorum.raft.on_end_epoch, end=end)))
