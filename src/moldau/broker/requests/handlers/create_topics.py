"""CreateTopics (key 19), versions 2-7. Each topic succeeds or fails on its own; `validate_only` changes nothing.

The controller decides; the answer comes when the topics are committed and this node serves its part of them. From
version 5 on it tells partitions, replication factor and configs, from 7 on the topic's id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.controller.topics import create_topics
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController


async def handle(broker: HasController, _call: Call, request: m.CreateTopicsRequest) -> m.CreateTopicsResponse:
    response = await broker.controller.submit(create_topics, request)
    for topic in response.topics:
        if topic.error_code == ErrorCode.NONE:
            topic.error_message = None
    return response
