"""GetTelemetrySubscriptions (key 71), version 0. What this client shall push, how often, and under which id (KIP-714).

A client without an instance id gets one. Asking again before the push interval is over is THROTTLING_QUOTA_EXCEEDED,
unless the subscription changed or the last push failed because of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.telemetry import Client, check_get
from moldau.records import Codec
from moldau.timers.turns import Slices
from moldau.wire import ZERO_UUID, ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasConfig, HasImage, HasTime
    from moldau.broker.requests.parts import HasTelemetry

    class Needs(HasConfig, HasImage, HasTime, HasTelemetry, Protocol):
        """What this file may touch."""


_ACCEPTED = [Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY]  # best first


def handle(
    broker: Needs, call: Call, request: m.GetTelemetrySubscriptionsRequest
) -> Slices[m.GetTelemetrySubscriptionsResponse]:
    now_ms = broker.clock.monotonic_ms()
    instance_id = request.client_instance_id
    if instance_id == ZERO_UUID:
        instance_id = broker.telemetry.new_instance_id()
    client = client_of(call, instance_id)
    instance = yield from broker.telemetry.instance(broker.image, call.connection, client, now_ms)
    error = check_get(instance, now_ms)
    if error is not ErrorCode.NONE:
        return m.GetTelemetrySubscriptionsResponse(error_code=error)
    return m.GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=instance.subscription_id,
        accepted_compression_types=[int(codec) for codec in _ACCEPTED],
        push_interval_ms=instance.interval_ms,
        telemetry_max_bytes=broker.config.get_int("telemetry.max.bytes"),
        delta_temporality=True,
        requested_metrics=list(instance.metrics),
    )


def client_of(call: Call, instance_id: bytes) -> Client:
    session, connection = call.session, call.connection
    return Client(
        instance_id,
        call.client_id,
        session.client_software_name,
        session.client_software_version,
        connection.peer_host,
        connection.peer_port,
    )
