"""Transactions: the coordinator as a pure state machine, producer ids, and the verification that a write belongs to
one.

`TransactionShard` is the place to start; `decisions` holds Kafka's answers as tables, `metadata` the states and
transitions.
"""

from moldau.transactions.config import TransactionConfig
from moldau.transactions.effects import Abandoned, Append, Effects, Now, RequestContext, Response, TxnMarker
from moldau.transactions.metadata import TopicPartition, TransactionMetadata, TransactionState
from moldau.transactions.producer_ids import ProducerIdAllocator, init_idempotent
from moldau.transactions.queries import merge_lists
from moldau.transactions.records import Record
from moldau.transactions.replies import add_partitions_response, add_partitions_transactions
from moldau.transactions.shard import TransactionRequest, TransactionShard

__all__ = [
    "Abandoned",
    "Append",
    "Effects",
    "Now",
    "ProducerIdAllocator",
    "Record",
    "RequestContext",
    "Response",
    "TopicPartition",
    "TransactionConfig",
    "TransactionMetadata",
    "TransactionRequest",
    "TransactionShard",
    "TransactionState",
    "TxnMarker",
    "add_partitions_response",
    "add_partitions_transactions",
    "init_idempotent",
    "merge_lists",
]
