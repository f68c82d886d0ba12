"""AddPartitionsToTxn (key 24), versions 0-5. One transaction from a client up to version 3, several from a broker.

From version 4 on a broker may also ask only whether partitions are in a transaction (`verify_only`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.requests.access import TOPIC, TRANSACTIONAL_ID, may, may_on_cluster
from moldau.controller.acls import Operation
from moldau.controller.names import INTERNAL_TOPICS
from moldau.transactions import TopicPartition, add_partitions_response, add_partitions_transactions
from moldau.transactions.replies import AddPartitionsResult, partitions_of, verified_partitions
from moldau.wire import ErrorCode, Struct
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasTransactions
    from moldau.broker.parts import HasAuthorizer, HasImage
    from moldau.transactions.replies import AddPartitionsTransaction

    class Needs(HasAuthorizer, HasTransactions, HasImage, Protocol):
        """What this file may touch."""


_AMONG_BROKERS = 4  # versions from here on


def handle(broker: Needs, call: Call, request: m.AddPartitionsToTxnRequest) -> m.AddPartitionsToTxnResponse | None:
    transactions = add_partitions_transactions(request, call.version)
    results: dict[int, AddPartitionsResult] = {}
    if call.version >= _AMONG_BROKERS and not may_on_cluster(broker, call, Operation.CLUSTER_ACTION):
        return m.AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if not transactions:
        return m.AddPartitionsToTxnResponse()

    def finish(number: int, result: Struct) -> None:
        results[number] = cast("AddPartitionsResult", result)
        if len(results) == len(transactions):
            ordered = [results[each] for each in range(len(transactions))]
            call.respond(add_partitions_response(ordered, call.version))

    for number, transaction in enumerate(transactions):
        errors = _refused_partitions(broker, call, transaction)
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


def _refused_partitions(
    broker: Needs, call: Call, transaction: AddPartitionsTransaction
) -> dict[TopicPartition, ErrorCode] | None:
    """If any partition does not exist, or may not be written, none is added: the others are told that nothing was
    tried. Brokers ask for clients they have let write already."""
    partitions = partitions_of(transaction)
    may_write = None
    if broker.authorizer is not None and call.version < _AMONG_BROKERS:
        if not may(broker, call, Operation.WRITE, TRANSACTIONAL_ID)(transaction.transactional_id):
            return dict.fromkeys(partitions, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        may_write = may(broker, call, Operation.WRITE, TOPIC)
    refused: dict[TopicPartition, ErrorCode] = {}
    for each in partitions:
        if may_write is not None and (each.topic in INTERNAL_TOPICS or not may_write(each.topic)):
            refused[each] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif broker.image.partition(each.topic, each.partition) is None:
            refused[each] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not refused:
        return None
    return {each: refused.get(each, ErrorCode.OPERATION_NOT_ATTEMPTED) for each in partitions}
