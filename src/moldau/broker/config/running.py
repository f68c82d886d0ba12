"""Broker settings that change while the node runs: from the cluster's image to this node's config.

Invariant: a setting the image has and this node cannot use never stops it: the rest is applied, or the config stays.
"""

from __future__ import annotations

import logging

from moldau.broker.config import BrokerConfig, InvalidConfig, usable_dynamic_settings, with_dynamic_settings
from moldau.controller.delta import ImageDelta
from moldau.controller.image import CLUSTER_DEFAULTS, ClusterImage, ConfigResource, ResourceType

_log = logging.getLogger(__name__)


def updated_config(config: BrokerConfig, image: ClusterImage, delta: ImageDelta) -> BrokerConfig:
    """The config after a change of the image; the same object if nothing in it concerns this node."""
    own = ConfigResource(ResourceType.BROKER, str(config.node_id))
    if own not in delta.configs and CLUSTER_DEFAULTS not in delta.configs:
        return config
    for_all = usable_dynamic_settings(image.config(*CLUSTER_DEFAULTS), per_broker=False, report=_log.warning)
    for_this = usable_dynamic_settings(image.config(*own), per_broker=True, report=_log.warning)
    try:
        return with_dynamic_settings(config, for_all, for_this)
    except InvalidConfig as error:
        _log.error("the dynamic broker settings contradict each other, so the former ones stay: %s", error)
        return config
