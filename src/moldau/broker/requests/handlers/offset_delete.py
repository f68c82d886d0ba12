"""OffsetDelete (key 47), version 0. Forget committed offsets of topics the group does not read.

Partitions that do not exist are UNKNOWN_TOPIC_OR_PARTITION; the coordinator is asked about the rest. An error of the
whole group comes alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.requests.access import TOPIC, may
from moldau.broker.requests.changes import noted
from moldau.broker.requests.gather import answer_of
from moldau.broker.requests.pieces import Shape, cut, is_long, join
from moldau.controller.acls import Operation
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups
    from moldau.broker.parts import HasAudit, HasAuthorizer, HasImage, HasTurns

    class Needs(HasAudit, HasAuthorizer, HasGroups, HasImage, HasTurns, Protocol):
        """What this file may touch."""


Topic = m.OffsetDeleteResponse.OffsetDeleteResponseTopic
Partition = m.OffsetDeleteResponse.OffsetDeleteResponsePartition


Wanted = m.OffsetDeleteRequest.OffsetDeleteRequestTopic


def _partitions(topic: Wanted) -> list[m.OffsetDeleteRequest.OffsetDeleteRequestPartition]:
    return topic.partitions


_SHAPE = Shape[Wanted](_partitions, lambda topic, partitions: Wanted(topic.name, partitions))


def handle(broker: Needs, call: Call, request: m.OffsetDeleteRequest) -> Awaitable[Message] | None:
    may_read = may(broker, call, Operation.READ, TOPIC)
    if is_long(request.topics, _partitions):
        return _in_turns(broker, call, request, may_read)  # and whoever called notes it

    def answer(response: m.OffsetDeleteResponse) -> None:
        call.respond(noted(broker, call, request, response))

    _ask(broker, call, request, may_read, answer)
    return None


async def _in_turns(
    broker: Needs, call: Call, request: m.OffsetDeleteRequest, may_read: Callable[[str], bool]
) -> m.OffsetDeleteResponse:
    """Piece by piece: each offset stands for itself. The first error of the group ends it."""
    whole = m.OffsetDeleteResponse()
    for topics in cut(request.topics, _SHAPE):
        await broker.turns.next_turn()
        piece = m.OffsetDeleteRequest(request.group_id, topics)
        response: m.OffsetDeleteResponse = await answer_of(partial(_ask, broker, call, piece, may_read))
        if response.error_code:
            return response
        join(whole.topics, response.topics)
    return whole


def _ask(
    broker: Needs,
    call: Call,
    request: m.OffsetDeleteRequest,
    may_read: Callable[[str], bool],
    then: Callable[[m.OffsetDeleteResponse], None],
) -> None:
    refused: dict[str, Topic] = {}
    asked = []
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
        then(response)

    broker.groups.handle(call, request.group_id, request, answer)
