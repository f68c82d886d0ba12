"""AlterPartition: the leader of a partition says who is in sync. The change counts once it is committed."""

from __future__ import annotations

from moldau.controller.brokers import check_broker_epoch
from moldau.controller.context import ControllerContext, ControllerResult, is_unclean_election_enabled
from moldau.controller.errors import ApiError
from moldau.controller.fold import apply
from moldau.controller.image import RECOVERED, RECOVERING, ClusterImage, PartitionImage
from moldau.controller.partition_change import NO_LEADER_CHANGE, Election, change_partition
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Message

_ANY_EPOCH = -1


def alter_partition(
    image: ClusterImage, request: m.AlterPartitionRequest, context: ControllerContext
) -> ControllerResult[m.AlterPartitionResponse]:
    response = m.AlterPartitionResponse()
    records: list[Message] = []
    try:
        check_broker_epoch(image, request.broker_id, request.broker_epoch)
    except ApiError as error:
        response.error_code = error.code
        return ControllerResult(response, [], error.message)
    for asked in request.topics:
        topic_answer = m.AlterPartitionResponse.TopicData(topic_id=asked.topic_id)
        response.topics.append(topic_answer)
        for change in asked.partitions:
            answer = m.AlterPartitionResponse.PartitionData(partition_index=change.partition_index)
            topic_answer.partitions.append(answer)
            try:
                record = _isr_change(image, context, request.broker_id, asked.topic_id, change)
            except ApiError as error:
                answer.error_code = error.code
                continue
            if record is not None:
                records.append(record)
                image = apply(image, [record])
            if record is not None and record.leader not in (NO_LEADER_CHANGE, request.broker_id):
                # The change completed a reassignment that took the leadership away: written, and refused at once.
                answer.error_code = ErrorCode.NEW_LEADER_ELECTED
                continue
            _describe(answer, image, asked.topic_id)
    return ControllerResult(response, records)


def _describe(answer: m.AlterPartitionResponse.PartitionData, image: ClusterImage, topic_id: bytes) -> None:
    topic = image.topic_by_id(topic_id)
    assert topic is not None
    partition = topic.partitions[answer.partition_index]
    answer.leader_id = partition.leader
    answer.leader_epoch = partition.leader_epoch
    answer.isr = list(partition.isr)
    answer.leader_recovery_state = partition.leader_recovery_state
    answer.partition_epoch = partition.partition_epoch


def _isr_change(
    image: ClusterImage,
    context: ControllerContext,
    broker_id: int,
    topic_id: bytes,
    change: m.AlterPartitionRequest.PartitionData,
) -> m.PartitionChangeRecord | None:
    topic = image.topic_by_id(topic_id)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
    partition = topic.partitions.get(change.partition_index)
    if partition is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    # Version 2 has the bare ids; a broker that sends no epochs wants none checked.
    wanted = [(state.broker_id, state.broker_epoch) for state in change.new_isr_with_epochs]
    wanted = wanted or [(replica, _ANY_EPOCH) for replica in change.new_isr]
    new_isr = [replica for replica, _ in wanted]
    _check_epochs(partition, broker_id, change)
    _check_isr(partition, new_isr, change.leader_recovery_state)
    for replica, epoch in wanted:
        reason = _reason_ineligible(image, replica, epoch)
        if reason is not None:
            raise ApiError(ErrorCode.INELIGIBLE_REPLICA, f"{replica} ({reason})")
    unclean = is_unclean_election_enabled(image, context, topic.name)
    return change_partition(
        image,
        context,
        topic,
        change.partition_index,
        election=Election.UNCLEAN if unclean else Election.ONLINE,
        isr=new_isr,
        recovery_state=change.leader_recovery_state,
    )


def _check_epochs(partition: PartitionImage, broker_id: int, change: m.AlterPartitionRequest.PartitionData) -> None:
    if change.leader_epoch > partition.leader_epoch or change.partition_epoch > partition.partition_epoch:
        # The leader knows more than this controller: there must be another one.
        raise ApiError(ErrorCode.NOT_CONTROLLER)
    if change.leader_epoch < partition.leader_epoch:
        raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
    if broker_id != partition.leader:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    if change.partition_epoch < partition.partition_epoch:
        raise ApiError(ErrorCode.INVALID_UPDATE_VERSION)


def _check_isr(partition: PartitionImage, new_isr: list[int], recovery_state: int) -> None:
    members = set(new_isr)
    if len(members) != len(new_isr) or not members <= set(partition.replicas) or partition.leader not in members:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    if recovery_state == RECOVERING and (len(new_isr) > 1 or partition.leader_recovery_state == RECOVERED):
        raise ApiError(ErrorCode.INVALID_REQUEST)


def _reason_ineligible(image: ClusterImage, replica: int, epoch: int) -> str | None:
    broker = image.brokers.get(replica)
    if broker is None:
        return "not registered"
    if broker.in_controlled_shutdown:
        return "shutting down"
    if broker.fenced:
        return "fenced"
    if epoch not in (_ANY_EPOCH, broker.epoch):
        # It caught up in an earlier incarnation; what it has now is not known.
        return f"broker epoch mismatch: requested={epoch} VS expected={broker.epoch}"
    return None
