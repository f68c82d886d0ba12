"""AddPartitionsToTxn (key 24), versions 0-5. One transaction from a client up to version 3, several from a broker.

From version 4 on a broker may also ask only whether partitions are in a transaction (`verify_only`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from moldau.transactions import TopicPartition, add_partitions_response, add_partitions_transactions
from moldau.transactions.replies import AddPartitionsResult, partitions_of, verified_partitions
from moldau.wire import ErrorCode, Struct
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasTransactions
    from moldau.broker.parts import HasImage
    from moldau.transactions.replies import AddPartitionsTransaction

    class Needs(HasTransactions, HasImage, Protocol):
        """What this file may touch."""


def handle(broker: Needs, call: Call, request: m.AddPartitionsToTxnRequest) -> m.AddPartitionsToTxnResponse | None:
    transactions = add_partitions_transactions(request, call.version)
    results: dict[int, AddPartitionsResult] = {}
    if not transactions:
        return m.AddPartitionsToTxnResponse()

    def finish(number: int, result: Struct) -> None:
        results[number] = cast("AddPartitionsResult", result)
        if len(results) == len(transactions):
            ordered = [results[each] for each in range(len(transactions))]
            call.respond(add_partitions_response(ordered, call.version))

    for number, transaction in enumerate(transactions):
        errors = _unknown_partitions(broker, transaction)
        if errors is not None:
            finish(number, verified_partitions(transaction, errors))
            continue
        error = broker.transactions.handle(
            transaction.transactional_id,
            transaction,
            call.version,
            lambda result, n=number: finish(n, result),  # type: ignore[misc]  # bound per transaction
        )
        if error:
            refused = dict.fromkeys(partitions_of(transaction), error)
            finish(number, verified_partitions(transaction, refused))
    return None


def _unknown_partitions(broker: Needs, transaction: AddPartitionsTransaction) -> dict[TopicPartition, ErrorCode] | None:
    """If any partition does not exist, none is added: the others are told that nothing was tried."""
    partitions = partitions_of(transaction)
    unknown = {each for each in partitions if broker.image.partition(each.topic, each.partition) is None}
    if not unknown:
        return None
    return {
        each: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if each in unknown else ErrorCode.OPERATION_NOT_ATTEMPTED
        for each in partitions
    }
