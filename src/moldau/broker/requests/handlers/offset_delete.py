"""OffsetDelete (key 47), version 0. Forget committed offsets of topics the group does not read.

Partitions that do not exist are UNKNOWN_TOPIC_OR_PARTITION; the coordinator is asked about the rest. An error of the
whole group comes alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.requests.access import TOPIC, may
from moldau.broker.requests.changes import noted
from moldau.controller.acls import Operation
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups
    from moldau.broker.parts import HasAudit, HasAuthorizer, HasImage

    class Needs(HasAudit, HasAuthorizer, HasGroups, HasImage, Protocol):
        """What this file may touch."""


Topic = m.OffsetDeleteResponse.OffsetDeleteResponseTopic
Partition = m.OffsetDeleteResponse.OffsetDeleteResponsePartition


def handle(broker: Needs, call: Call, request: m.OffsetDeleteRequest) -> None:
    refused: dict[str, Topic] = {}
    asked = []
    may_read = may(broker, call, Operation.READ, TOPIC)
    for topic in request.topics:
        if not may_read(topic.name):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            refused[topic.name] = Topic(
                topic.name, [Partition(each.partition_index, code) for each in topic.partitions]
            )
            continue
        image = broker.image.topics.get(topic.name)
        known = () if image is None else image.partitions
        missing = [
            Partition(each.partition_index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            for each in topic.partitions
            if each.partition_index not in known
        ]
        if missing:
            refused[topic.name] = Topic(topic.name, missing)
        topic.partitions = [each for each in topic.partitions if each.partition_index in known]
        if topic.partitions:
            asked.append(topic)
    request.topics = asked

    def answer(message: Message) -> None:
        response = cast("m.OffsetDeleteResponse", message)
        if refused and response.error_code == ErrorCode.NONE:
            for topic in response.topics:
                refused.setdefault(topic.name, Topic(topic.name)).partitions += topic.partitions
            response.topics = list(refused.values())
        call.respond(noted(broker, call, request, response))

    broker.groups.handle(call, request.group_id, request, answer)
