"""The records of `__transaction_state`, byte for byte as Kafka 4.3 writes and reads them.

Key type 0 is the transactional id; the value has version 0 or 1, depending on transaction.version; no value is a
tombstone. Invariant: what `decode` makes of an encoded value equals it, except for the last epoch, which the log
does not keep.
"""

from __future__ import annotations

from typing import NamedTuple

from moldau.transactions.metadata import TopicPartition, TransactionMetadata, TransactionState, log_value_version
from moldau.wire import internal
from moldau.wire import messages as m
from moldau.wire.codec import decode as decode_message
from moldau.wire.primitives import MalformedFrame


class Record(NamedTuple):
    """One record of `__transaction_state`; a value of None is a tombstone."""

    key: bytes
    value: bytes | None


class Loaded(NamedTuple):
    """What a record says: the metadata of an id, or None when the id is gone."""

    transactional_id: str
    metadata: TransactionMetadata | None


def encode(metadata: TransactionMetadata, transaction_version: int) -> Record:
    """The record for a transition, in the value version of a cluster at this transaction.version."""
    partitions = None
    if metadata.state is not TransactionState.EMPTY:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(metadata.partitions):
            by_topic.setdefault(topic, []).append(partition)
        partitions = [
            m.TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in by_topic.items()
        ]
    else:
        assert not metadata.partitions, f"{metadata.transactional_id} is empty, but has partitions"
    value = m.TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=int(metadata.state),
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        client_transaction_version=metadata.client_transaction_version,
    )
    return Record(
        encode_key(metadata.transactional_id), internal.encode_value(value, log_value_version(transaction_version))
    )


def encode_key(transactional_id: str) -> bytes:
    return internal.encode_key(m.TransactionLogKey(transactional_id=transactional_id))


def tombstone(transactional_id: str) -> Record:
    return Record(encode_key(transactional_id), None)


def decode(key: bytes | memoryview, value: bytes | memoryview | None) -> Loaded | None:
    """What the record says, or None for a type or version of a future release, which is skipped as Kafka skips it.

    Raises MalformedFrame for bytes that no release writes."""
    if internal.prefix_of(key) != m.TransactionLogKey.number:
        return None
    transactional_id = decode_message(m.TransactionLogKey, 0, key[2:]).transactional_id
    if value is None:
        return Loaded(transactional_id, None)
    if not 0 <= internal.prefix_of(value) <= m.TransactionLogValue.last_version:
        return None
    fields = internal.decode_value(m.TransactionLogValue, value)
    try:
        state = TransactionState(fields.transaction_status)
    except ValueError:
        raise MalformedFrame(
            f"transactional id {transactional_id}: state {fields.transaction_status} is not known"
        ) from None
    partitions: frozenset[TopicPartition] = frozenset()
    if state is not TransactionState.EMPTY:
        partitions = frozenset(
            TopicPartition(entry.topic, partition)
            for entry in fields.transaction_partitions or ()
            for partition in entry.partition_ids
        )
    return Loaded(
        transactional_id,
        TransactionMetadata(
            transactional_id=transactional_id,
            producer_id=fields.producer_id,
            producer_epoch=fields.producer_epoch,
            timeout_ms=fields.transaction_timeout_ms,
            state=state,
            partitions=partitions,
            start_ms=fields.transaction_start_timestamp_ms,
            last_update_ms=fields.transaction_last_update_timestamp_ms,
            previous_producer_id=fields.previous_producer_id,
            next_producer_id=fields.next_producer_id,
            client_transaction_version=fields.client_transaction_version,
        ),
    )
