"""What the controller must know about configs, answered from the config tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from moldau.broker.config import (
    BrokerConfig,
    ConfigType,
    InvalidConfig,
    ResourceType,
    describe_topic,
    validate_resource,
)
from moldau.broker.config.alter import definitions_of
from moldau.broker.config.describe import ConfigEntry
from moldau.broker.config.values import render_value
from moldau.controller.errors import ApiError
from moldau.controller.image import ClusterImage, ConfigResource
from moldau.wire import ErrorCode
from moldau.wire import messages as m


class TableRules:
    """Implements `moldau.controller.context.ConfigRules`."""

    def __init__(self, config: Callable[[], BrokerConfig]) -> None:
        self._config = config
        # What all topics have in common, and by which config. One value: long commands are decided on a thread.
        self._plain: tuple[BrokerConfig, list[m.CreateTopicsResponse.CreatableTopicConfigs]] | None = None

    def validate(self, resource: ConfigResource, proposed: Mapping[str, str], current: Mapping[str, str]) -> None:
        try:
            validate_resource(ResourceType(resource.type), resource.name, proposed, self._config())
        except InvalidConfig as error:
            raise ApiError(ErrorCode(error.error_code), str(error)) from error

    def is_list(self, resource_type: int, name: str) -> bool:
        definition = definitions_of(ResourceType(resource_type)).get(name)
        return definition is not None and definition.type is ConfigType.LIST

    def default(self, resource_type: int, name: str) -> str | None:
        definition = definitions_of(ResourceType(resource_type)).get(name)
        return None if definition is None else definition.default_text

    def static_topic_default(self, name: str) -> str:
        return render_value(self._config().topic_defaults[name]) or ""

    def describe_topic(
        self, overrides: Mapping[str, str], image: ClusterImage
    ) -> list[m.CreateTopicsResponse.CreatableTopicConfigs]:
        """What all topics have in common is made once: a request may create thousands."""
        config = self._config()
        known = self._plain
        if known is None or known[0] is not config:
            known = self._plain = (config, [_as_told(entry) for entry in describe_topic({}, config)])
        plain = known[1]
        if not overrides:
            return list(plain)
        own = {entry.name: _as_told(entry) for entry in describe_topic(overrides, config, overrides.keys())}
        told = [own.pop(each.name, each) for each in plain]
        return sorted(told + list(own.values()), key=lambda each: each.name) if own else told


def _as_told(entry: ConfigEntry) -> m.CreateTopicsResponse.CreatableTopicConfigs:
    return m.CreateTopicsResponse.CreatableTopicConfigs(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
    )
