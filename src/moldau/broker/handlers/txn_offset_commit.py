"""TxnOffsetCommit (key 28), versions 0-5. Offsets that count only if the transaction commits.

The transaction coordinator is asked first whether the offsets partition is in the transaction; from version 5 on it is
added on the way (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from moldau.broker.group_coordinator import TOPIC as OFFSETS_TOPIC
from moldau.broker.txn_verification import ask_coordinator
from moldau.groups import refusal
from moldau.transactions.verification import txn_offset_commit_error, txn_offset_commit_operation
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.calls import Call

Topic = m.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic


def handle(broker: Broker, call: Call, request: m.TxnOffsetCommitRequest) -> None:
    unknown = [topic for topic in request.topics if topic.name not in broker.image.topics]
    request.topics = [topic for topic in request.topics if topic.name in broker.image.topics]
    refused = [
        Topic(
            topic.name,
            [
                m.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                    each.partition_index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
                for each in topic.partitions
            ],
        )
        for topic in unknown
    ]

    def answer(response: Message) -> None:
        told = cast("m.TxnOffsetCommitResponse", response)
        told.topics += refused
        call.respond(told)

    def on_verified(error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            broker.groups.handle(call, request.group_id, request, answer, guard=guard)
        else:
            answer(refusal(request, txn_offset_commit_error(error)))

    if not request.topics:
        answer(m.TxnOffsetCommitResponse())
        return
    index = broker.groups.partition_for(request.group_id)
    # Before asking: a marker that comes between the coordinator's yes and the append makes it worthless.
    partition = broker.replicas.get(OFFSETS_TOPIC, index)
    if partition is None or not partition.is_leader:
        answer(refusal(request, ErrorCode.NOT_COORDINATOR))
        return
    guard = partition.log.start_verification(request.producer_id, -1, request.producer_epoch)
    ask_coordinator(
        broker,
        request.transactional_id,
        (request.producer_id, request.producer_epoch),
        (OFFSETS_TOPIC, index),
        operation=txn_offset_commit_operation(call.version),
        answer=on_verified,
    )
