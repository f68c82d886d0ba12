"""WriteTxnMarkers (key 27), versions 1-2. A transaction coordinator ends transactions in partitions led here.

Answered when every marker is committed, or has failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from moldau.broker.coordinators.txn_markers import Marker, write_marker
from moldau.broker.requests.pieces import is_long
from moldau.timers.turns import Slices, at_once
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.coordinators.txn_markers import Needs as TxnMarkersNeeds
    from moldau.broker.parts import HasTurns

    class Needs(TxnMarkersNeeds, HasTurns, Protocol):
        """What this file may touch."""


Result = m.WriteTxnMarkersResponse.WritableTxnMarkerResult
TopicResult = m.WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
PartitionResult = m.WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


_PER_TURN = 50  # markers


def handle(broker: Needs, call: Call, request: m.WriteTxnMarkersRequest) -> Awaitable[m.WriteTxnMarkersResponse] | None:
    response = m.WriteTxnMarkersResponse()
    if len(request.markers) > _PER_TURN or any(is_long(each.topics, _indexes) for each in request.markers):
        return _in_turns(broker, request, response)
    written = _Written(lambda: call.respond(response))
    at_once(_write_all(broker, request, response, written))
    written.one_less()
    return None


def _indexes(topic: m.WriteTxnMarkersRequest.WritableTxnMarkerTopic) -> list[int]:
    return topic.partition_indexes


async def _in_turns(
    broker: Needs, request: m.WriteTxnMarkersRequest, response: m.WriteTxnMarkersResponse
) -> m.WriteTxnMarkersResponse:
    """Of very many."""
    all_of_them = asyncio.Event()
    written = _Written(all_of_them.set)
    await broker.in_turns(_write_all(broker, request, response, written))
    written.one_less()
    await all_of_them.wait()
    return response


class _Written:
    """Calls `then` when nothing is waited for any more: the markers, and whoever asks for them."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.waiting = 1
        self._then = then

    def one_less(self) -> None:
        self.waiting -= 1
        if self.waiting == 0:
            self._then()

    def on_written(self, place: PartitionResult, error: ErrorCode) -> None:
        place.error_code = error
        self.one_less()


def _write_all(
    broker: Needs, request: m.WriteTxnMarkersRequest, response: m.WriteTxnMarkersResponse, written: _Written
) -> Slices[None]:
    left = _PER_TURN
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
        left -= 1
        for topic in each.topics:
            told = TopicResult(topic.name, [])
            result.topics.append(told)
            left -= 1
            for index in topic.partition_indexes:
                place = PartitionResult(index, 0)
                told.partitions.append(place)
                written.waiting += 1
                write_marker(broker, topic.name, index, marker, partial(written.on_written, place))
                left -= 1
                if left <= 0:
                    left = _PER_TURN
                    yield
        if left <= 0:
            left = _PER_TURN
            yield
