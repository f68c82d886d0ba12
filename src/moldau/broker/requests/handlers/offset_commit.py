"""OffsetCommit (key 8), versions 2-10. Topics by name up to version 9, by id from 10 on.

Topics that do not exist are refused one by one; the rest goes to the group's coordinator. A commit of very many
partitions is prepared in pieces (`requests/long_commits.py`), and decided about as a whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.requests.access import TOPIC, may
from moldau.broker.requests.handlers.common import add_refused
from moldau.broker.requests.long_commits import commit_in_turns
from moldau.broker.requests.pieces import Shape, is_long
from moldau.controller.acls import Operation
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups
    from moldau.broker.parts import HasAuthorizer, HasImage, HasTurns

    class Needs(HasAuthorizer, HasGroups, HasImage, HasTurns, Protocol):
        """What this file may touch."""


_TOPIC_IDS = 10
Topic = m.OffsetCommitRequest.OffsetCommitRequestTopic
Result = m.OffsetCommitResponse.OffsetCommitResponseTopic


def _partitions(topic: Topic) -> list[m.OffsetCommitRequest.OffsetCommitRequestPartition]:
    return topic.partitions


_SHAPE = Shape[Topic](_partitions, lambda topic, partitions: Topic(topic.name, topic.topic_id, partitions))


def handle(broker: Needs, call: Call, request: m.OffsetCommitRequest) -> Awaitable[Message] | None:
    may_read = may(broker, call, Operation.READ, TOPIC)
    if is_long(request.topics, _partitions):
        split = partial(_split, broker, call, may_read=may_read)
        return commit_in_turns(
            broker,
            request,
            _SHAPE,
            split,
            lambda commit, answer: broker.groups.handle(call, request.group_id, request, answer, commit=commit),
        )
    known, refused = _split(broker, call, request.topics, may_read)
    request.topics = known
    if not known and refused:
        call.respond(m.OffsetCommitResponse(topics=refused))
        return None

    def answer(response: Message) -> None:
        told = cast("m.OffsetCommitResponse", response)
        add_refused(told.topics, refused)
        call.respond(told)

    broker.groups.handle(call, request.group_id, request, answer)
    return None


def _split(
    broker: Needs, call: Call, topics: list[Topic], may_read: Callable[[str], bool]
) -> tuple[list[Topic], list[Result]]:
    """What can be committed, and refusals for what the client may not read, or does not exist."""
    known: list[Topic] = []
    refused: list[Result] = []
    for topic in topics:
        code = _resolve(broker, call, topic, may_read)
        if code is not None:
            refused.append(_refusal(topic, [each.partition_index for each in topic.partitions], code))
            continue
        count = len(broker.image.topics[topic.name].partitions)
        missing = [each.partition_index for each in topic.partitions if not 0 <= each.partition_index < count]
        if missing:
            refused.append(_refusal(topic, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            topic.partitions = [each for each in topic.partitions if 0 <= each.partition_index < count]
        if topic.partitions:
            known.append(topic)
    return known, refused


def _resolve(broker: Needs, call: Call, topic: Topic, may_read: Callable[[str], bool]) -> ErrorCode | None:
    """Give the topic its name, or say why it has none."""
    if call.version < _TOPIC_IDS:
        if not may_read(topic.name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return None if topic.name in broker.image.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    name = broker.image.topic_names.get(topic.topic_id)
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    topic.name = name
    return None if may_read(name) else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _refusal(topic: Topic, indexes: list[int], code: ErrorCode) -> Result:
    partitions = [m.OffsetCommitResponse.OffsetCommitResponsePartition(index, code) for index in indexes]
    return Result(topic.name, topic.topic_id, partitions)
