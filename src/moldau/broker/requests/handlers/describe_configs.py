"""DescribeConfigs (key 32), versions 1-4. Settings of topics, this broker, its loggers, groups and client metrics.

Every setting with its value, where that comes from, whether it can be changed, and (from version 3 on) its type; on
demand with synonyms and documentation. A broker describes itself, or with an empty name what is set for all of them.
Values of passwords are left out. An answer has at most 256 MiB of settings; what is beyond is INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from moldau.broker.config import (
    ConfigEntry,
    ConfigSource,
    describe_broker,
    describe_broker_default,
    describe_client_metrics,
    describe_group,
    describe_topic,
    loggers,
)
from moldau.broker.config.definition import ResourceType
from moldau.broker.config.values import ConfigType
from moldau.broker.requests.access import may
from moldau.broker.requests.config_changes import acl_resource, parse_node_id
from moldau.broker.requests.permissions import ERRORS
from moldau.broker.requests.pieces import chunks
from moldau.controller.acls import Operation as AclOperation
from moldau.controller.errors import ApiError
from moldau.controller.names import check_topic_name
from moldau.timers.turns import Slices
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAuthorizer, HasConfig, HasIdentity, HasImage

    class Needs(HasAuthorizer, HasConfig, HasIdentity, HasImage, Protocol):
        """What this file may touch."""


Result = m.DescribeConfigsResponse.DescribeConfigsResult
Resource = m.DescribeConfigsRequest.DescribeConfigsResource
Setting = m.DescribeConfigsResponse.DescribeConfigsResourceResult
_LOOKED_AT = 10_000
_PER_SLICE = 200  # settings
_FEW_KEYS = 10
_ANSWER_BYTES_MAX = 256 << 20
_OVERHEAD_BYTES = 10
_REMEMBERED_MAX = 10_000
_TYPES = frozenset(
    {
        ResourceType.TOPIC,
        ResourceType.BROKER,
        ResourceType.BROKER_LOGGER,
        ResourceType.CLIENT_METRICS,
        ResourceType.GROUP,
    }
)


def handle(broker: Needs, call: Call, request: m.DescribeConfigsRequest) -> Slices[m.DescribeConfigsResponse]:
    response = m.DescribeConfigsResponse()
    refused: list[Result] = []
    # A kind of resource nobody knows fails the whole request, as in Kafka: the client is newer than this broker.
    is_senseless = False
    for part in chunks(request.resources, _LOOKED_AT):
        is_senseless = is_senseless or any(resource.resource_type not in _TYPES for resource in part)
        if len(part) == _LOOKED_AT:
            yield
    left = _PER_SLICE
    told = _Told(broker, request)
    for resource in request.resources:
        result = Result(resource_type=resource.resource_type, resource_name=resource.resource_name)
        left -= 1
        if is_senseless:
            response.results.append(result)
            result.error_code = ErrorCode.INVALID_REQUEST
            result.error_message = ErrorCode.INVALID_REQUEST.meaning
        elif (code := _refusal(broker, call, resource)) is not None:
            result.error_code, result.error_message = code, code.meaning
            refused.append(result)
        else:
            response.results.append(result)
            try:
                result.configs = told.of(resource)
            except ApiError as error:
                result.error_code, result.error_message = error.code, error.message
            left -= len(result.configs)
        if left <= 0:
            left = _PER_SLICE
            yield
    response.results += refused
    return response


class _Told:
    """The settings of an answer. What is the same is there once, however often it is told, and all together are
    bounded: a name in a request is a few bytes, and the settings of what it names are tens of thousands."""

    def __init__(self, broker: Needs, request: m.DescribeConfigsRequest) -> None:
        self._broker = broker
        self._request = request
        self._left_bytes = _ANSWER_BYTES_MAX
        self._whole: dict[tuple[int, str], list[Setting]] = {}
        self._settings: dict[ConfigEntry, Setting] = {}

    def of(self, resource: Resource) -> list[Setting]:
        """ApiError if it cannot be told."""
        key = resource.resource_type, resource.resource_name
        found = self._whole.get(key) if resource.configuration_keys is None else None
        if found is None:
            found = [self._setting(entry) for entry in _describe(self._broker, *key, _keys(resource))]
            if resource.configuration_keys is None:
                self._whole[key] = found
        self._left_bytes -= sum(map(_size, found))
        if self._left_bytes < 0:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "The answer would be too large: ask for fewer resources at a time."
            )
        return found

    def _setting(self, entry: ConfigEntry) -> Setting:
        setting = self._settings.get(entry)
        if setting is None:
            if len(self._settings) >= _REMEMBERED_MAX:
                self._settings.clear()
            setting = self._settings[entry] = _to_wire(entry, self._request)
        return setting


def _size(setting: Setting) -> int:
    """About how many bytes it takes to say it."""
    synonyms = sum(_OVERHEAD_BYTES + len(each.name) + len(each.value or "") for each in setting.synonyms)
    own = len(setting.name) + len(setting.value or "") + len(setting.documentation or "")
    return _OVERHEAD_BYTES + own + synonyms


def _keys(resource: Resource) -> Collection[str] | None:
    keys = resource.configuration_keys
    return keys if keys is None or len(keys) <= _FEW_KEYS else frozenset(keys)


def _refusal(broker: Needs, call: Call, resource: Resource) -> ErrorCode | None:
    kind, name = acl_resource(resource.resource_type, resource.resource_name)
    return None if may(broker, call, AclOperation.DESCRIBE_CONFIGS, kind)(name) else ERRORS[kind]


def _describe(broker: Needs, resource_type: int, name: str, keys: Collection[str] | None) -> list[ConfigEntry]:
    image, config = broker.image, broker.config
    if resource_type == ResourceType.TOPIC:
        check_topic_name(name)
        if name not in image.topics:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
        return describe_topic(image.config(resource_type, name), config, keys)
    if resource_type == ResourceType.BROKER:
        if not name:
            return describe_broker_default(config, keys)
        _check_broker(broker, name, or_empty=" or empty string,")
        return describe_broker(config, keys)
    if resource_type == ResourceType.BROKER_LOGGER:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        _check_broker(broker, name, or_empty="")
        return [
            _logger_entry(logger, level) for logger, level in loggers.levels().items() if not keys or logger in keys
        ]
    if resource_type == ResourceType.CLIENT_METRICS:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        return describe_client_metrics(image.config(resource_type, name), keys)
    if not name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
    return describe_group(image.config(resource_type, name), config, keys)


def _check_broker(broker: Needs, name: str, *, or_empty: str) -> None:
    node_id = parse_node_id(name)
    if node_id is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    if node_id != broker.node_id:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {broker.node_id}{or_empty} but received {name}",
        )


def _logger_entry(name: str, level: str) -> ConfigEntry:
    source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
    return ConfigEntry(name, level, source, False, False, (), ConfigType.UNKNOWN, None)


def _to_wire(entry: ConfigEntry, request: m.DescribeConfigsRequest) -> Setting:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return Setting(
        entry.name,
        entry.value,
        entry.read_only,
        entry.source,
        entry.is_sensitive,
        [m.DescribeConfigsResponse.DescribeConfigsSynonym(each.name, each.value, each.source) for each in synonyms],
        entry.type,
        entry.documentation if request.include_documentation else None,
    )
