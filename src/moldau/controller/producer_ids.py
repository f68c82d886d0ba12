"""AllocateProducerIds: blocks of a thousand ids, each given out once, to one broker."""

from __future__ import annotations

from moldau.controller.brokers import check_broker_epoch
from moldau.controller.context import ControllerContext, ControllerResult
from moldau.controller.errors import ApiError
from moldau.controller.image import ClusterImage
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode

BLOCK_SIZE = 1000
_LAST_ID = (1 << 63) - 1


def allocate_producer_ids(
    image: ClusterImage, request: m.AllocateProducerIdsRequest, _context: ControllerContext
) -> ControllerResult[m.AllocateProducerIdsResponse]:
    first = image.next_producer_id
    try:
        check_broker_epoch(image, request.broker_id, request.broker_epoch)
    except ApiError as error:
        return ControllerResult(m.AllocateProducerIdsResponse(0, error.code), [], error.message)
    if first > _LAST_ID - BLOCK_SIZE:
        return ControllerResult(
            m.AllocateProducerIdsResponse(0, ErrorCode.UNKNOWN_SERVER_ERROR), [], "Exhausted all producer ids."
        )
    record = m.ProducerIdsRecord(request.broker_id, request.broker_epoch, first + BLOCK_SIZE)
    return ControllerResult(m.AllocateProducerIdsResponse(0, ErrorCode.NONE, first, BLOCK_SIZE), [record])
