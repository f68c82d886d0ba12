"""CreateTopics, DeleteTopics, CreatePartitions. Each topic of a request succeeds or fails on its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from moldau.controller.configs import setting_records
from moldau.controller.context import (
    PARTITIONS_PER_REQUEST_MAX,
    RECORDS_PER_COMMAND_MAX,
    ControllerContext,
    ControllerResult,
    default_directory,
)
from moldau.controller.errors import ApiError
from moldau.controller.image import (
    RECOVERED,
    ClusterImage,
    ConfigResource,
    PartitionImage,
    ResourceType,
    TopicImage,
)
from moldau.controller.names import CLUSTER_METADATA_TOPIC, check_topic_name, collision_key
from moldau.controller.placement import UsableBroker, place
from moldau.controller.snapshot import partition_record
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Message
from moldau.wire.primitives import ZERO_UUID

_TOO_MANY = "Excessively large number of partitions per request."


def create_topics(
    image: ClusterImage, request: m.CreateTopicsRequest, context: ControllerContext
) -> ControllerResult[m.CreateTopicsResponse]:
    if _partitions_asked_for(request, context) > PARTITIONS_PER_REQUEST_MAX:
        return _refuse_all(request, _TOO_MANY)
    response = m.CreateTopicsResponse()
    records: list[Message] = []
    duplicates = _duplicates(topic.name for topic in request.topics)
    room = _Room(image)
    for topic in request.topics:
        if topic.name in duplicates:
            continue
        try:
            _check_new_name(image, topic.name)
            made = _create_topic(image, topic, context, room)
        except ApiError as error:
            response.topics.append(_creation_error(topic.name, error))
            continue
        records += made.records
        if len(records) > RECORDS_PER_COMMAND_MAX:
            return _refuse_all(request, "Unable to perform excessively large batch operation.")
        response.topics.append(made.response)
    twice = ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    response.topics += [_creation_error(name, twice) for name in duplicates]
    return ControllerResult(response, [] if request.validate_only else records)


def _refuse_all(request: m.CreateTopicsRequest, message: str) -> ControllerResult[m.CreateTopicsResponse]:
    error = ApiError(ErrorCode.POLICY_VIOLATION, message)
    return ControllerResult(m.CreateTopicsResponse(0, [_creation_error(t.name, error) for t in request.topics]), [])


def _duplicates(names: Iterable[str]) -> dict[str, None]:
    """In their order; a dict, since each topic of a request asks whether it is one of them."""
    return {name: None for name, count in Counter(names).items() if count > 1}


def _partitions_asked_for(request: m.CreateTopicsRequest, context: ControllerContext) -> int:
    total = 0
    for topic in request.topics:
        if topic.assignments:
            total += len(topic.assignments)
        elif topic.num_partitions == -1:
            total += context.default_partitions
        else:
            total += max(0, topic.num_partitions)
    return total


def _check_new_name(image: ClusterImage, name: str) -> None:
    if name == CLUSTER_METADATA_TOPIC:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited.")
    if name in image.topics:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    check_topic_name(name)
    key = collision_key(name)
    colliding = None if key is None else image.colliding_names.get(key)
    if colliding is not None:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {colliding[0]}"
        )


def _creation_error(name: str, error: ApiError) -> m.CreateTopicsResponse.CreatableTopicResult:
    return m.CreateTopicsResponse.CreatableTopicResult(
        name=name, error_code=error.code, error_message=error.message, configs=[]
    )


class _Room:
    """Where new partitions can be, found out once: a request may create thousands of topics."""

    def __init__(self, image: ClusterImage) -> None:
        self.brokers = sorted(usable_brokers(image))
        self.partitions: dict[tuple[int, ...], PartitionImage] = {}
        """Those with the same replicas are alike in everything else, too: of ten thousand, few have to be made."""


class _NewTopic(NamedTuple):
    response: m.CreateTopicsResponse.CreatableTopicResult
    records: list[Message]


def _create_topic(
    image: ClusterImage, topic: m.CreateTopicsRequest.CreatableTopic, context: ControllerContext, room: _Room
) -> _NewTopic:
    missing = [config.name for config in topic.configs if config.value is None]
    if missing:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(missing)}")
    overrides = {config.name: config.value for config in topic.configs if config.value is not None}
    resource = ConfigResource(ResourceType.TOPIC, topic.name)
    config_records = setting_records(image, context, resource, overrides, new_resource=True) if overrides else []
    if topic.assignments:
        partitions = _assigned_partitions(image, topic)
    else:
        partitions = _placed_partitions(image, topic, context, room)
    context.charge_partitions(len(partitions))
    topic_id = context.random.uuid()
    while topic_id in image.topic_names:
        topic_id = context.random.uuid()
    result = m.CreateTopicsResponse.CreatableTopicResult(name=topic.name, topic_id=topic_id, configs=[])
    if context.may_describe_configs(topic.name):
        result.num_partitions = len(partitions)
        result.replication_factor = len(partitions[0].replicas)
        result.configs = context.rules.describe_topic(overrides, image)
    else:
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    # Configs stand before the partitions: whoever starts a partition must know them.
    records: list[Message] = [m.TopicRecord(topic.name, topic_id), *config_records]
    records += [partition_record(topic_id, number, partition) for number, partition in enumerate(partitions)]
    return _NewTopic(result, records)


def _assigned_partitions(image: ClusterImage, topic: m.CreateTopicsRequest.CreatableTopic) -> list[PartitionImage]:
    for value, what in ((topic.replication_factor, "replication factor"), (topic.num_partitions, "numPartitions")):
        if value != -1:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {what} was not set to -1.",
            )
    made: dict[int, PartitionImage] = {}
    replication_factor: int | None = None
    for assignment in topic.assignments:
        number = assignment.partition_index
        if number in made:
            raise _bad_assignment(f"Found multiple manual partition assignments for partition {number}")
        check_manual_assignment(image, assignment.broker_ids, replication_factor)
        replication_factor = len(assignment.broker_ids)
        made[number] = _new_partition(image, assignment.broker_ids, partial(_all_fenced_by_hand, number))
    if sorted(made) != list(range(len(made))):
        raise _bad_assignment("partitions should be a consecutive 0-based integer sequence")
    return [made[number] for number in range(len(made))]


def _placed_partitions(
    image: ClusterImage, topic: m.CreateTopicsRequest.CreatableTopic, context: ControllerContext, room: _Room
) -> list[PartitionImage]:
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    count = context.default_partitions if topic.num_partitions == -1 else topic.num_partitions
    factor = context.default_replication_factor if topic.replication_factor == -1 else topic.replication_factor
    try:
        placed = place(room.brokers, count, factor, context.random)
    except ApiError as error:
        message = f"Unable to replicate the partition {factor} time(s): {error.message}"
        raise ApiError(error.code, message) from None
    return _new_partitions(image, placed, factor, room)


def usable_brokers(image: ClusterImage) -> Iterable[UsableBroker]:
    """Brokers that may get new replicas."""
    for broker in image.brokers.values():
        if not broker.in_controlled_shutdown and broker.has_uncordoned_dirs:
            yield UsableBroker(broker.broker_id, broker.rack, broker.fenced)


def _new_partitions(image: ClusterImage, placed: list[list[int]], factor: int, room: _Room) -> list[PartitionImage]:
    all_fenced = partial(_all_fenced, factor)
    known = room.partitions
    made = []
    for replicas in map(tuple, placed):
        partition = known.get(replicas)
        if partition is None:
            partition = known[replicas] = _new_partition(image, replicas, all_fenced)
        made.append(partition)
    return made


def _new_partition(image: ClusterImage, replicas: Sequence[int], all_fenced: Callable[[], ApiError]) -> PartitionImage:
    isr = tuple(replica for replica in replicas if image.is_active(replica))
    if not isr:
        raise all_fenced()
    return PartitionImage(
        replicas=tuple(replicas),
        directories=tuple(default_directory(image, replica) for replica in replicas),
        isr=isr,
        removing_replicas=(),
        adding_replicas=(),
        leader=isr[0],
        leader_recovery_state=RECOVERED,
        leader_epoch=0,
        partition_epoch=0,
        elr=(),
        last_known_elr=(),
    )


def _all_fenced(replication_factor: int) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"Unable to replicate the partition {replication_factor} time(s): "
        "All brokers are currently fenced or in controlled shutdown.",
    )


def _all_fenced_by_hand(partition_id: int) -> ApiError:
    return _bad_assignment(
        f"All brokers specified in the manual partition assignment for partition {partition_id} "
        "are fenced or in controlled shutdown."
    )


def _bad_assignment(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def check_manual_assignment(image: ClusterImage, replicas: Sequence[int], replication_factor: int | None) -> None:
    """Every broker registered, none twice, and as many as the other partitions have."""
    if not replicas:
        raise _bad_assignment("The manual partition assignment includes an empty replica list.")
    previous = None
    for broker_id in sorted(replicas):
        if broker_id not in image.brokers:
            raise _bad_assignment(
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
            )
        if broker_id == previous:
            raise _bad_assignment(f"The manual partition assignment includes the broker {broker_id} more than once.")
        previous = broker_id
    if replication_factor is not None and len(replicas) != replication_factor:
        raise _bad_assignment(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s)."
        )


def create_partitions(
    image: ClusterImage, request: m.CreatePartitionsRequest, context: ControllerContext
) -> ControllerResult[m.CreatePartitionsResponse]:
    response = m.CreatePartitionsResponse()
    records: list[Message] = []
    if _additional_partitions(image, request) > PARTITIONS_PER_REQUEST_MAX:
        return ControllerResult(_refuse_partitions(request), [])
    duplicates = _duplicates(topic.name for topic in request.topics)
    room = _Room(image)
    for topic in request.topics:
        result = m.CreatePartitionsResponse.CreatePartitionsTopicResult(name=topic.name)
        if topic.name not in duplicates:
            try:
                records += _add_partitions(image, topic, context, room)
            except ApiError as error:
                result.error_code, result.error_message = error.code, error.message
            response.results.append(result)
    for name in duplicates:
        response.results.append(
            m.CreatePartitionsResponse.CreatePartitionsTopicResult(
                name, ErrorCode.INVALID_REQUEST, "Duplicate topic name."
            )
        )
    return ControllerResult(response, [] if request.validate_only else records)


def _additional_partitions(image: ClusterImage, request: m.CreatePartitionsRequest) -> int:
    """How many all topics of the request together ask for."""
    total = 0
    for wanted in request.topics:
        topic = image.topics.get(wanted.name)
        if topic is not None:
            total += max(0, wanted.count - len(topic.partitions))
    return total


def _refuse_partitions(request: m.CreatePartitionsRequest) -> m.CreatePartitionsResponse:
    return m.CreatePartitionsResponse(
        0,
        [
            m.CreatePartitionsResponse.CreatePartitionsTopicResult(name, ErrorCode.POLICY_VIOLATION, _TOO_MANY)
            for name in dict.fromkeys(topic.name for topic in request.topics)
        ],
    )


def _add_partitions(
    image: ClusterImage,
    wanted: m.CreatePartitionsRequest.CreatePartitionsTopic,
    context: ControllerContext,
    room: _Room,
) -> list[Message]:
    topic = image.topics.get(wanted.name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    present = len(topic.partitions)
    if wanted.count == present:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if wanted.count < present:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {wanted.name} currently has {present} partition(s); {wanted.count} would not be an increase.",
        )
    additional = wanted.count - present
    if wanted.assignments is not None and len(wanted.assignments) != additional:
        raise _bad_assignment(
            f"Attempted to add {additional} additional partition(s), but only {len(wanted.assignments)} "
            "assignment(s) were specified."
        )
    context.charge_partitions(additional)
    factor = len(next(iter(topic.partitions.values())).replicas)
    if wanted.assignments is None:
        placed = place(room.brokers, additional, factor, context.random)
        made = _new_partitions(image, placed, factor, room)
    else:
        made = []
        for number, assignment in enumerate(wanted.assignments, present):
            check_manual_assignment(image, assignment.broker_ids, factor)
            made.append(_new_partition(image, assignment.broker_ids, partial(_all_fenced_by_hand, number)))
    return [partition_record(topic.topic_id, number, partition) for number, partition in enumerate(made, present)]


def delete_topics(
    image: ClusterImage, request: m.DeleteTopicsRequest, context: ControllerContext
) -> ControllerResult[m.DeleteTopicsResponse]:
    """By name or by id. Naming a topic twice, in whatever way, deletes nothing."""
    response = m.DeleteTopicsResponse()
    asked = [(state.name, state.topic_id) for state in request.topics]
    asked += [(name, ZERO_UUID) for name in request.topic_names]
    times = Counter(asked)
    found: dict[bytes, list[tuple[str | None, bytes]]] = {}
    topics: dict[bytes, TopicImage] = {}
    for mention, count in times.items():
        try:
            _check_mention(*mention, context)
        except ApiError as error:
            response.responses += [_deletion(*mention, error)] * count
            continue
        try:
            topic = _topic_to_delete(image, *mention)
        except ApiError as error:
            # Said twice, it is answered alike whether it exists or not: not everybody may know.
            response.responses.append(_deletion(*mention, error if count == 1 else _said_twice(*mention)))
            continue
        if count > 1:
            response.responses.append(_deletion(*mention, _said_twice(*mention)))
        topics[topic.topic_id] = topic
        found.setdefault(topic.topic_id, []).append(mention)
    records: list[Message] = []
    for topic_id, mentions in found.items():
        once = [mention for mention in mentions if times[mention] == 1]
        if not once:
            continue
        topic = topics[topic_id]
        try:
            _check_mentioned_once(mentions)
            context.charge_partitions(len(topic.partitions))
        except ApiError as error:
            name = next((name for name, _ in mentions if name is not None), None)
            response.responses.append(_deletion(name, once[0][1], error))
            continue
        records.append(m.RemoveTopicRecord(topic_id))
        response.responses.append(_deletion(topic.name, topic_id, None))
    return ControllerResult(response, records)


def _check_mention(name: str | None, topic_id: bytes, context: ControllerContext) -> None:
    if not context.delete_topic_enable:
        raise ApiError(ErrorCode.TOPIC_DELETION_DISABLED)
    if name is None and topic_id == ZERO_UUID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if name is not None and topic_id != ZERO_UUID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")


def _topic_to_delete(image: ClusterImage, name: str | None, topic_id: bytes) -> TopicImage:
    if name is None:
        topic = image.topic_by_id(topic_id)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID.meaning)
    else:
        topic = image.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.meaning)
    return topic


def _check_mentioned_once(mentions: list[tuple[str | None, bytes]]) -> None:
    if len(mentions) > 1:
        message = "The provided topic name maps to an ID that was already supplied."
        raise ApiError(ErrorCode.INVALID_REQUEST, message)


def _said_twice(name: str | None, _topic_id: bytes) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {'id' if name is None else 'name'}.")


def _deletion(name: str | None, topic_id: bytes, error: ApiError | None) -> m.DeleteTopicsResponse.DeletableTopicResult:
    return m.DeleteTopicsResponse.DeletableTopicResult(
        name=name,
        topic_id=topic_id,
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
    )
