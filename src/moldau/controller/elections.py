"""Leaders and ISRs when brokers come and go, and elections people or timers ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from moldau.controller.context import (
    RECORDS_PER_COMMAND_MAX,
    ControllerContext,
    ControllerResult,
    is_unclean_election_enabled,
)
from moldau.controller.errors import ApiError
from moldau.controller.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from moldau.controller.partition_change import Election, change_partition
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Message

PREFERRED, UNCLEAN = 0, 1
ELECTIONS_PER_TICK_MAX = 1_000


def leader_and_isr_updates(
    image: ClusterImage,
    context: ControllerContext,
    affected: Callable[[PartitionImage], bool],
    *,
    remove: int | None = None,
    add: int | None = None,
    unclean_shutdown: int | None = None,
) -> list[Message]:
    """New leaders and ISRs for the affected partitions, as brokers will be a moment from now.

    `remove` leaves every ISR and leads no more; `add` may lead although the image still has it fenced; a broker that
    shut down uncleanly may have lost what it had acknowledged, and leaves ISR and ELR.
    """
    gone = {remove, unclean_shutdown}

    def may_lead(broker_id: int) -> bool:
        return broker_id not in gone and (broker_id == add or image.is_active(broker_id))

    records: list[Message] = []
    for topic, partition_id, partition in image.partitions():
        if not affected(partition):
            continue
        unclean = is_unclean_election_enabled(image, context, topic.name)
        record = change_partition(
            image,
            context,
            topic,
            partition_id,
            may_lead=may_lead,
            election=Election.UNCLEAN if unclean else Election.ONLINE,
            isr=[replica for replica in partition.isr if replica not in gone],
            unclean_shutdown=unclean_shutdown,
        )
        if record is not None:
            records.append(record)
    return records


def elect_leaders(
    image: ClusterImage, request: m.ElectLeadersRequest, context: ControllerContext
) -> ControllerResult[m.ElectLeadersResponse]:
    """What `kafka-leader-election` asks for. Without partitions: all, and only those that changed are reported."""
    response = m.ElectLeadersResponse()
    if request.election_type not in (PREFERRED, UNCLEAN):
        response.error_code = ErrorCode.INVALID_REQUEST
        return ControllerResult(response, [], f"Unknown election type {request.election_type}")
    records: list[Message] = []
    asked: Iterable[tuple[str, Iterable[int]]]
    if request.topic_partitions is None:
        asked = [(topic.name, list(topic.partitions)) for topic in image.topics.values()]
    else:
        asked = [(topic.topic, topic.partitions) for topic in request.topic_partitions]
    for name, partitions in asked:
        result = m.ElectLeadersResponse.ReplicaElectionResult(topic=name)
        for partition_id in partitions:
            answer = m.ElectLeadersResponse.PartitionResult(partition_id=partition_id, error_message=None)
            try:
                records.append(_elect(image, context, name, partition_id, request.election_type))
            except ApiError as error:
                if error.code == ErrorCode.ELECTION_NOT_NEEDED and request.topic_partitions is None:
                    continue
                answer.error_code, answer.error_message = error.code, error.message
            result.partition_result.append(answer)
        response.replica_election_results.append(result)
    return ControllerResult(response, records)


def _elect(
    image: ClusterImage, context: ControllerContext, name: str, partition_id: int, election_type: int
) -> m.PartitionChangeRecord:
    topic = image.topics.get(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    partition = topic.partitions.get(partition_id)
    if partition is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{partition_id}")
    preferred = election_type == PREFERRED
    if partition.leader == partition.preferred_leader if preferred else partition.leader != NO_LEADER:
        raise _without_message(ErrorCode.ELECTION_NOT_NEEDED)
    election = Election.PREFERRED if preferred else Election.UNCLEAN
    record = change_partition(image, context, topic, partition_id, election=election)
    if record is None:
        raise _without_message(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE if preferred else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        )
    return record


def _without_message(code: ErrorCode) -> ApiError:
    return ApiError(code, code.meaning)


def balance_leaders(
    image: ClusterImage, context: ControllerContext, limit: int = ELECTIONS_PER_TICK_MAX
) -> list[Message]:
    """Give leadership back to preferred replicas that are in sync again. Call again while `limit` records come back."""
    return _elect_where(
        image,
        context,
        lambda topic, partition: partition.leader != partition.preferred_leader,
        Election.PREFERRED,
        limit,
    )


def elect_unclean_leaders(
    image: ClusterImage, context: ControllerContext, limit: int = ELECTIONS_PER_TICK_MAX
) -> list[Message]:
    """Leaders for leaderless partitions of topics that would rather lose records than wait."""
    return _elect_where(
        image,
        context,
        lambda topic, partition: (
            partition.leader == NO_LEADER and is_unclean_election_enabled(image, context, topic.name)
        ),
        Election.UNCLEAN,
        limit,
    )


def _elect_where(
    image: ClusterImage,
    context: ControllerContext,
    wanted: Callable[[TopicImage, PartitionImage], bool],
    election: Election,
    limit: int,
) -> list[Message]:
    assert limit <= RECORDS_PER_COMMAND_MAX
    records: list[Message] = []
    for topic, partition_id, partition in image.partitions():
        if len(records) >= limit:
            break
        if wanted(topic, partition):
            record = change_partition(image, context, topic, partition_id, election=election)
            if record is not None:
                records.append(record)
    return records
