"""WriteTxnMarkers (key 27), versions 1-2. A transaction coordinator ends transactions in partitions led here.

Answered when every marker is committed, or has failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.broker.coordinators.txn_markers import Marker, write_marker
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.txn_markers import Needs as TxnMarkersNeeds


Result = m.WriteTxnMarkersResponse.WritableTxnMarkerResult
TopicResult = m.WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
PartitionResult = m.WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


def handle(broker: TxnMarkersNeeds, call: Call, request: m.WriteTxnMarkersRequest) -> None:
    response = m.WriteTxnMarkersResponse()
    waiting = 1  # this function itself

    def one_less() -> None:
        nonlocal waiting
        waiting -= 1
        if waiting == 0:
            call.respond(response)

    for each in request.markers:
        marker = Marker(
            each.producer_id,
            each.producer_epoch,
            each.coordinator_epoch,
            each.transaction_result,
            each.transaction_version,
        )
        result = Result(each.producer_id, [])
        response.markers.append(result)
        for topic in each.topics:
            told = TopicResult(topic.name, [PartitionResult(index, 0) for index in topic.partition_indexes])
            result.topics.append(told)
            for place in told.partitions:
                waiting += 1

                def on_written(error: ErrorCode, place: PartitionResult = place) -> None:
                    place.error_code = error
                    one_less()

                write_marker(broker, topic.name, place.partition_index, marker, on_written)
    one_less()
