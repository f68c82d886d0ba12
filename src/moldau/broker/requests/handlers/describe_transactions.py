"""DescribeTransactions (key 65), version 0. The state of transactional ids this broker coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.access import TOPIC, TRANSACTIONAL_ID, may
from moldau.controller.acls import Operation
from moldau.transactions.queries import describe_error
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasTransactions
    from moldau.broker.parts import HasAuthorizer

    class Needs(HasAuthorizer, HasTransactions, Protocol):
        """What this file may touch."""


def handle(broker: Needs, call: Call, request: m.DescribeTransactionsRequest) -> m.DescribeTransactionsResponse:
    response = m.DescribeTransactionsResponse()
    may_describe = may(broker, call, Operation.DESCRIBE, TRANSACTIONAL_ID)
    may_describe_topic = may(broker, call, Operation.DESCRIBE, TOPIC)
    for transactional_id in request.transactional_ids:
        if not may_describe(transactional_id):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            response.transaction_states.append(describe_error(transactional_id, code))
            continue
        shard = broker.transactions.shard_for(transactional_id)
        state = (
            describe_error(transactional_id, shard)
            if isinstance(shard, ErrorCode)
            else shard.describe(transactional_id)
        )
        state.topics = [topic for topic in state.topics if may_describe_topic(topic.topic)]
        response.transaction_states.append(state)
    return response
