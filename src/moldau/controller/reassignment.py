"""AlterPartitionReassignments and ListPartitionReassignments: replicas move from some brokers to others.

A reassignment adds the new replicas to the old, waits until the new ones are in sync, and then drops those that shall
go. The first step is made here; the last one happens within the ISR change that completes it.
"""

from __future__ import annotations

from moldau.controller.context import ControllerContext, ControllerResult, is_unclean_election_enabled
from moldau.controller.errors import ApiError
from moldau.controller.fold import apply
from moldau.controller.image import ClusterImage, PartitionImage, TopicImage
from moldau.controller.partition_change import Election, change_partition
from moldau.controller.topics import check_manual_assignment
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Message


def alter_partition_reassignments(
    image: ClusterImage, request: m.AlterPartitionReassignmentsRequest, context: ControllerContext
) -> ControllerResult[m.AlterPartitionReassignmentsResponse]:
    """Partitions with replicas get a new target; those with null are put back as they were."""
    response = m.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None
    )
    records: list[Message] = []
    for asked in request.topics:
        topic_answer = m.AlterPartitionReassignmentsResponse.ReassignableTopicResponse(name=asked.name)
        response.responses.append(topic_answer)
        for target in asked.partitions:
            answer = m.AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
                partition_index=target.partition_index, error_message=None
            )
            topic_answer.partitions.append(answer)
            try:
                record = _reassign(
                    image, context, asked.name, target, same_factor=not request.allow_replication_factor_change
                )
            except ApiError as error:
                answer.error_code, answer.error_message = error.code, error.message
                continue
            if record is not None:
                records.append(record)
                image = apply(image, [record])
    return ControllerResult(response, records)


def _reassign(
    image: ClusterImage,
    context: ControllerContext,
    name: str,
    target: m.AlterPartitionReassignmentsRequest.ReassignablePartition,
    *,
    same_factor: bool,
) -> m.PartitionChangeRecord | None:
    topic = image.topics.get(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    number = target.partition_index
    partition = topic.partitions.get(number)
    if partition is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{number}.")
    if target.replicas is None:
        return _cancel(image, context, topic, number, partition)
    if same_factor:
        _check_factor(partition, len(target.replicas))
    check_manual_assignment(image, target.replicas, None)
    removing = sorted(set(partition.replicas) - set(target.replicas))
    # Replicas that an earlier reassignment was adding, and that stay wanted, are still being added.
    adding = sorted(set(target.replicas) - (set(partition.replicas) - set(partition.adding_replicas)))
    return change_partition(
        image, context, topic, number, replicas=[*target.replicas, *removing], removing=removing, adding=adding
    )


def _check_factor(partition: PartitionImage, wanted: int) -> None:
    present = len(set(partition.replicas) | set(partition.adding_replicas))
    if partition.is_reassigning:
        present = len((set(partition.replicas) | set(partition.adding_replicas)) - set(partition.removing_replicas))
    if present != wanted:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"The replication factor is changed from {present} to {wanted}"
        )


def _cancel(
    image: ClusterImage, context: ControllerContext, topic: TopicImage, number: int, partition: PartitionImage
) -> m.PartitionChangeRecord | None:
    if not partition.is_reassigning:
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    replicas = [replica for replica in partition.replicas if replica not in partition.adding_replicas]
    isr = [replica for replica in partition.isr if replica not in partition.adding_replicas]
    unclean = is_unclean_election_enabled(image, context, topic.name)
    if not replicas:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Invalid replica assignment: addingReplicas contains all replicas."
        )
    if not isr:
        # Only the new replicas are in sync: going back would lose what the old ones do not have.
        if not unclean:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {topic.name}:{number} because it would require an unclean "
                "leader election.",
            )
        # Whoever is alive is elected, uncleanly. With nobody there, and no ELR, the ISR must still not be empty.
        if not image.is_elr_enabled and not any(image.is_active(replica) for replica in replicas):
            isr = [replicas[0]]
    return change_partition(
        image,
        context,
        topic,
        number,
        election=Election.UNCLEAN if unclean else Election.ONLINE,
        isr=isr,
        replicas=replicas,
        removing=[],
        adding=[],
    )


def list_partition_reassignments(
    image: ClusterImage, request: m.ListPartitionReassignmentsRequest
) -> m.ListPartitionReassignmentsResponse:
    response = m.ListPartitionReassignmentsResponse(error_message=None)
    if request.topics is None:
        asked = [(topic, list(topic.partitions)) for topic in image.topics.values()]
    else:
        asked = [
            (image.topics[wanted.name], wanted.partition_indexes)
            for wanted in request.topics
            if wanted.name in image.topics
        ]
    for topic, numbers in asked:
        ongoing = [
            m.ListPartitionReassignmentsResponse.OngoingPartitionReassignment(
                number, list(partition.replicas), list(partition.adding_replicas), list(partition.removing_replicas)
            )
            for number in numbers
            if (partition := topic.partitions.get(number)) is not None and partition.is_reassigning
        ]
        if ongoing:
            response.topics.append(m.ListPartitionReassignmentsResponse.OngoingTopicReassignment(topic.name, ongoing))
    return response
