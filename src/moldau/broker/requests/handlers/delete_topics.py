"""DeleteTopics (key 20), versions 1-6. By name, and from version 6 on by id too.

Each topic succeeds or fails on its own. With `delete.topic.enable=false` none does: TOPIC_DELETION_DISABLED, which
clients before version 3 do not know and get as INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.access import NAMES_PER_TURN, TOPIC, may, may_on_cluster
from moldau.broker.requests.mentions import mentions_of
from moldau.broker.requests.mutations import charged_context
from moldau.controller.acls import Operation
from moldau.controller.topics import delete_topics
from moldau.wire import ZERO_UUID, ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController
    from moldau.broker.parts import HasAuthorizer, HasConfig, HasImage, HasTurns

    class Needs(HasAuthorizer, HasConfig, HasController, HasImage, HasTurns, Protocol):
        """What this file may touch."""


_STRICT = 5  # from this version on, what is beyond a quota is refused
Result = m.DeleteTopicsResponse.DeletableTopicResult
_Mention = tuple["str | None", bytes]


async def handle(broker: Needs, call: Call, request: m.DeleteTopicsRequest) -> m.DeleteTopicsResponse:
    refused = await _take_out_refused(broker, call, request)
    context = charged_context(broker, call, _STRICT)
    response = await broker.controller.submit(delete_topics, request, context=context)
    response.responses += refused
    if call.version < 3:
        for result in response.responses:
            if result.error_code == ErrorCode.TOPIC_DELETION_DISABLED:
                result.error_code = ErrorCode.INVALID_REQUEST
    return response


async def _take_out_refused(broker: Needs, call: Call, request: m.DeleteTopicsRequest) -> list[Result]:
    """What the client may not delete. Whether it exists is told to those who may see it."""
    if broker.authorizer is None or not broker.config.get_bool("delete.topic.enable"):
        return []
    if may_on_cluster(broker, call, Operation.DELETE, is_filter=True):
        return []
    asked: list[_Mention] = [(each.name, each.topic_id) for each in request.topics]
    asked += [(name, ZERO_UUID) for name in request.topic_names]
    mentions = await broker.in_turns(mentions_of(asked))
    describes, deletes = may(broker, call, Operation.DESCRIBE, TOPIC), may(broker, call, Operation.DELETE, TOPIC)
    refused: dict[_Mention, Result | None] = {}
    for number, each in enumerate(asked, 1):
        if mentions.count(each) == 1:
            refused[each] = _refusal(broker, each, describes, deletes)
        if number % NAMES_PER_TURN == 0:
            await broker.turns.next_turn()
    request.topics = [each for each in request.topics if refused.get((each.name, each.topic_id)) is None]
    request.topic_names = [name for name in request.topic_names if refused.get((name, ZERO_UUID)) is None]
    return [each for each in refused.values() if each is not None]


def _refusal(
    broker: Needs, mention: _Mention, describes: Callable[[str], bool], deletes: Callable[[str], bool]
) -> Result | None:
    name, topic_id = mention
    if (name is None) == (topic_id == ZERO_UUID):
        return None  # senseless, and told so
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if name is not None:
        if describes(name) and (deletes(name) or name not in broker.image.topics):
            return None
        return Result(name, ZERO_UUID, code, code.meaning)
    found = broker.image.topic_names.get(topic_id)
    if found is None or deletes(found):
        return None
    return Result(found if describes(found) else None, topic_id, code, code.meaning)
