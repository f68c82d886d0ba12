"""InitProducerId (key 22), versions 0-5. A producer id and epoch, for producers that must not write twice.

Without a transactional id any broker gives a fresh id at epoch 0. With one it is the business of the transaction
coordinator, and a new producer fences the old one. An empty transactional id, or a former producer id without its
epoch, is INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol, cast

from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasProducerIds, HasTransactions

    class Needs(HasProducerIds, HasTransactions, Protocol):
        """What this file may touch."""


_NONE = -1


def handle(
    broker: Needs, call: Call, request: m.InitProducerIdRequest
) -> m.InitProducerIdResponse | Awaitable[m.InitProducerIdResponse] | None:
    if (request.producer_id == _NONE) != (request.producer_epoch == _NONE):
        return _refused(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        if not request.transactional_id:
            return _refused(ErrorCode.INVALID_REQUEST)
        error = broker.transactions.handle(
            request.transactional_id, request, call.version, lambda response: call.respond(cast("Message", response))
        )
        return _refused(error) if error else None
    producer_id = broker.producer_ids.claim_now()
    if producer_id is not None:
        return m.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
    return _wait(broker)


async def _wait(broker: Needs) -> m.InitProducerIdResponse:
    producer_id = await broker.producer_ids.claim()
    if producer_id is None:
        return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return m.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refused(code: ErrorCode) -> m.InitProducerIdResponse:
    return m.InitProducerIdResponse(error_code=code, producer_id=_NONE, producer_epoch=_NONE)
