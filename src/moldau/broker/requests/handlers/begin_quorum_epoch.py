"""BeginQuorumEpoch (key 53), versions 0-1. A controller says that it leads the quorum: fetch from it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from moldau.broker.quorum.messages import QuorumRequestRefused, decode_begin, encode_begin_answer
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.quorum.parts import HasQuorum


def handle(broker: HasQuorum, _call: Call, request: m.BeginQuorumEpochRequest) -> m.BeginQuorumEpochResponse:
    quorum = broker.metadata_log
    try:
        begin = decode_begin(request, quorum.cluster_id)
    except QuorumRequestRefused as error:
        return m.BeginQuorumEpochResponse(error.code)
    return encode_begin_answer(quorum.ask(partial(quorum.raft.on_begin_epoch, begin=begin)))
