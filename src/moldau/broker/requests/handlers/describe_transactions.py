"""DescribeTransactions (key 65), version 0. The state of transactional ids this broker coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.transactions.queries import describe_error
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasTransactions


def handle(
    broker: HasTransactions, call: Call, request: m.DescribeTransactionsRequest
) -> m.DescribeTransactionsResponse:
    response = m.DescribeTransactionsResponse()
    for transactional_id in request.transactional_ids:
        shard = broker.transactions.shard_for(transactional_id)
        response.transaction_states.append(
            describe_error(transactional_id, shard)
            if isinstance(shard, ErrorCode)
            else shard.describe(transactional_id)
        )
    return response
