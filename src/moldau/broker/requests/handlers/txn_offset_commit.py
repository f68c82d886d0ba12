"""TxnOffsetCommit (key 28), versions 0-5. Offsets that count only if the transaction commits.

The transaction coordinator is asked first whether the offsets partition is in the transaction; from version 5 on it is
added on the way (KIP-890). Partitions that do not exist are refused one by one. A commit of very many partitions is
prepared in pieces (`requests/long_commits.py`), and decided about as a whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.coordinators.groups import TOPIC as OFFSETS_TOPIC
from moldau.broker.coordinators.txn_verification import Verified, Writer, verify
from moldau.broker.requests.access import TOPIC, may
from moldau.broker.requests.handlers.common import add_refused
from moldau.broker.requests.long_commits import commit_in_turns
from moldau.broker.requests.pieces import Shape, is_long
from moldau.controller.acls import Operation
from moldau.groups import refusal
from moldau.records import BatchOptions
from moldau.transactions import TopicPartition
from moldau.transactions.verification import txn_offset_commit_error, txn_offset_commit_operation
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.groups import LongCommit
    from moldau.broker.coordinators.parts import HasGroups
    from moldau.broker.coordinators.txn_verification import Needs as TxnVerificationNeeds
    from moldau.broker.parts import HasAuthorizer, HasImage
    from moldau.broker.replicas.parts import HasReplicas

    class Needs(HasAuthorizer, TxnVerificationNeeds, HasGroups, HasImage, HasReplicas, Protocol):
        """What this file may touch."""


Topic = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
Result = m.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_NO_SEQUENCE = -1
_NOT_ASKED = Verified(None, ErrorCode.NONE)


def _partitions(topic: Topic) -> list[m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]:
    return topic.partitions


_SHAPE = Shape[Topic](_partitions, lambda topic, partitions: Topic(topic.name, partitions))


def handle(broker: Needs, call: Call, request: m.TxnOffsetCommitRequest) -> Awaitable[Message] | None:
    may_read = may(broker, call, Operation.READ, TOPIC)
    if is_long(request.topics, _partitions):
        options = BatchOptions(
            producer_id=request.producer_id, producer_epoch=request.producer_epoch, transactional=True
        )
        split = partial(_split, broker, may_read=may_read)
        return commit_in_turns(broker, request, _SHAPE, split, partial(_verify, broker, call, request), options)
    request.topics, refused = _split(broker, request.topics, may_read)

    def answer(response: Message) -> None:
        told = cast("m.TxnOffsetCommitResponse", response)
        add_refused(told.topics, refused)
        call.respond(told)

    if request.topics:
        _verify(broker, call, request, None, answer)
    else:
        answer(m.TxnOffsetCommitResponse())
    return None


def _verify(
    broker: Needs,
    call: Call,
    request: m.TxnOffsetCommitRequest,
    commit: LongCommit | None,
    answer: Callable[[Message], None],
) -> None:
    """Ask the transaction's coordinator, and then the group's."""
    place = TopicPartition(OFFSETS_TOPIC, broker.groups.partition_for(request.group_id))
    partition = broker.replicas.get(*place)
    if partition is None or not partition.is_leader:
        answer(refusal(request, ErrorCode.NOT_COORDINATOR))
        return

    def on_verified(found: Mapping[TopicPartition, Verified]) -> None:
        guard, error = found.get(place, _NOT_ASKED)
        if error is ErrorCode.NONE:
            broker.groups.handle(call, request.group_id, request, answer, guard=guard, commit=commit)
        else:
            answer(refusal(request, txn_offset_commit_error(error)))

    operation = txn_offset_commit_operation(call.version)
    writer = Writer(request.transactional_id, request.producer_id, request.producer_epoch, operation)
    verify(broker, writer, {place: _NO_SEQUENCE}, on_verified)


def _split(broker: Needs, topics: list[Topic], may_read: Callable[[str], bool]) -> tuple[list[Topic], list[Result]]:
    """What can be committed, and refusals for what the client may not read, or does not exist."""
    partition = m.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition
    known: list[Topic] = []
    refused: list[Result] = []
    for topic in topics:
        if not may_read(topic.name):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            refused.append(Result(topic.name, [partition(each.partition_index, code) for each in topic.partitions]))
            continue
        image = broker.image.topics.get(topic.name)
        count = 0 if image is None else len(image.partitions)
        there = [each for each in topic.partitions if 0 <= each.partition_index < count]
        missing = [each.partition_index for each in topic.partitions if not 0 <= each.partition_index < count]
        if there:
            known.append(Topic(topic.name, there))
        if missing:
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            refused.append(Result(topic.name, [partition(index, unknown) for index in missing]))
    return known, refused
