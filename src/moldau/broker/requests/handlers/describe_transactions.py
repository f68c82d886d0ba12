"""DescribeTransactions (key 65), version 0. The state of transactional ids this broker coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.access import TOPIC, TRANSACTIONAL_ID, may
from moldau.controller.acls import Operation
from moldau.timers.turns import Slices
from moldau.transactions.queries import describe_error
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasTransactions
    from moldau.broker.parts import HasAuthorizer

    class Needs(HasAuthorizer, HasTransactions, Protocol):
        """What this file may touch."""


_PER_SLICE = 50  # transactional ids; then others get a turn


def handle(broker: Needs, call: Call, request: m.DescribeTransactionsRequest) -> Slices[m.DescribeTransactionsResponse]:
    response = m.DescribeTransactionsResponse()
    may_describe = may(broker, call, Operation.DESCRIBE, TRANSACTIONAL_ID)
    may_describe_topic = may(broker, call, Operation.DESCRIBE, TOPIC)
    for number, transactional_id in enumerate(request.transactional_ids, 1):
        if number % _PER_SLICE == 0:
            yield
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
