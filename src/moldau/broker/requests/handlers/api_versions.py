"""ApiVersions (key 18), versions 0-4. What this node serves, and the features of the cluster.

Asked in a version nobody knows yet, it answers version 0 with UNSUPPORTED_VERSION and its own versions. Produce is
advertised from version 0 on although only 3-13 are served: librdkafka refuses to compress otherwise (KAFKA-18659). The
APIs of client telemetry are served to who calls them, and advertised if the cluster has a subscription.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.registry import ListenerKind, served_on
from moldau.controller.features import KRAFT_VERSION, SUPPORTED
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from moldau.wire.apis import API_VERSIONS

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController
    from moldau.broker.parts import HasConfig, HasImage
    from moldau.broker.requests.parts import HasTelemetry

    class Needs(HasController, HasConfig, HasImage, HasTelemetry, Protocol):
        """What this file may touch."""


_PRODUCE = 0
_TELEMETRY = frozenset({71, 72})  # GetTelemetrySubscriptions, PushTelemetry
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(broker: Needs, call: Call, request: m.ApiVersionsRequest) -> m.ApiVersionsResponse:
    if call.version >= 3:
        for text in (request.client_software_name, request.client_software_version):
            if not _SOFTWARE.fullmatch(text):
                return m.ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        call.session.client_software_name = request.client_software_name
        call.session.client_software_version = request.client_software_version
    image = broker.image
    kind: ListenerKind = "controller" if broker.is_controller_listener(call.connection.listener_name) else "broker"
    served = _served(kind)
    if not broker.telemetry.is_wanted(image):
        served = [each for each in served if each.api_key not in _TELEMETRY]
    response = m.ApiVersionsResponse(api_keys=served, finalized_features_epoch=image.offset)
    response.supported_features = [
        m.ApiVersionsResponse.SupportedFeatureKey(name, levels.first, levels.last)
        for name, levels in SUPPORTED.items()
        # Clients before version 4 refuse a minimum of zero (KAFKA-17011).
        if call.version >= 4 or levels.first > 0
    ]
    finalized = {**image.features, KRAFT_VERSION: broker.controller.kraft_version}
    response.finalized_features = [
        m.ApiVersionsResponse.FinalizedFeatureKey(name, level, level) for name, level in finalized.items() if level
    ]
    return response


def unsupported_version(kind: ListenerKind) -> m.ApiVersionsResponse:
    """What the client may ask again with, as Kafka says it: of this API alone."""
    own = [each for each in _served(kind) if each.api_key == API_VERSIONS]
    return m.ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)


@cache
def _served(kind: ListenerKind) -> list[m.ApiVersionsResponse.ApiVersion]:
    """Every new connection asks, and gets the same list; nobody changes it."""
    return [
        m.ApiVersionsResponse.ApiVersion(key, 0 if key == _PRODUCE else each.api.versions.first, each.api.versions.last)
        for key, each in served_on(kind).items()
    ]
