"""WriteTxnMarkers (key 27), versions 1-2. A transaction coordinator ends transactions in partitions led here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.broker.txn_markers import Marker, write_marker
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.calls import Call

Result = m.WriteTxnMarkersResponse.WritableTxnMarkerResult
TopicResult = m.WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
PartitionResult = m.WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


def handle(broker: Broker, call: Call, request: m.WriteTxnMarkersRequest) -> m.WriteTxnMarkersResponse:
    results = []
    for each in request.markers:
        marker = Marker(
            each.producer_id,
            each.producer_epoch,
            each.coordinator_epoch,
            each.transaction_result,
            each.transaction_version,
        )
        topics = [
            TopicResult(
                topic.name,
                [
                    PartitionResult(index, write_marker(broker, topic.name, index, marker))
                    for index in topic.partition_indexes
                ],
            )
            for topic in each.topics
        ]
        results.append(Result(each.producer_id, topics))
    return m.WriteTxnMarkersResponse(markers=results)
