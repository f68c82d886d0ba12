"""FindCoordinator (key 10), versions 0-6. Which broker coordinates a group or a transactional id.

One key up to version 3, several from 4 on. The coordinator's topic is created when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.access import GROUP, TRANSACTIONAL_ID, may
from moldau.broker.requests.auto_create import auto_create_topics
from moldau.broker.requests.permissions import ERRORS
from moldau.controller.acls import Operation
from moldau.groups import partition_for_group
from moldau.timers.turns import Slices
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAuthorizer, HasImage, HasTurns
    from moldau.broker.requests.auto_create import Needs as AutoCreateNeeds

    class Needs(AutoCreateNeeds, HasAuthorizer, HasImage, HasTurns, Protocol):
        """What this file may touch."""


_GROUP, _TRANSACTION = 0, 1
_TOPICS = {_GROUP: "__consumer_offsets", _TRANSACTION: "__transaction_state"}
_KINDS = {_GROUP: GROUP, _TRANSACTION: TRANSACTIONAL_ID}
_MANY_KEYS = 4
_PER_SLICE = 100
Coordinator = m.FindCoordinatorResponse.Coordinator


async def handle(broker: Needs, call: Call, request: m.FindCoordinatorRequest) -> m.FindCoordinatorResponse:
    many = call.version >= _MANY_KEYS
    keys = request.coordinator_keys if many else [request.key]
    topic = _TOPICS.get(request.key_type)
    kind = _KINDS.get(request.key_type)
    refused: set[str] = set()
    if kind is not None and broker.authorizer is not None:
        refused = await broker.in_turns(_refused(keys, may(broker, call, Operation.DESCRIBE, kind)))
    if topic is not None and topic not in broker.image.topics and any(key for key in keys if key not in refused):
        await auto_create_topics(broker, [topic])
    error = None if kind is None else ERRORS[kind]
    found = await broker.in_turns(_find_all(broker, call, topic, keys, refused, error))
    if many:
        return m.FindCoordinatorResponse(coordinators=found)
    (one,) = found
    return m.FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _refused(keys: list[str], may_describe: Callable[[str], bool]) -> Slices[set[str]]:
    refused: set[str] = set()
    for number, key in enumerate(keys, 1):
        if not may_describe(key):
            refused.add(key)
        if number % _PER_SLICE == 0:
            yield
    return refused


def _find_all(
    broker: Needs, call: Call, topic: str | None, keys: list[str], refused: set[str], error: ErrorCode | None
) -> Slices[list[Coordinator]]:
    found = []
    for number, key in enumerate(keys, 1):
        if error is not None and key in refused:
            found.append(_error(key, error))
        else:
            found.append(_find(broker, call, topic, key))
        if number % _PER_SLICE == 0:
            yield
    return found


def _find(broker: Needs, call: Call, topic: str | None, key: str) -> Coordinator:
    if topic is None:
        return _error(key, ErrorCode.INVALID_REQUEST)
    image = broker.image.topics.get(topic)
    if image is None:
        return _error(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    partition = image.partitions[partition_for_group(key, len(image.partitions))]
    leader = broker.image.brokers.get(partition.leader)
    listener = call.connection.listener_name
    for endpoint in leader.endpoints if leader is not None and not leader.fenced else ():
        if endpoint.name == listener:
            return Coordinator(key, partition.leader, endpoint.host, endpoint.port, ErrorCode.NONE, "")
    return _error(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _error(key: str, code: ErrorCode) -> Coordinator:
    return Coordinator(key, -1, "", -1, code, code.meaning)
