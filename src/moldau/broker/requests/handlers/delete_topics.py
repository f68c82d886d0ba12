"""DeleteTopics (key 20), versions 1-6. By name, and from version 6 on by id too.

Each topic succeeds or fails on its own. With `delete.topic.enable=false` none does: TOPIC_DELETION_DISABLED, which
clients before version 3 do not know and get as INVALID_REQUEST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.controller.topics import delete_topics
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController


async def handle(broker: HasController, call: Call, request: m.DeleteTopicsRequest) -> m.DeleteTopicsResponse:
    response = await broker.controller.submit(delete_topics, request)
    if call.version < 3:
        for result in response.responses:
            if result.error_code == ErrorCode.TOPIC_DELETION_DISABLED:
                result.error_code = ErrorCode.INVALID_REQUEST
    return response
