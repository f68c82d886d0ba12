"""EndTxn (key 26), versions 0-5. Commit or abort. From version 5 on the producer goes on with a new epoch (KIP-890)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from moldau.wire import Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasTransactions


def handle(broker: HasTransactions, call: Call, request: m.EndTxnRequest) -> m.EndTxnResponse | None:
    error = broker.transactions.handle(
        request.transactional_id, request, call.version, lambda response: call.respond(cast("Message", response))
    )
    return m.EndTxnResponse(error_code=error) if error else None
