"""OffsetFetch (key 9), versions 1-10. One group up to version 7, several from 8 on; topics by id from 10 on.

Each group is answered by its own coordinator; the answers are put together in the order of the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.requests.access import GROUP, TOPIC, may
from moldau.controller.acls import Operation
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups
    from moldau.broker.parts import HasAuthorizer, HasImage, HasTurns

    class Needs(HasAuthorizer, HasGroups, HasImage, HasTurns, Protocol):
        """What this file may touch."""


_PER_SLICE = 50  # groups; then others get a turn
_MANY_GROUPS = 8
_TOPIC_IDS = 10
_GROUP_ERRORS = 2
Wanted = m.OffsetFetchRequest.OffsetFetchRequestGroup
Found = m.OffsetFetchResponse.OffsetFetchResponseGroup


def handle(broker: Needs, call: Call, request: m.OffsetFetchRequest) -> Awaitable[m.OffsetFetchResponse] | None:
    wanted = request.groups if call.version >= _MANY_GROUPS else [_one_group(call, request)]
    question = _Question(broker, call, wanted, require_stable=request.require_stable)
    if len(wanted) > _PER_SLICE:
        return question.in_turns()
    question.tell = call.respond
    if not wanted:
        call.respond(m.OffsetFetchResponse())
    for number in range(len(wanted)):
        question.ask(number)
    return None


class _Question:
    """Each group is asked for at its coordinator; when the last has answered, all is told."""

    def __init__(self, broker: Needs, call: Call, wanted: list[Wanted], *, require_stable: bool) -> None:
        self._broker = broker
        self._call = call
        self._wanted = wanted
        self._require_stable = require_stable
        self._found: dict[int, Found] = {}
        self._may_describe = may(broker, call, Operation.DESCRIBE, GROUP)
        self._may_describe_topic = may(broker, call, Operation.DESCRIBE, TOPIC)
        self.tell: Callable[[m.OffsetFetchResponse], None] | None = None

    async def in_turns(self) -> m.OffsetFetchResponse:
        whole: asyncio.Future[m.OffsetFetchResponse] = asyncio.get_running_loop().create_future()
        self.tell = lambda response: None if whole.done() else whole.set_result(response)
        for number in range(len(self._wanted)):
            if number % _PER_SLICE == _PER_SLICE - 1:
                await self._broker.turns.next_turn()
            self.ask(number)
        return await whole

    def ask(self, number: int) -> None:
        group, call = self._wanted[number], self._call
        if not self._may_describe(group.group_id):
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            self._answered(number, m.OffsetFetchResponse(groups=[Found(group.group_id, error_code=code)]), [])
            return
        unknown = _resolve_ids(self._broker, group) if call.version >= _TOPIC_IDS else []
        unknown += _take_out_refused(group, self._may_describe_topic)
        part = m.OffsetFetchRequest(groups=[group], require_stable=self._require_stable)
        self._broker.groups.handle(call, group.group_id, part, lambda message: self._answered(number, message, unknown))

    def _answered(
        self, number: int, response: Message, unknown: list[m.OffsetFetchResponse.OffsetFetchResponseTopics]
    ) -> None:
        group = cast("m.OffsetFetchResponse", response).groups[0]
        if not group.error_code:
            if self._wanted[number].topics is None:  # all there are, as far as the client may see them
                group.topics = [topic for topic in group.topics if self._may_describe_topic(topic.name)]
            group.topics += unknown
        elif self._call.version < _GROUP_ERRORS:
            group = _error_everywhere(self._wanted[number], group.error_code)
        self._found[number] = group
        if len(self._found) == len(self._wanted) and self.tell is not None:
            groups = [self._found[each] for each in range(len(self._wanted))]
            self.tell(_response(self._broker, self._call, groups))


def _one_group(call: Call, request: m.OffsetFetchRequest) -> Wanted:
    topics = None
    if request.topics is not None:
        topics = [
            m.OffsetFetchRequest.OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return Wanted(request.group_id, topics=topics)


def _error_everywhere(group: Wanted, code: int) -> Found:
    """Version 1 has no place for an error of the group: each partition tells it, or it would read as "no offset"."""
    return Found(group.group_id, [_error_in(topic, code) for topic in group.topics or ()])


def _take_out_refused(
    group: Wanted, may_describe: Callable[[str], bool]
) -> list[m.OffsetFetchResponse.OffsetFetchResponseTopics]:
    """Topics that the client may not see are answered here."""
    if group.topics is None:
        return []
    allowed: list[m.OffsetFetchRequest.OffsetFetchRequestTopics] = []
    refused: list[m.OffsetFetchRequest.OffsetFetchRequestTopics] = []
    for topic in group.topics:
        (allowed if may_describe(topic.name) else refused).append(topic)
    group.topics = allowed
    return [_error_in(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for topic in refused]


def _error_in(
    topic: m.OffsetFetchRequest.OffsetFetchRequestTopics, code: int
) -> m.OffsetFetchResponse.OffsetFetchResponseTopics:
    partition = m.OffsetFetchResponse.OffsetFetchResponsePartitions
    return m.OffsetFetchResponse.OffsetFetchResponseTopics(
        topic.name, topic.topic_id, [partition(index, -1, -1, "", code) for index in topic.partition_indexes]
    )


def _resolve_ids(broker: Needs, group: Wanted) -> list[m.OffsetFetchResponse.OffsetFetchResponseTopics]:
    """Give topics their names; those nobody knows are answered here."""
    unknown = []
    known = []
    for topic in group.topics or ():
        name = broker.image.topic_names.get(topic.topic_id)
        if name is None:
            unknown.append(_error_in(topic, ErrorCode.UNKNOWN_TOPIC_ID))
        else:
            topic.name = name
            known.append(topic)
    if group.topics is not None:
        group.topics = known
    return unknown


def _response(broker: Needs, call: Call, groups: list[Found]) -> m.OffsetFetchResponse:
    if call.version >= _TOPIC_IDS:
        for group in groups:
            for topic in group.topics:
                image = broker.image.topics.get(topic.name)
                if image is not None:
                    topic.topic_id = image.topic_id
    if call.version >= _MANY_GROUPS:
        return m.OffsetFetchResponse(groups=groups)
    (group,) = groups
    response = m.OffsetFetchResponse(error_code=group.error_code if call.version >= _GROUP_ERRORS else 0)
    response.topics = [
        m.OffsetFetchResponse.OffsetFetchResponseTopic(
            topic.name,
            [
                m.OffsetFetchResponse.OffsetFetchResponsePartition(
                    each.partition_index,
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.metadata,
                    each.error_code,
                )
                for each in topic.partitions
            ],
        )
        for topic in group.topics
    ]
    return response
