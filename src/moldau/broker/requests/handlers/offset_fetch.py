"""OffsetFetch (key 9), versions 1-10. One group up to version 7, several from 8 on; topics by id from 10 on.

Each group is answered by its own coordinator; the answers are put together in the order of the request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.requests.access import GROUP, TOPIC, may
from moldau.controller.acls import Operation
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups
    from moldau.broker.parts import HasAuthorizer, HasImage

    class Needs(HasAuthorizer, HasGroups, HasImage, Protocol):
        """What this file may touch."""


_MANY_GROUPS = 8
_TOPIC_IDS = 10
_GROUP_ERRORS = 2
Wanted = m.OffsetFetchRequest.OffsetFetchRequestGroup
Found = m.OffsetFetchResponse.OffsetFetchResponseGroup


def handle(broker: Needs, call: Call, request: m.OffsetFetchRequest) -> None:
    wanted = request.groups if call.version >= _MANY_GROUPS else [_one_group(call, request)]
    found: dict[int, Found] = {}
    if not wanted:
        call.respond(m.OffsetFetchResponse())
        return

    def answer(number: int, response: Message, unknown: list[m.OffsetFetchResponse.OffsetFetchResponseTopics]) -> None:
        group = cast("m.OffsetFetchResponse", response).groups[0]
        if not group.error_code:
            if wanted[number].topics is None:  # all there are, as far as the client may see them
                group.topics = [topic for topic in group.topics if may_describe_topic(topic.name)]
            group.topics += unknown
        elif call.version < _GROUP_ERRORS:
            group = _error_everywhere(wanted[number], group.error_code)
        found[number] = group
        if len(found) == len(wanted):
            _respond(broker, call, [found[each] for each in range(len(wanted))])

    may_describe = may(broker, call, Operation.DESCRIBE, GROUP)
    may_describe_topic = may(broker, call, Operation.DESCRIBE, TOPIC)
    for number, group in enumerate(wanted):
        if not may_describe(group.group_id):
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            answer(number, m.OffsetFetchResponse(groups=[Found(group.group_id, error_code=code)]), [])
            continue
        unknown = _resolve_ids(broker, group) if call.version >= _TOPIC_IDS else []
        unknown += _take_out_refused(group, may_describe_topic)
        part = m.OffsetFetchRequest(groups=[group], require_stable=request.require_stable)
        broker.groups.handle(
            call,
            group.group_id,
            part,
            lambda message, n=number, u=unknown: answer(n, message, u),  # type: ignore[misc]  # bound per group
        )


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
    refused = [topic for topic in group.topics or () if not may_describe(topic.name)]
    if refused and group.topics is not None:
        group.topics = [topic for topic in group.topics if topic not in refused]
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


def _respond(broker: Needs, call: Call, groups: list[Found]) -> None:
    if call.version >= _TOPIC_IDS:
        for group in groups:
            for topic in group.topics:
                image = broker.image.topics.get(topic.name)
                if image is not None:
                    topic.topic_id = image.topic_id
    if call.version >= _MANY_GROUPS:
        call.respond(m.OffsetFetchResponse(groups=groups))
        return
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
    call.respond(response)
