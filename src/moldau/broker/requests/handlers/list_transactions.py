"""ListTransactions (key 66), versions 0-2. The transactional ids of this broker, by state, producer, age and name.

A pattern is matched in turns with others' requests: ids and patterns may be long, and many. An id of more than
`DISTINCT_MAX` different characters matches no pattern.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from moldau.broker.coordinators.transactions import now_of
from moldau.broker.requests.access import TRANSACTIONAL_ID, may
from moldau.broker.requests.pieces import AT_ONCE
from moldau.controller.acls import Operation
from moldau.groups.regex import Regex
from moldau.groups.regex_syntax import InvalidRegex
from moldau.timers.turns import Slices
from moldau.transactions import merge_lists
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasTransactions
    from moldau.broker.parts import HasAuthorizer, HasLoop, HasTime, HasTurns

    class Needs(HasAuthorizer, HasTime, HasTransactions, HasLoop, HasTurns, Protocol):
        """What this file may touch."""


DISTINCT_MAX = 512
_CHARACTERS_PER_SLICE = 100_000
# A compiled expression has sets of the characters it may meet: of so many it stays small, and is soon made.
_ALPHABET_MAX = 1_024
_Batch = tuple[frozenset[str], list[str]]


def handle(
    broker: Needs, call: Call, request: m.ListTransactionsRequest
) -> m.ListTransactionsResponse | Awaitable[m.ListTransactionsResponse]:
    if broker.transactions.is_loading:
        return m.ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    if request.transactional_id_pattern:
        return _list_matching(broker, call, request, request.transactional_id_pattern)
    if len(request.state_filters) + len(request.producer_id_filters) > AT_ONCE:
        return _list_in_turns(broker, call, request, None)
    now = now_of(broker)
    found = (shard.list_transactions(request, now, None) for shard in broker.transactions.shards)
    return _visible(broker, call, merge_lists(request, found))


async def _list_in_turns(
    broker: Needs, call: Call, request: m.ListTransactionsRequest, matches: Callable[[str], bool] | None
) -> m.ListTransactionsResponse:
    """Every shard looks through the filters, of which there may be very many."""
    now = now_of(broker)
    found = []
    for shard in broker.transactions.shards:
        await broker.turns.next_turn()
        found.append(shard.list_transactions(request, now, matches))
    return _visible(broker, call, merge_lists(request, found))


def _visible(broker: Needs, call: Call, response: m.ListTransactionsResponse) -> m.ListTransactionsResponse:
    if broker.authorizer is not None:
        may_describe = may(broker, call, Operation.DESCRIBE, TRANSACTIONAL_ID, is_filter=True)
        response.transaction_states = [
            each for each in response.transaction_states if may_describe(each.transactional_id)
        ]
    return response


async def _list_matching(
    broker: Needs, call: Call, request: m.ListTransactionsRequest, pattern: str
) -> m.ListTransactionsResponse:
    names = [name for shard in broker.transactions.shards for name in shard.transactional_ids]
    matching: set[str] = set()
    try:
        for alphabet, batch in await broker.in_turns(_batches(names)):
            regex = await broker.loop.run_in_executor(broker.executor, Regex, pattern, alphabet)
            await broker.in_turns(_match(regex, batch, matching))
    except InvalidRegex:
        return m.ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    return await _list_in_turns(broker, call, request, matching.__contains__)


def _batches(names: list[str]) -> Slices[list[_Batch]]:
    """The ids, together as long as they have few different characters: nearly always all of them."""
    batches: list[_Batch] = []
    alphabet: frozenset[str] = frozenset()
    batch: list[str] = []
    work = 0
    for name in names:
        work += len(name) + 100
        if work >= _CHARACTERS_PER_SLICE:
            work = 0
            yield
        distinct = frozenset(name)
        if len(distinct) > DISTINCT_MAX:
            continue
        if len(alphabet | distinct) > _ALPHABET_MAX:
            batches.append((alphabet, batch))
            alphabet, batch = frozenset(), []
        alphabet |= distinct
        batch.append(name)
    return [*batches, (alphabet, batch)]


def _match(regex: Regex, names: list[str], matching: set[str]) -> Slices[None]:
    for name in _with_pauses(names):
        if name is None:
            yield
        elif (yield from regex.slices(name)):
            matching.add(name)


def _with_pauses(names: list[str]) -> Iterator[str | None]:
    """The names, and None wherever a slice has grown long enough."""
    work = 0
    for name in names:
        work += len(name) + 10
        if work >= _CHARACTERS_PER_SLICE // 20:
            work = 0
            yield None
        yield name
