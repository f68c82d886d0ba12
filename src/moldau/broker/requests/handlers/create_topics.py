"""CreateTopics (key 19), versions 2-7. Each topic succeeds or fails on its own; `validate_only` changes nothing.

The controller decides; the answer comes when the topics are committed and this node serves its part of them. From
version 5 on it tells partitions, replication factor and configs, if the client may see those, from 7 on the topic's id.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.access import TOPIC, allowed_of, may, may_on_cluster
from moldau.broker.requests.mentions import mentions_of
from moldau.broker.requests.mutations import charged_context
from moldau.controller.acls import Operation
from moldau.controller.names import CLUSTER_METADATA_TOPIC
from moldau.controller.topics import create_topics
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController
    from moldau.broker.parts import HasAuthorizer, HasTurns

    class Needs(HasAuthorizer, HasController, HasTurns, Protocol):
        """What this file may touch."""


_STRICT = 6  # from this version on, what is beyond a quota is refused
Result = m.CreateTopicsResponse.CreatableTopicResult
_REFUSED = "Authorization failed."


async def handle(broker: Needs, call: Call, request: m.CreateTopicsRequest) -> m.CreateTopicsResponse:
    refused = await _take_out_refused(broker, call, request)
    context = charged_context(broker, call, _STRICT)
    if broker.authorizer is not None:
        may_describe = may(broker, call, Operation.DESCRIBE_CONFIGS, TOPIC, is_filter=True)
        described = await allowed_of(broker, may_describe, [topic.name for topic in request.topics])
        context = replace(context, may_describe_configs=described.__contains__)
    response = await broker.controller.submit(create_topics, request, context=context)
    for topic in response.topics:
        if topic.error_code == ErrorCode.NONE:
            topic.error_message = None
    response.topics += refused
    return response


async def _take_out_refused(broker: Needs, call: Call, request: m.CreateTopicsRequest) -> list[Result]:
    """What the client may not create; a topic that nobody may create, or named twice, is refused for that reason."""
    if may_on_cluster(broker, call, Operation.CREATE, is_filter=True):
        return []
    may_create = may(broker, call, Operation.CREATE, TOPIC)
    mentions = await broker.in_turns(mentions_of([topic.name for topic in request.topics]))
    names = [topic.name for topic in request.topics if mentions.count(topic.name) == 1]
    asked = [name for name in names if name != CLUSTER_METADATA_TOPIC]
    refused = set(asked).difference(await allowed_of(broker, may_create, asked))
    request.topics = [topic for topic in request.topics if topic.name not in refused]
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return [Result(name, error_code=code, error_message=_REFUSED, configs=[]) for name in asked if name in refused]
