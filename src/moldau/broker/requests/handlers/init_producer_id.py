"""InitProducerId (key 22), versions 0-5. A producer id and epoch, for producers that must not write twice.

Without a transactional id any broker gives a fresh id at epoch 0. With one it is the business of the transaction
coordinator, and a new producer fences the old one. An empty transactional id, or a former producer id without its
epoch, is INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.requests.access import TOPIC, TRANSACTIONAL_ID, may, may_on_cluster, may_somewhere
from moldau.controller.acls import Operation
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasProducerIds, HasTransactions
    from moldau.broker.parts import HasAuthorizer

    class Needs(HasAuthorizer, HasProducerIds, HasTransactions, Protocol):
        """What this file may touch."""


_NONE = -1


def handle(
    broker: Needs, call: Call, request: m.InitProducerIdRequest
) -> m.InitProducerIdResponse | Awaitable[m.InitProducerIdResponse] | None:
    if (refusal := _refusal(broker, call, request.transactional_id)) is not None:
        return _refused(refusal)
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


def _refusal(broker: Needs, call: Call, transactional_id: str | None) -> ErrorCode | None:
    if transactional_id is not None:
        may_write = may(broker, call, Operation.WRITE, TRANSACTIONAL_ID)
        return None if may_write(transactional_id) else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    # Who may write some topic may do so idempotently; the permission of its own is from before that.
    if may_on_cluster(broker, call, Operation.IDEMPOTENT_WRITE, is_filter=True):
        return None
    return None if may_somewhere(broker, call, Operation.WRITE, TOPIC) else ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def _wait(broker: Needs) -> m.InitProducerIdResponse:
    producer_id = await broker.producer_ids.claim()
    if producer_id is None:
        return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return m.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refused(code: ErrorCode) -> m.InitProducerIdResponse:
    return m.InitProducerIdResponse(error_code=code, producer_id=_NONE, producer_epoch=_NONE)
