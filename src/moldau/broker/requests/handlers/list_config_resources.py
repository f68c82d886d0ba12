"""ListConfigResources (key 74), versions 0-1. Names of resources that have, or may have, settings.

Version 0 lists client metrics subscriptions. From 1 on it lists the kinds asked for, or all with none: topics, brokers,
their loggers, and the subscriptions and groups that have settings. A kind nobody knows is UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.broker.config.definition import ResourceType
from moldau.controller.image import ClusterImage
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasImage

_KINDS = (
    ResourceType.GROUP,
    ResourceType.CLIENT_METRICS,
    ResourceType.BROKER_LOGGER,
    ResourceType.BROKER,
    ResourceType.TOPIC,
)


def handle(broker: HasImage, call: Call, request: m.ListConfigResourcesRequest) -> m.ListConfigResourcesResponse:
    wanted = set(request.resource_types) or set(_KINDS)
    if call.version == 0:
        wanted = {ResourceType.CLIENT_METRICS}
    if not wanted.issubset(_KINDS):
        return m.ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return m.ListConfigResourcesResponse(
        config_resources=[
            m.ListConfigResourcesResponse.ConfigResource(name, kind)
            for kind in _KINDS
            if kind in wanted
            for name in _names(broker.image, kind)
        ]
    )


def _names(image: ClusterImage, kind: ResourceType) -> list[str]:
    if kind is ResourceType.TOPIC:
        return list(image.topics)
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return [str(broker_id) for broker_id in image.brokers]
    return [resource.name for resource, settings in image.configs.items() if resource.type == kind and settings]
