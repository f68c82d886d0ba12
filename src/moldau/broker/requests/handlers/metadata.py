"""Metadata (key 3), versions 0-13. Brokers, and topics by name, by id (12-13), or all of them.

A topic that does not exist is created on the way when both client and `auto.create.topics.enable` allow it; the answer
then already has it. Partitions name leader, replicas, ISR and those that are offline, as the image has them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from moldau.broker.requests.access import CLUSTER, TOPIC, authorized_operations, may, may_on_cluster
from moldau.broker.requests.auto_create import auto_create_topics
from moldau.broker.requests.mentions import Mentions
from moldau.controller.acls import Operation
from moldau.controller.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from moldau.controller.names import INTERNAL_TOPICS, reason_name_is_invalid
from moldau.timers.turns import Slices, let_go
from moldau.wire import ZERO_UUID, ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAuthorizer, HasConfig, HasIdentity, HasImage, HasTurns
    from moldau.broker.requests.auto_create import Needs as AutoCreateNeeds

    class Needs(AutoCreateNeeds, HasAuthorizer, HasConfig, HasIdentity, HasImage, HasTurns, Protocol):
        """What this file may touch."""


T = TypeVar("T")
Topic = m.MetadataResponse.MetadataResponseTopic
_PER_SLICE = 200  # topics and partitions: about a millisecond
_MANY = 2_000
_TOPIC_IDS = 12


def handle(
    broker: Needs, call: Call, request: m.MetadataRequest
) -> m.MetadataResponse | Awaitable[m.MetadataResponse] | Slices[m.MetadataResponse]:
    topics = request.topics
    if topics is None or (call.version == 0 and not topics):
        describe = partial(_describe, broker.image, call=call)
        seen: Iterable[TopicImage] = broker.image.topics.values()
        if broker.authorizer is not None:
            may_describe = may(broker, call, Operation.DESCRIBE, TOPIC, is_filter=True)
            seen = (topic for topic in seen if may_describe(topic.name))
        return _answer_each(broker, call, request, seen, describe)
    if len(topics) > _MANY:
        return _handle_many(broker, call, request, topics)
    if call.version < _TOPIC_IDS and any(topic.name is None or topic.topic_id != ZERO_UUID for topic in topics):
        # The fields are there from version 10 on; Kafka takes them from 12 on, when answers may have no name.
        refused = [_error(topic.name or "", topic.topic_id, ErrorCode.INVALID_REQUEST) for topic in topics]
        return m.MetadataResponse(topics=refused)
    ids = dict.fromkeys(topic.topic_id for topic in topics if topic.topic_id != ZERO_UUID)
    if ids:
        return _answer_each(broker, call, request, ids, partial(_by_id, broker, call))
    names = list(dict.fromkeys(topic.name or "" for topic in topics))
    creates = request.allow_auto_topic_creation or call.version < 4
    creates = creates and broker.config.get_bool("auto.create.topics.enable")
    if creates:
        missing = [name for name in names if _is_to_be_created(broker, call, name)]
        if missing:
            return _create_and_answer(broker, call, request, names, missing)
    return _answer_each(broker, call, request, names, partial(_by_name, broker, call, creates=creates))


async def _handle_many(
    broker: Needs, call: Call, request: m.MetadataRequest, topics: list[m.MetadataRequest.MetadataRequestTopic]
) -> m.MetadataResponse:
    """The same for so many that even looking at them takes turns. None of them is created: nobody means that."""
    ids, names = await broker.in_turns(_distinct(topics))
    if call.version < _TOPIC_IDS and (ids or None in names):
        refuse = partial(_error, topic_id=ZERO_UUID, code=ErrorCode.INVALID_REQUEST)
        answering = _answer_each(broker, call, request, (name or "" for name in names), refuse)
    elif ids:
        answering = _answer_each(broker, call, request, ids, partial(_by_id, broker, call))
    else:
        answering = _answer_each(broker, call, request, (name or "" for name in names), partial(_by_name, broker, call))
    response = await broker.in_turns(answering)
    await broker.in_turns(let_go(ids, names))
    return response


def _distinct(
    topics: list[m.MetadataRequest.MetadataRequestTopic],
) -> Slices[tuple[list[bytes], list[str | None]]]:
    """The ids and the names asked for, in their order, each once."""
    ids: list[bytes] = []
    names: list[str | None] = []
    mentions = Mentions(len(topics))
    for at, topic in enumerate(topics):
        if at % _MANY == 0:
            yield
        is_id = topic.topic_id != ZERO_UUID
        wanted = topic.topic_id if is_id else topic.name
        if mentions.add(wanted) == 1:
            if is_id:
                ids.append(topic.topic_id)
            else:
                names.append(topic.name)
    yield from mentions.let_go()
    return ids, names


def _answer_each(
    broker: Needs, call: Call, request: m.MetadataRequest, wanted: Iterable[T], describe: Callable[[T], Topic]
) -> Slices[m.MetadataResponse]:
    """In slices: there may be a million."""
    topics: list[Topic] = []
    left = _PER_SLICE
    for each in wanted:
        topic = describe(each)
        topics.append(topic)
        left -= 1 + len(topic.partitions)
        if left <= 0:
            left = _PER_SLICE
            yield
    return _answer(broker, call, request, topics)


async def _create_and_answer(
    broker: Needs, call: Call, request: m.MetadataRequest, names: list[str], missing: list[str]
) -> m.MetadataResponse:
    errors = await auto_create_topics(broker, missing, call)

    def describe(name: str) -> Topic:
        return _error(name, ZERO_UUID, errors[name]) if name in errors else _by_name(broker, call, name, creates=True)

    return await broker.in_turns(_answer_each(broker, call, request, names, describe))


def _answer(broker: Needs, call: Call, request: m.MetadataRequest, topics: list[Topic]) -> m.MetadataResponse:
    listener = call.connection.listener_name
    response = m.MetadataResponse(cluster_id=broker.cluster_id, controller_id=broker.node_id, topics=topics)
    for registered in broker.image.brokers.values():
        endpoint = next((each for each in registered.endpoints if each.name == listener), None)
        if endpoint is not None and not registered.fenced:
            response.brokers.append(
                m.MetadataResponse.MetadataResponseBroker(
                    registered.broker_id, endpoint.host, endpoint.port, registered.rack
                )
            )
    if request.include_cluster_authorized_operations:
        may_describe = may_on_cluster(broker, call, Operation.DESCRIBE)
        response.cluster_authorized_operations = authorized_operations(broker, call, CLUSTER) if may_describe else 0
    if request.include_topic_authorized_operations:
        for topic in topics:
            if topic.error_code == ErrorCode.NONE:
                topic.topic_authorized_operations = authorized_operations(broker, call, TOPIC, topic.name or "")
    return response


def _is_to_be_created(broker: Needs, call: Call, name: str) -> bool:
    if name in broker.image.topics or reason_name_is_invalid(name) is not None:
        return False
    return may(broker, call, Operation.DESCRIBE, TOPIC, is_filter=True)(name) and _may_create(broker, call, name)


def _may_create(broker: Needs, call: Call, name: str) -> bool:
    if may_on_cluster(broker, call, Operation.CREATE, is_filter=True):
        return True
    return may(broker, call, Operation.CREATE, TOPIC)(name)


def _by_name(broker: Needs, call: Call, name: str, *, creates: bool = False) -> Topic:
    """`creates`: it would have been created, had the client been allowed to."""
    if not may(broker, call, Operation.DESCRIBE, TOPIC)(name):
        return Topic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name)
    if creates and name not in broker.image.topics and not _may_create(broker, call, name):
        return _error(name, ZERO_UUID, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    topic = broker.image.topics.get(name)
    if topic is not None:
        return _describe(broker.image, topic, call)
    invalid = reason_name_is_invalid(name) is not None
    code = ErrorCode.INVALID_TOPIC_EXCEPTION if invalid else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return _error(name, ZERO_UUID, code)


def _by_id(broker: Needs, call: Call, topic_id: bytes) -> Topic:
    topic = broker.image.topic_by_id(topic_id)
    if topic is None:
        return _error(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
    if not may(broker, call, Operation.DESCRIBE, TOPIC)(topic.name):
        return _error(None, topic_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return _describe(broker.image, topic, call)


def _error(name: str | None, topic_id: bytes, code: ErrorCode) -> Topic:
    return Topic(code, name, topic_id, is_internal=name in INTERNAL_TOPICS)


def _describe(image: ClusterImage, topic: TopicImage, call: Call) -> Topic:
    listener = call.connection.listener_name
    return Topic(
        ErrorCode.NONE,
        topic.name,
        topic.topic_id,
        topic.name in INTERNAL_TOPICS,
        [_partition(image, index, partition, listener) for index, partition in topic.partitions.items()],
    )


def _partition(
    image: ClusterImage, index: int, partition: PartitionImage, listener: str
) -> m.MetadataResponse.MetadataResponsePartition:
    offline = [replica for replica in partition.replicas if not _is_online(image, replica, listener)]
    code = ErrorCode.NONE
    if partition.leader == NO_LEADER:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    elif partition.leader in offline:
        code = ErrorCode.LISTENER_NOT_FOUND
    return m.MetadataResponse.MetadataResponsePartition(
        code,
        index,
        partition.leader,
        partition.leader_epoch,
        list(partition.replicas),
        list(partition.isr),
        offline,
    )


def _is_online(image: ClusterImage, broker_id: int, listener: str) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and not broker.fenced and any(each.name == listener for each in broker.endpoints)
