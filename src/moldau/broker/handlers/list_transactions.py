"""ListTransactions (key 66), versions 0-2. The transactional ids of this broker, by state, producer, age and name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.broker.transaction_coordinator import now_of
from moldau.groups.regex import Regex
from moldau.groups.regex_syntax import InvalidRegex
from moldau.transactions import merge_lists
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.calls import Call


def handle(broker: Broker, call: Call, request: m.ListTransactionsRequest) -> m.ListTransactionsResponse:
    if broker.transactions.is_loading:
        return m.ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    shards = broker.transactions.shards
    matches = None
    if request.transactional_id_pattern:
        alphabet = frozenset[str]().union(*(name for shard in shards for name in shard.transactional_ids))
        try:
            matches = Regex(request.transactional_id_pattern, alphabet).matches
        except InvalidRegex:
            return m.ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    now = now_of(broker)
    return merge_lists(shard.list_transactions(request, now, matches) for shard in shards)
