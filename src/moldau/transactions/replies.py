"""The responses of the coordinator, with the error codes that the version of the request knows.

Old clients know no PRODUCER_FENCED: they get INVALID_PRODUCER_EPOCH, which meant the same before KIP-588.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moldau.transactions.metadata import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TopicPartition,
    TransactionMetadata,
    supports_epoch_bump,
)
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Struct

AddPartitionsTransaction = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
AddPartitionsResult = m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult

_FENCED_SINCE_INIT_PRODUCER_ID = 4
_FENCED_SINCE = 2  # AddPartitionsToTxn, AddOffsetsToTxn and EndTxn
_BATCHES_SINCE = 4
_EPOCH_BUMP_SINCE = 5


def init_producer_id(
    api_version: int, error: ErrorCode, metadata: TransactionMetadata | None
) -> m.InitProducerIdResponse:
    if error is not ErrorCode.NONE or metadata is None:
        return m.InitProducerIdResponse(
            error_code=_known(error, api_version, _FENCED_SINCE_INIT_PRODUCER_ID),
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
        )
    return m.InitProducerIdResponse(producer_id=metadata.producer_id, producer_epoch=metadata.producer_epoch)


def end_txn(api_version: int, error: ErrorCode, metadata: TransactionMetadata | None) -> m.EndTxnResponse:
    """`metadata`: the producer id and epoch to go on with; older clients keep theirs."""
    response = m.EndTxnResponse(error_code=_known(error, api_version, _FENCED_SINCE))
    if error is ErrorCode.NONE and metadata is not None and supports_epoch_bump(end_txn_version(api_version)):
        response.producer_id = metadata.producer_id
        response.producer_epoch = metadata.producer_epoch
    return response


def add_offsets(
    api_version: int, error: ErrorCode, _metadata: TransactionMetadata | None = None
) -> m.AddOffsetsToTxnResponse:
    return m.AddOffsetsToTxnResponse(error_code=_known(error, api_version, _FENCED_SINCE))


def add_partitions(
    api_version: int,
    request: AddPartitionsTransaction,
    error: ErrorCode,
    _metadata: TransactionMetadata | None = None,
) -> AddPartitionsResult:
    error = _known(error, api_version, _FENCED_SINCE)
    return verified_partitions(request, dict.fromkeys(partitions_of(request), error))


def refusal(
    request: m.InitProducerIdRequest | AddPartitionsTransaction | m.AddOffsetsToTxnRequest | m.EndTxnRequest,
    api_version: int,
    error: ErrorCode,
) -> Struct:
    """The response to `request` that says `error`."""
    match request:
        case m.InitProducerIdRequest():
            return init_producer_id(api_version, error, None)
        case m.EndTxnRequest():
            return end_txn(api_version, error, None)
        case m.AddOffsetsToTxnRequest():
            return add_offsets(api_version, error, None)
        case _:
            return add_partitions(api_version, request, error)


def verified_partitions(
    request: AddPartitionsTransaction, errors: Mapping[TopicPartition, ErrorCode]
) -> AddPartitionsResult:
    response = m.AddPartitionsToTxnResponse
    return AddPartitionsResult(
        transactional_id=request.transactional_id,
        topic_results=[
            response.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    response.AddPartitionsToTxnPartitionResult(
                        partition_index=partition,
                        partition_error_code=errors[TopicPartition(topic.name, partition)],
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def partitions_of(request: AddPartitionsTransaction) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic.name, partition) for topic in request.topics for partition in topic.partitions
    )


def add_partitions_transactions(
    request: m.AddPartitionsToTxnRequest, api_version: int
) -> list[AddPartitionsTransaction]:
    """The transactions of a request: one from a client (up to v3), any number from a broker. Each goes to its own
    shard."""
    if api_version >= _BATCHES_SINCE:
        return request.transactions
    return [
        AddPartitionsTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
    ]


def add_partitions_response(results: Iterable[AddPartitionsResult], api_version: int) -> m.AddPartitionsToTxnResponse:
    """The response made of the results of all shards."""
    results = list(results)
    if api_version >= _BATCHES_SINCE:
        return m.AddPartitionsToTxnResponse(results_by_transaction=results)
    return m.AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[topic for result in results for topic in result.topic_results]
    )


def add_partitions_version(api_version: int) -> int:
    """transaction.version of the client, as AddPartitionsToTxn shows it: only brokers send v4, on behalf of new
    clients."""
    return 2 if api_version >= _BATCHES_SINCE else 0


def end_txn_version(api_version: int) -> int:
    return 2 if api_version >= _EPOCH_BUMP_SINCE else 0


def error_code(number: int) -> ErrorCode:
    """The error code with this number; one that a later release of a peer made up is an unknown error."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _known(error: ErrorCode, api_version: int, fenced_since: int) -> ErrorCode:
    if error is ErrorCode.PRODUCER_FENCED and api_version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
