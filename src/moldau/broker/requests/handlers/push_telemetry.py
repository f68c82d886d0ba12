"""PushTelemetry (key 72), version 0. A client's metrics, handed to the node's telemetry receiver (KIP-714).

Refused: an instance id that cannot be one, or anything after the client said goodbye (INVALID_REQUEST); a push before
its time (THROTTLING_QUOTA_EXCEEDED); for a subscription it no longer has (UNKNOWN_SUBSCRIPTION_ID); in a compression
nobody knows (UNSUPPORTED_COMPRESSION_TYPE); larger than `telemetry.max.bytes` (TELEMETRY_TOO_LARGE); unreadable
(INVALID_RECORD).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.handlers.get_telemetry_subscriptions import client_of
from moldau.broker.requests.telemetry import Instance, Push, check_push, is_usable_instance_id
from moldau.records import Codec, RecordsError, decompress
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasConfig, HasImage, HasLoop, HasTime, HasTurns
    from moldau.broker.requests.parts import HasTelemetry

    class Needs(HasConfig, HasImage, HasLoop, HasTime, HasTurns, HasTelemetry, Protocol):
        """What this file may touch."""


_log = logging.getLogger(__name__)
# Metrics are text-like and repeat themselves; more than this is an attack.
_DECOMPRESSED_RATIO_MAX = 64


async def handle(broker: Needs, call: Call, request: m.PushTelemetryRequest) -> m.PushTelemetryResponse:
    if not is_usable_instance_id(request.client_instance_id):
        return m.PushTelemetryResponse(error_code=ErrorCode.INVALID_REQUEST)
    now_ms = broker.clock.monotonic_ms()
    client = client_of(call, request.client_instance_id)
    instance = await broker.in_turns(broker.telemetry.instance(broker.image, call.connection, client, now_ms))
    max_bytes = broker.config.get_int("telemetry.max.bytes")
    error = check_push(
        instance,
        subscription_id=request.subscription_id,
        compression_type=request.compression_type,
        size_bytes=len(request.metrics),
        is_terminating=request.terminating,
        now_ms=now_ms,
        max_bytes=max_bytes,
    )
    if error is not ErrorCode.NONE or not request.metrics:
        return m.PushTelemetryResponse(error_code=error)
    if request.compression_type == Codec.NONE:
        return _receive(broker, instance, Push(instance.client, bytes(request.metrics), request.terminating))
    return await _decompress_and_receive(broker, instance, request, max_bytes * _DECOMPRESSED_RATIO_MAX)


async def _decompress_and_receive(
    broker: Needs, instance: Instance, request: m.PushTelemetryRequest, max_bytes: int
) -> m.PushTelemetryResponse:
    work = partial(decompress, Codec(request.compression_type), request.metrics, max_bytes)
    try:
        metrics = await broker.loop.run_in_executor(broker.executor, work)
    except RecordsError as error:
        _log.info("metrics of %s cannot be read: %s", instance.client, error)
        instance.last_error = ErrorCode.INVALID_RECORD
        return m.PushTelemetryResponse(error_code=ErrorCode.INVALID_RECORD)
    return _receive(broker, instance, Push(instance.client, metrics, request.terminating))


def _receive(broker: Needs, instance: Instance, push: Push) -> m.PushTelemetryResponse:
    try:
        broker.telemetry.receiver.receive(push)
    except Exception:  # somebody else's code: it must not take the connection down
        _log.exception("the telemetry receiver failed")
        instance.last_error = ErrorCode.INVALID_RECORD
        return m.PushTelemetryResponse(error_code=ErrorCode.INVALID_RECORD)
    return m.PushTelemetryResponse()
