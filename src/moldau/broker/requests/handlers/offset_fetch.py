"""OffsetFetch (key 9), versions 1-10. One group up to version 7, several from 8 on; topics by id from 10 on.

Each group is answered by its own coordinator; the answers are put together in the order of the request. A group of very
many topics is asked about in pieces.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from moldau.broker.requests.access import GROUP, TOPIC, may
from moldau.broker.requests.gather import PER_TURN, gather, gather_in_turns
from moldau.broker.requests.pieces import Shape, cut, is_long, join
from moldau.controller.acls import Operation
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m
from moldau.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.parts import HasGroups
    from moldau.broker.parts import HasAuthorizer, HasImage, HasTurns

    class Needs(HasAuthorizer, HasGroups, HasImage, HasTurns, Protocol):
        """What this file may touch."""


_PARTITIONS_PER_WEIGHT = 10
_MANY_GROUPS = 8
_TOPIC_IDS = 10
_GROUP_ERRORS = 2
Wanted = m.OffsetFetchRequest.OffsetFetchRequestGroup
WantedTopic = m.OffsetFetchRequest.OffsetFetchRequestTopics
Found = m.OffsetFetchResponse.OffsetFetchResponseGroup
FoundTopic = m.OffsetFetchResponse.OffsetFetchResponseTopics


def _indexes(topic: WantedTopic) -> list[int]:
    return topic.partition_indexes


def _part(topic: WantedTopic, indexes: list[int]) -> WantedTopic:
    """Of one in the form of older versions, too: they have the same fields, but for the id."""
    return WantedTopic(topic.name, getattr(topic, "topic_id", ZERO_UUID), indexes)


_SHAPE = Shape[WantedTopic](_indexes, _part)


class _Piece(NamedTuple):
    """A group with all of its topics, or with some of them."""

    group: Wanted
    goes_on: bool = False
    """With topics of the group of the piece before."""


def handle(broker: Needs, call: Call, request: m.OffsetFetchRequest) -> Awaitable[m.OffsetFetchResponse] | None:
    wanted = request.groups
    if call.version < _MANY_GROUPS:
        wanted = [Wanted(request.group_id, topics=cast("list[WantedTopic] | None", request.topics))]
    question = _Question(broker, call, require_stable=request.require_stable)
    if len(wanted) == 1 and not (wanted[0].topics and is_long(wanted[0].topics, _indexes)):  # what consumers ask
        question.ask_group(wanted[0], lambda found: call.respond(question.whole([found])))
        return None
    if len(wanted) > PER_TURN or any(each.topics and is_long(each.topics, _indexes) for each in wanted):
        return gather_in_turns(broker, _pieces(wanted), question.ask, question.whole, _weight)
    gather(call, map(_Piece, wanted), question.ask, question.whole)
    return None


def _pieces(wanted: list[Wanted]) -> Iterator[_Piece]:
    for group in wanted:
        if not group.topics:
            yield _Piece(group)
            continue
        goes_on = False
        for topics in cut(group.topics, _SHAPE):
            yield _Piece(Wanted(group.group_id, group.member_id, group.member_epoch, topics), goes_on)
            goes_on = True


def _weight(piece: _Piece) -> int:
    return 1 + sum(map(len, map(_indexes, piece.group.topics or ()))) // _PARTITIONS_PER_WEIGHT


class _Question:
    """What is asked of the coordinators, and told of their answers."""

    def __init__(self, broker: Needs, call: Call, *, require_stable: bool) -> None:
        self._broker = broker
        self._call = call
        self._require_stable = require_stable
        self._goes_on: list[bool] = []
        self._may_describe = may(broker, call, Operation.DESCRIBE, GROUP)
        self._may_describe_topic = may(broker, call, Operation.DESCRIBE, TOPIC)

    def ask(self, piece: _Piece, answered: Callable[[Found], None]) -> None:
        self._goes_on.append(piece.goes_on)
        self.ask_group(piece.group, answered)

    def ask_group(self, group: Wanted, answered: Callable[[Found], None]) -> None:
        call = self._call
        if not self._may_describe(group.group_id):
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            self._finish(group, [], answered, m.OffsetFetchResponse(groups=[Found(group.group_id, error_code=code)]))
            return
        if call.version < _MANY_GROUPS and group.topics is not None:
            group.topics = [_part(topic, topic.partition_indexes) for topic in group.topics]
        unknown = _resolve_ids(self._broker, group) if call.version >= _TOPIC_IDS else []
        unknown += _take_out_refused(group, self._may_describe_topic)
        part = m.OffsetFetchRequest(groups=[group], require_stable=self._require_stable)
        self._broker.groups.handle(call, group.group_id, part, partial(self._finish, group, unknown, answered))

    def _finish(
        self, wanted: Wanted, unknown: list[FoundTopic], answered: Callable[[Found], None], response: Message
    ) -> None:
        group = cast("m.OffsetFetchResponse", response).groups[0]
        if not group.error_code:
            if wanted.topics is None:  # all there are, as far as the client may see them
                group.topics = [topic for topic in group.topics if self._may_describe_topic(topic.name)]
            group.topics += unknown
        elif self._call.version < _GROUP_ERRORS:
            group = _error_everywhere(wanted, group.error_code)
        if self._call.version >= _TOPIC_IDS:
            for topic in group.topics:
                image = self._broker.image.topics.get(topic.name)
                if image is not None:
                    topic.topic_id = image.topic_id
        elif self._call.version < _MANY_GROUPS:
            group.topics = [_for_one_group(topic) for topic in group.topics]  # type: ignore[misc]  # see `whole`
        answered(group)

    def whole(self, pieces: list[Found]) -> m.OffsetFetchResponse:
        groups = _joined(pieces, self._goes_on) if any(self._goes_on) else pieces
        if self._call.version >= _MANY_GROUPS:
            return m.OffsetFetchResponse(groups=groups)
        (group,) = groups
        code = group.error_code if self._call.version >= _GROUP_ERRORS else 0
        topics = cast("list[m.OffsetFetchResponse.OffsetFetchResponseTopic]", group.topics)
        return m.OffsetFetchResponse(error_code=code, topics=topics)


def _joined(pieces: list[Found], goes_on: list[bool]) -> list[Found]:
    """Each group once. An error of one piece is one of its group."""
    groups: list[Found] = []
    for piece, is_more in zip(pieces, goes_on, strict=True):
        if not is_more:
            groups.append(piece)
        elif not groups[-1].error_code:
            if piece.error_code:
                groups[-1] = piece
                continue
            join(groups[-1].topics, piece.topics)
    return groups


def _error_everywhere(group: Wanted, code: int) -> Found:
    """Version 1 has no place for an error of the group: each partition tells it, or it would read as "no offset"."""
    return Found(group.group_id, [_error_in(topic, code) for topic in group.topics or ()])


def _take_out_refused(group: Wanted, may_describe: Callable[[str], bool]) -> list[FoundTopic]:
    """Topics that the client may not see are answered here."""
    if group.topics is None:
        return []
    allowed: list[WantedTopic] = []
    refused: list[WantedTopic] = []
    for topic in group.topics:
        (allowed if may_describe(topic.name) else refused).append(topic)
    group.topics = allowed
    return [_error_in(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for topic in refused]


def _error_in(topic: WantedTopic, code: int) -> FoundTopic:
    partition = m.OffsetFetchResponse.OffsetFetchResponsePartitions
    return FoundTopic(
        topic.name, topic.topic_id, [partition(index, -1, -1, "", code) for index in topic.partition_indexes]
    )


def _resolve_ids(broker: Needs, group: Wanted) -> list[FoundTopic]:
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


def _for_one_group(topic: FoundTopic) -> m.OffsetFetchResponse.OffsetFetchResponseTopic:
    kind = m.OffsetFetchResponse
    return kind.OffsetFetchResponseTopic(
        topic.name,
        [
            kind.OffsetFetchResponsePartition(
                each.partition_index,
                each.committed_offset,
                each.committed_leader_epoch,
                each.metadata,
                each.error_code,
            )
            for each in topic.partitions
        ],
    )
