"""IncrementalAlterConfigs and AlterConfigs. A resource gets all of its changes, or none.

What is valid is for the injected ConfigRules to say; what the controller adds is what it alone knows: whether the
resource exists, and that min.insync.replicas must mean the same on every broker while eligible leader replicas are on
(every change of it also clears the ELRs, which were computed with the old value).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from moldau.controller.context import MIN_INSYNC_REPLICAS, ControllerContext, ControllerResult
from moldau.controller.errors import ApiError
from moldau.controller.features import CORDONED_LOG_DIRS_FROM, release_name
from moldau.controller.image import (
    CLUSTER_DEFAULTS,
    RESOURCE_TYPE_NAMES,
    ClusterImage,
    ConfigResource,
    ResourceType,
)
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Message

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
_OPERATION_NAMES = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}
_VALUE_LENGTH_MAX = 32767
_CORDONED_LOG_DIRS = "cordoned.log.dirs"

T = TypeVar("T")


def incremental_alter_configs(
    image: ClusterImage, request: m.IncrementalAlterConfigsRequest, context: ControllerContext
) -> ControllerResult[m.IncrementalAlterConfigsResponse]:
    response = m.IncrementalAlterConfigsResponse()

    def records_for(asked: m.IncrementalAlterConfigsRequest.AlterConfigsResource) -> list[Message]:
        return _incremental_records(image, context, _resource(asked), asked.configs)

    records = _each_once(request.resources, response, records_for)
    records += clear_elr_records(image, records)
    return ControllerResult(response, [] if request.validate_only else records)


def alter_configs(
    image: ClusterImage, request: m.AlterConfigsRequest, context: ControllerContext
) -> ControllerResult[m.AlterConfigsResponse]:
    """The old way: what the request does not mention is removed."""
    response = m.AlterConfigsResponse()

    def records_for(asked: m.AlterConfigsRequest.AlterConfigsResource) -> list[Message]:
        resource = _resource(asked)
        _check_keys([config.name for config in asked.configs], [c.name for c in asked.configs if c.value is None])
        wanted: dict[str, str | None] = dict.fromkeys(image.config(*resource))
        wanted |= {config.name: config.value for config in asked.configs}
        return setting_records(image, context, resource, wanted)

    records = _each_once(request.resources, response, records_for)
    records += clear_elr_records(image, records)
    return ControllerResult(response, [] if request.validate_only else records)


class _Asked(Protocol):
    resource_type: int
    resource_name: str


AskedT = TypeVar("AskedT", bound=_Asked)


def _resource(asked: _Asked) -> ConfigResource:
    return ConfigResource(asked.resource_type, asked.resource_name)


def _each_once(
    resources: Sequence[AskedT],
    response: m.AlterConfigsResponse | m.IncrementalAlterConfigsResponse,
    records_for: Callable[[AskedT], list[Message]],
) -> list[Message]:
    """The records of all resources that may change, and one answer for each of them; `records_for` raises ApiError."""
    records: list[Message] = []
    duplicates = _duplicates(_resource(each) for each in resources)
    answered: set[ConfigResource] = set()
    answers: list[Any] = response.responses
    for asked in resources:
        resource = _resource(asked)
        if resource in answered:
            continue
        answered.add(resource)
        result = type(response).AlterConfigsResourceResponse(
            resource_type=asked.resource_type, resource_name=asked.resource_name, error_message=None
        )
        try:
            _check_resource(resource, duplicates)
            records += records_for(asked)
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
        answers.append(result)
    return records


def _duplicates(resources: Iterable[ConfigResource]) -> set[ConfigResource]:
    seen: set[ConfigResource] = set()
    twice: set[ConfigResource] = set()
    for resource in resources:
        (twice if resource in seen else seen).add(resource)
    return twice


def _check_resource(resource: ConfigResource, duplicates: set[ConfigResource]) -> None:
    if resource.type not in RESOURCE_TYPE_NAMES:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.type}")
    if resource in duplicates:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate resource.")
    if resource.type == ResourceType.BROKER_LOGGER:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Unexpected resource type BROKER_LOGGER.")


def _check_keys(names: list[str], without_value: list[str]) -> None:
    if len(set(names)) != len(names):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    if without_value:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(without_value)}")


def _incremental_records(
    image: ClusterImage,
    context: ControllerContext,
    resource: ConfigResource,
    configs: list[m.IncrementalAlterConfigsRequest.AlterableConfig],
) -> list[Message]:
    without_value = [c.name for c in configs if c.value is None and c.config_operation != DELETE]
    _check_keys([config.name for config in configs], without_value)
    current = image.config(*resource)
    wanted = {config.name: _after(context, resource, config, current.get(config.name)) for config in configs}
    return setting_records(image, context, resource, wanted)


def _after(
    context: ControllerContext,
    resource: ConfigResource,
    config: m.IncrementalAlterConfigsRequest.AlterableConfig,
    current: str | None,
) -> str | None:
    operation, value = config.config_operation, config.value
    if operation == DELETE:
        return None
    if operation not in (SET, APPEND, SUBTRACT):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {operation}")
    assert value is not None, "checked for the whole resource"
    if operation == SET:
        return value
    if not context.rules.is_list(resource.type, config.name):
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {_OPERATION_NAMES[operation]} to key {config.name} because its type is not LIST.",
        )
    # Appending to a list nobody has set appends to its default.
    before = current if current is not None else context.rules.default(resource.type, config.name)
    parts = [part for part in (before or "").split(",") if part]
    for part in value.split(","):
        if operation == APPEND and part not in parts:
            parts.append(part)
        elif operation == SUBTRACT and part in parts:
            parts.remove(part)
    return ",".join(parts)


def setting_records(
    image: ClusterImage,
    context: ControllerContext,
    resource: ConfigResource,
    changes: Mapping[str, str | None] | Mapping[str, str],
    *,
    new_resource: bool = False,
) -> list[Message]:
    """Records that change these settings of a resource (None removes one), or ApiError."""
    current = image.config(*resource)
    proposed = dict(current)
    records: list[Message] = []
    for name, value in changes.items():
        # Brokers are told again even when nothing changes: they may reload what the setting points to, like keystores.
        if value != current.get(name) or resource.type == ResourceType.BROKER:
            _check_cluster_rules(image, resource, name, value)
            records.append(m.ConfigRecord(resource.type, resource.name, name, value))
        if value is None:
            proposed.pop(name, None)
        else:
            proposed[name] = value
    context.rules.validate(resource, proposed, current)
    if not new_resource:
        _check_exists(image, resource, context)
    return records


def _check_cluster_rules(image: ClusterImage, resource: ConfigResource, name: str, value: str | None) -> None:
    if value is not None and len(value) > _VALUE_LENGTH_MAX:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            "The configuration value cannot be added because it exceeds the maximum value size of "
            f"{_VALUE_LENGTH_MAX} bytes.",
        )
    if resource.type != ResourceType.BROKER:
        return
    if name == MIN_INSYNC_REPLICAS and image.is_elr_enabled:
        if resource != CLUSTER_DEFAULTS:
            raise ApiError(
                ErrorCode.INVALID_CONFIG, "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
            )
        if value is None:
            raise ApiError(
                ErrorCode.INVALID_CONFIG, "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
            )
    if name == _CORDONED_LOG_DIRS and image.metadata_version < CORDONED_LOG_DIRS_FROM:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            "The cordoned.log.dirs configuration value cannot be set because it requires metadata.version >= "
            + release_name(CORDONED_LOG_DIRS_FROM),
        )


def _check_exists(image: ClusterImage, resource: ConfigResource, context: ControllerContext) -> None:
    if resource.type == ResourceType.TOPIC and resource.name not in image.topics:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource.name}' does not exist.")
    if resource.type != ResourceType.BROKER or resource == CLUSTER_DEFAULTS:
        return
    try:
        node_id = int(resource.name)
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Invalid broker name {resource.name}") from None
    if node_id not in image.brokers and node_id not in image.controllers and node_id not in context.quorum_ids:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No node with id {node_id} found.")


def clear_elr_records(image: ClusterImage, records: Iterable[Message]) -> list[Message]:
    """ClearElrRecords for every change of min.insync.replicas among the records."""
    if not image.is_elr_enabled:
        return []
    return [
        m.ClearElrRecord(record.resource_name if record.resource_type == ResourceType.TOPIC else "")
        for record in records
        if isinstance(record, m.ConfigRecord) and record.name == MIN_INSYNC_REPLICAS
    ]
