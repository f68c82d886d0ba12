"""AddOffsetsToTxn (key 25), versions 0-4. A transaction will commit offsets of a group: its offsets partition joins."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from moldau.wire import Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasTransactions


def handle(broker: HasTransactions, call: Call, request: m.AddOffsetsToTxnRequest) -> m.AddOffsetsToTxnResponse | None:
    error = broker.transactions.handle(
        request.transactional_id,
        request,
        call.version,
        lambda response: call.respond(cast("Message", response)),
        group_id=request.group_id,
    )
    return m.AddOffsetsToTxnResponse(error_code=error) if error else None
