"""DescribeTransactions and ListTransactions over the state of a shard."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from moldau.transactions.metadata import STATE_BY_LABEL, TopicPartition, TransactionMetadata, TransactionState
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode

Described = m.DescribeTransactionsResponse.TransactionState
Listed = m.ListTransactionsResponse.TransactionState


def describe_error(transactional_id: str, error: ErrorCode) -> Described:
    return Described(error_code=error, transactional_id=transactional_id)


def describe(metadata: TransactionMetadata, partitions: Collection[TopicPartition]) -> Described:
    """`partitions`: those that still wait for their marker, when the transaction is being ended."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return Described(
        transactional_id=metadata.transactional_id,
        transaction_state=metadata.state.label,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_start_time_ms=metadata.start_ms,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        topics=[
            m.DescribeTransactionsResponse.TopicData(topic=topic, partitions=ids) for topic, ids in by_topic.items()
        ],
    )


def list_transactions(
    transactions: Iterable[TransactionMetadata],
    request: m.ListTransactionsRequest,
    wall_ms: int,
    matches: Callable[[str], bool] | None,
) -> m.ListTransactionsResponse:
    """Those that pass every filter of the request. An empty filter lets all pass.

    `matches` is the request's pattern, compiled: the caller knows how.
    """
    states = {STATE_BY_LABEL[label] for label in request.state_filters if label in STATE_BY_LABEL}
    producer_ids = frozenset(request.producer_id_filters)
    listed = [
        Listed(
            transactional_id=metadata.transactional_id,
            producer_id=metadata.producer_id,
            transaction_state=metadata.state.label,
        )
        for metadata in transactions
        if (not producer_ids or metadata.producer_id in producer_ids)
        and (not request.state_filters or metadata.state in states)
        # An id without a transaction has no start (-1), and so passes any duration: Kafka's answer too.
        and (request.duration_filter < 0 or wall_ms - metadata.start_ms > request.duration_filter)
        and (matches is None or matches(metadata.transactional_id))
        and metadata.state is not TransactionState.DEAD
    ]
    return m.ListTransactionsResponse(
        unknown_state_filters=_unknown_states(request),
        transaction_states=listed,
    )


def _unknown_states(request: m.ListTransactionsRequest) -> list[str]:
    return [label for label in request.state_filters if label not in STATE_BY_LABEL]


def merge_lists(
    request: m.ListTransactionsRequest, responses: Iterable[m.ListTransactionsResponse]
) -> m.ListTransactionsResponse:
    """One response out of those of all shards of a broker, which may have none. A shard that cannot answer fails the
    whole, as in Kafka."""
    merged = m.ListTransactionsResponse(unknown_state_filters=_unknown_states(request))
    for response in responses:
        if response.error_code:
            return m.ListTransactionsResponse(error_code=response.error_code)
        merged.transaction_states.extend(response.transaction_states)
    return merged
