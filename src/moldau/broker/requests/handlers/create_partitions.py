"""CreatePartitions (key 37), versions 0-3. Raises the partition count of topics, each on its own; never lowers it.

`validate_only` changes nothing. Replicas of the new partitions may be given, or are placed by the controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.access import TOPIC, allowed_of, may
from moldau.broker.requests.mentions import mentions_of
from moldau.broker.requests.mutations import charged_context
from moldau.controller.acls import Operation
from moldau.controller.topics import create_partitions
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController
    from moldau.broker.parts import HasAuthorizer, HasTurns

    class Needs(HasAuthorizer, HasController, HasTurns, Protocol):
        """What this file may touch."""


_STRICT = 3  # from this version on, what is beyond a quota is refused
Result = m.CreatePartitionsResponse.CreatePartitionsTopicResult


async def handle(broker: Needs, call: Call, request: m.CreatePartitionsRequest) -> m.CreatePartitionsResponse:
    refused = await _take_out_refused(broker, call, request)
    context = charged_context(broker, call, _STRICT)
    response = await broker.controller.submit(create_partitions, request, context=context)
    response.results += refused
    return response


async def _take_out_refused(broker: Needs, call: Call, request: m.CreatePartitionsRequest) -> list[Result]:
    """What the client may not alter; a topic named twice is refused for that reason."""
    if broker.authorizer is None:
        return []
    mentions = await broker.in_turns(mentions_of([topic.name for topic in request.topics]))
    asked = [topic.name for topic in request.topics if mentions.count(topic.name) == 1]
    allowed = await allowed_of(broker, may(broker, call, Operation.ALTER, TOPIC), asked)
    refused = {name: None for name in asked if name not in allowed}
    request.topics = [topic for topic in request.topics if topic.name not in refused]
    return [Result(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, None) for name in refused]
