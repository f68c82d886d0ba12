"""AddPartitionsToTxn (key 24), versions 0-5. One transaction from a client up to version 3, several from a broker.

From version 4 on a broker may also ask only whether partitions are in a transaction (`verify_only`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.requests.access import TOPIC, TRANSACTIONAL_ID, may, may_on_cluster
from moldau.broker.requests.gather import answer_of, gather, gather_in_turns
from moldau.broker.requests.pieces import is_long
from moldau.controller.acls import Operation
from moldau.controller.names import INTERNAL_TOPICS
from moldau.timers.turns import Slices
from moldau.transactions import TopicPartition, add_partitions_response, add_partitions_transactions
from moldau.transactions.replies import AddPartitionsResult, partitions_of, verified_partitions
from moldau.wire import ErrorCode, Struct
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasTransactions
    from moldau.broker.parts import HasAuthorizer, HasImage, HasTurns
    from moldau.transactions.replies import AddPartitionsTransaction

    class Needs(HasAuthorizer, HasTransactions, HasImage, HasTurns, Protocol):
        """What this file may touch."""


_AMONG_BROKERS = 4  # versions from here on
MayWrite = Callable[[str], bool] | ErrorCode | None
"""Which topics the client may write to: all (None), some, or none, and why."""


_PER_TURN = 20  # transactions
_LOOKED_AT = 200  # partitions
Topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic


def handle(
    broker: Needs, call: Call, request: m.AddPartitionsToTxnRequest
) -> m.AddPartitionsToTxnResponse | Awaitable[m.AddPartitionsToTxnResponse] | None:
    transactions = add_partitions_transactions(request, call.version)
    if call.version >= _AMONG_BROKERS and not may_on_cluster(broker, call, Operation.CLUSTER_ACTION):
        return m.AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if not transactions:
        return m.AddPartitionsToTxnResponse()

    def whole(results: list[AddPartitionsResult]) -> m.AddPartitionsToTxnResponse:
        return add_partitions_response(results, call.version)

    if len(transactions) == 1 and not is_long(transactions[0].topics, _indexes):  # what clients ask
        _add(broker, call, transactions[0], lambda result: call.respond(whole([result])))
        return None
    add = partial(_add, broker, call)
    if len(transactions) <= _PER_TURN and not any(is_long(each.topics, _indexes) for each in transactions):
        gather(call, transactions, add, whole)
        return None
    return _in_turns(broker, call, transactions, whole)


def _indexes(topic: Topic) -> list[int]:
    return topic.partitions


def _add(
    broker: Needs,
    call: Call,
    transaction: AddPartitionsTransaction,
    answered: Callable[[AddPartitionsResult], None],
) -> None:
    errors = _refused_partitions(broker, call, transaction)
    if errors is not None:
        answered(verified_partitions(transaction, errors))
        return
    error = broker.transactions.handle(
        transaction.transactional_id, transaction, call.version, cast("Callable[[Struct], None]", answered)
    )
    if error:
        answered(verified_partitions(transaction, dict.fromkeys(partitions_of(transaction), error)))


async def _in_turns(
    broker: Needs,
    call: Call,
    transactions: list[AddPartitionsTransaction],
    whole: Callable[[list[AddPartitionsResult]], m.AddPartitionsToTxnResponse],
) -> m.AddPartitionsToTxnResponse:
    """Very many transactions, or one of very many partitions. Of the latter, those that are named twice are asked about
    once, so that the coordinator hears of no more than there are."""
    if not await broker.in_turns(_has_long(transactions)):
        return await gather_in_turns(broker, transactions, partial(_add, broker, call), whole, lambda _: 2)
    results: list[AddPartitionsResult] = []
    for number, transaction in enumerate(transactions, 1):
        if number % _PER_TURN == 0:
            await broker.turns.next_turn()
        if not is_long(transaction.topics, _indexes):
            results.append(await answer_of(partial(_add, broker, call, transaction)))
            continue
        may_write = _may_write(broker, call, transaction)
        codes = await broker.in_turns(_codes(broker, transaction, may_write))
        if codes is None:
            named = await broker.in_turns(_named_once(transaction))
            told = await answer_of(partial(_add, broker, call, named))
            codes = await broker.in_turns(_codes_told(transaction, told))
        results.append(await broker.in_turns(_result(transaction, codes)))
    return whole(results)


def _has_long(transactions: list[AddPartitionsTransaction]) -> Slices[bool]:
    for number, each in enumerate(transactions, 1):
        if is_long(each.topics, _indexes):
            return True
        if number % _LOOKED_AT == 0:
            yield
    return False


def _codes(broker: Needs, transaction: AddPartitionsTransaction, may_write: MayWrite) -> Slices[list[ErrorCode] | None]:
    """What to say of each partition, in order; None if the coordinator has to be asked."""
    codes: list[ErrorCode] = []
    is_refused = False
    for each in _in_order(transaction):
        code = _refusal(broker, each, may_write)
        is_refused = is_refused or code is not None
        codes.append(ErrorCode.OPERATION_NOT_ATTEMPTED if code is None else code)
        if len(codes) % _LOOKED_AT == 0:
            yield
    return codes if is_refused else None


def _named_once(transaction: AddPartitionsTransaction) -> Slices[AddPartitionsTransaction]:
    found: dict[str, dict[int, None]] = {}
    for number, each in enumerate(_in_order(transaction), 1):
        found.setdefault(each.topic, {})[each.partition] = None
        if number % _LOOKED_AT == 0:
            yield
    return type(transaction)(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        verify_only=transaction.verify_only,
        topics=[Topic(name, list(indexes)) for name, indexes in found.items()],
    )


def _codes_told(transaction: AddPartitionsTransaction, told: AddPartitionsResult) -> Slices[list[ErrorCode]]:
    by_place = {
        TopicPartition(topic.name, each.partition_index): ErrorCode(each.partition_error_code)
        for topic in told.topic_results
        for each in topic.results_by_partition
    }
    codes: list[ErrorCode] = []
    for each in _in_order(transaction):
        codes.append(by_place[each])
        if len(codes) % _LOOKED_AT == 0:
            yield
    return codes


def _result(transaction: AddPartitionsTransaction, codes: list[ErrorCode]) -> Slices[AddPartitionsResult]:
    kind = m.AddPartitionsToTxnResponse
    result = AddPartitionsResult(transaction.transactional_id, [])
    number = 0
    for topic in transaction.topics:
        told = kind.AddPartitionsToTxnTopicResult(topic.name, [])
        result.topic_results.append(told)
        for index in topic.partitions:
            told.results_by_partition.append(kind.AddPartitionsToTxnPartitionResult(index, codes[number]))
            number += 1
            if number % _LOOKED_AT == 0:
                yield
    return result


def _in_order(transaction: AddPartitionsTransaction) -> Iterator[TopicPartition]:
    return (TopicPartition(topic.name, index) for topic in transaction.topics for index in topic.partitions)


def _may_write(broker: Needs, call: Call, transaction: AddPartitionsTransaction) -> MayWrite:
    """Brokers ask for clients they have let write already."""
    if broker.authorizer is None or call.version >= _AMONG_BROKERS:
        return None
    if not may(broker, call, Operation.WRITE, TRANSACTIONAL_ID)(transaction.transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return may(broker, call, Operation.WRITE, TOPIC)


def _refusal(broker: Needs, each: TopicPartition, may_write: MayWrite) -> ErrorCode | None:
    if isinstance(may_write, ErrorCode):
        return may_write
    if may_write is not None and (each.topic in INTERNAL_TOPICS or not may_write(each.topic)):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if broker.image.partition(each.topic, each.partition) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return None


def _refused_partitions(
    broker: Needs, call: Call, transaction: AddPartitionsTransaction
) -> dict[TopicPartition, ErrorCode] | None:
    """If any partition does not exist, or may not be written, none is added: the others are told that nothing was
    tried."""
    partitions = partitions_of(transaction)
    may_write = _may_write(broker, call, transaction)
    if may_write is None:
        there, unknown = broker.image.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        refused = {each: unknown for each in partitions if there(each.topic, each.partition) is None}
    else:
        refused = {each: code for each in partitions if (code := _refusal(broker, each, may_write)) is not None}
    if not refused:
        return None
    return {each: refused.get(each, ErrorCode.OPERATION_NOT_ATTEMPTED) for each in partitions}
