"""DescribeProducers (key 61), version 0. The idempotent and transactional producers a partition's leader remembers.

Each with its epoch, last sequence and timestamp, and where its open transaction began, or -1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.broker.replicas.manager import PartitionUnavailable
from moldau.broker.requests.access import TOPIC, may
from moldau.controller.acls import Operation
from moldau.controller.errors import ApiError
from moldau.controller.names import check_topic_name
from moldau.timers.turns import Slices
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAuthorizer, HasImage
    from moldau.broker.replicas.parts import HasReplicas

    class Needs(HasAuthorizer, HasImage, HasReplicas, Protocol):
        """What this file may touch."""


_PER_SLICE = 50  # partitions; then others get a turn
Answer = m.DescribeProducersResponse.PartitionResponse


def handle(broker: Needs, call: Call, request: m.DescribeProducersRequest) -> Slices[m.DescribeProducersResponse]:
    response = m.DescribeProducersResponse()
    answered = 0
    for topic in request.topics:
        error = _topic_error(broker, call, topic.name)
        answers = []
        for index in topic.partition_indexes:
            answers.append(_describe(broker, topic.name, index, error))
            answered += 1
            if answered % _PER_SLICE == 0:
                yield
        response.topics.append(m.DescribeProducersResponse.TopicResponse(topic.name, answers))
    return response


def _topic_error(broker: Needs, call: Call, topic: str) -> ApiError | None:
    try:
        check_topic_name(topic)
    except ApiError as error:
        return error
    if not may(broker, call, Operation.READ, TOPIC)(topic):
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return ApiError(code, code.meaning)
    if topic not in broker.image.topics:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ApiError(code, code.meaning)
    return None


def _describe(broker: Needs, topic: str, index: int, error: ApiError | None) -> Answer:
    answer = Answer(index, error_message=None)
    if error is not None:
        answer.error_code, answer.error_message = error.code, error.message
        return answer
    try:
        log = broker.replicas.leader(topic, index).log
    except PartitionUnavailable as unavailable:
        answer.error_code = unavailable.code
        return answer
    answer.active_producers = [m.DescribeProducersResponse.ProducerState(*each) for each in log.producers.active()]
    return answer
