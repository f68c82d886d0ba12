"""OffsetCommit (key 8), versions 2-10. Topics by name up to version 9, by id from 10 on.

Topics that do not exist are refused one by one; the rest goes to the group's coordinator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.requests.access import TOPIC, may
from moldau.broker.requests.handlers.common import add_refused
from moldau.controller.acls import Operation
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups
    from moldau.broker.parts import HasAuthorizer, HasImage

    class Needs(HasAuthorizer, HasGroups, HasImage, Protocol):
        """What this file may touch."""


_TOPIC_IDS = 10
Topic = m.OffsetCommitRequest.OffsetCommitRequestTopic
Result = m.OffsetCommitResponse.OffsetCommitResponseTopic


def handle(broker: Needs, call: Call, request: m.OffsetCommitRequest) -> None:
    known: list[Topic] = []
    refused: list[Result] = []
    may_read = may(broker, call, Operation.READ, TOPIC)
    for topic in request.topics:
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
    request.topics = known
    if not known and refused:
        call.respond(m.OffsetCommitResponse(topics=refused))
        return

    def answer(response: Message) -> None:
        told = cast("m.OffsetCommitResponse", response)
        add_refused(told.topics, refused)
        call.respond(told)

    broker.groups.handle(call, request.group_id, request, answer)


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
