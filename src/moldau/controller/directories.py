"""AssignReplicasToDirs: a broker says in which of its directories its replicas lie."""

from __future__ import annotations

from moldau.controller.brokers import check_broker_epoch
from moldau.controller.context import ControllerContext, ControllerResult, is_unclean_election_enabled
from moldau.controller.errors import ApiError
from moldau.controller.features import DIRECTORY_ASSIGNMENT_FROM
from moldau.controller.fold import apply
from moldau.controller.image import NO_LEADER, BrokerRegistration, ClusterImage
from moldau.controller.partition_change import Election, change_partition
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Message


def assign_replicas_to_dirs(
    image: ClusterImage, request: m.AssignReplicasToDirsRequest, context: ControllerContext
) -> ControllerResult[m.AssignReplicasToDirsResponse]:
    response = m.AssignReplicasToDirsResponse()
    records: list[Message] = []
    try:
        broker = check_broker_epoch(image, request.broker_id, request.broker_epoch)
    except ApiError as error:
        response.error_code = error.code
        return ControllerResult(response, [], error.message)
    if image.metadata_version < DIRECTORY_ASSIGNMENT_FROM:
        response.error_code = ErrorCode.UNSUPPORTED_VERSION
        return ControllerResult(response, [], "Directory assignment is not supported yet.")
    for asked_dir in request.directories:
        dir_answer = m.AssignReplicasToDirsResponse.DirectoryData(id=asked_dir.id)
        response.directories.append(dir_answer)
        for asked in asked_dir.topics:
            topic_answer = m.AssignReplicasToDirsResponse.TopicData(topic_id=asked.topic_id)
            dir_answer.topics.append(topic_answer)
            for partition in asked.partitions:
                answer = m.AssignReplicasToDirsResponse.PartitionData(partition_index=partition.partition_index)
                topic_answer.partitions.append(answer)
                try:
                    where = (asked.topic_id, partition.partition_index)
                    made = _assign(image, context, broker, asked_dir.id, where)
                except ApiError as error:
                    answer.error_code = error.code
                    continue
                records += made
                image = apply(image, made)
    return ControllerResult(response, records)


def _assign(
    image: ClusterImage,
    context: ControllerContext,
    broker: BrokerRegistration,
    directory: bytes,
    where: tuple[bytes, int],
) -> list[Message]:
    topic_id, number = where
    topic = image.topic_by_id(topic_id)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
    partition = topic.partitions.get(number)
    if partition is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if broker.broker_id not in partition.replicas:
        raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    former = dict(zip(partition.replicas, partition.directories, strict=True))[broker.broker_id]
    # With no other replica there is nobody to wait for: it goes on with nothing.
    is_new = len(partition.replicas) > 1 and not broker.has_online_dir(former)
    record = change_partition(
        image,
        context,
        topic,
        number,
        directories={broker.broker_id: directory},
        made_anew=broker.broker_id if is_new else None,
    )
    records: list[Message] = [] if record is None else [record]
    image = apply(image, records)
    if broker.has_online_dir(directory):
        if partition.leader != NO_LEADER:
            return records
        # Perhaps nobody could lead because this replica's disk is a new one, and the controller knew only the old.
        elected = change_partition(image, context, image.topics[topic.name], number)
        return records if elected is None else [*records, elected]
    # The directory has failed in the meantime, and the replica with it.
    unclean = is_unclean_election_enabled(image, context, topic.name)
    failed = change_partition(
        image,
        context,
        image.topics[topic.name],
        number,
        election=Election.UNCLEAN if unclean else Election.ONLINE,
        isr=[replica for replica in partition.isr if replica != broker.broker_id],
    )
    return records if failed is None else [*records, failed]
