"""AlterConfigs and IncrementalAlterConfigs: from what was set and what a client wants to what is to be set.

Invariant: one bad key fails the whole resource, and nothing of it changes.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from moldau.broker.config.broker import BrokerConfig
from moldau.broker.config.client_metrics import client_metrics_definitions, validate_client_metrics_configs
from moldau.broker.config.definition import Definition, ResourceType
from moldau.broker.config.dynamic import validate_dynamic_change
from moldau.broker.config.errors import INVALID_REQUEST, InvalidConfig
from moldau.broker.config.group import group_definitions, validate_group_configs
from moldau.broker.config.registry import broker_definitions
from moldau.broker.config.topic import topic_definitions, validate_topic_configs
from moldau.broker.config.values import ConfigType

_VALUE_BYTES_MAX = 32767


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    name: str
    operation: int
    value: str | None


def definitions_of(resource: ResourceType) -> dict[str, Definition]:
    """The settings a kind of resource has."""
    match resource:
        case ResourceType.TOPIC:
            return topic_definitions()
        case ResourceType.BROKER:
            return broker_definitions()
        case ResourceType.GROUP:
            return group_definitions()
        case ResourceType.CLIENT_METRICS:
            return client_metrics_definitions()
        case _:
            raise InvalidConfig(f"Unknown resource type {resource.value}", error_code=INVALID_REQUEST)


def apply_changes(resource: ResourceType, current: Mapping[str, str], changes: Sequence[Change]) -> dict[str, str]:
    """All settings of the resource after incremental changes, not yet validated."""
    _check_request((change.name for change in changes), _valueless(changes))
    definitions = definitions_of(resource)
    result = dict(current)
    for change in changes:
        name, operation, value = change
        if operation == Operation.DELETE:
            result.pop(name, None)
            continue
        if operation not in (Operation.SET, Operation.APPEND, Operation.SUBTRACT):
            raise InvalidConfig(f"Unknown operations type {operation}", name, value, INVALID_REQUEST)
        assert value is not None  # _check_request
        if operation != Operation.SET:
            value = _changed_list(resource, definitions.get(name), result.get(name), change)
        if len(value) > _VALUE_BYTES_MAX:
            raise InvalidConfig(
                "The configuration value cannot be added because it exceeds the maximum value size of "
                f"{_VALUE_BYTES_MAX} bytes.",
                name,
            )
        result[name] = value
    return result


def replace_all(settings: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """All settings of the resource after the older AlterConfigs, which replaces them; not yet validated."""
    _check_request((name for name, _ in settings), [name for name, value in settings if value is None])
    return {name: value for name, value in settings if value is not None}


def validate_resource(
    resource: ResourceType, name: str, settings: Mapping[str, str | None], broker: BrokerConfig
) -> dict[str, str]:
    """The settings of a resource as they may be stored, or InvalidConfig.

    For brokers this looks only at the keys and values of this one broker or of the cluster's default; settings for
    another broker are checked as if they were for this one.
    """
    match resource:
        case ResourceType.TOPIC:
            if not name:
                raise InvalidConfig("Default topic resources are not allowed.", error_code=INVALID_REQUEST)
            return validate_topic_configs(settings, broker)
        case ResourceType.BROKER:
            present = {key: value for key, value in settings.items() if value is not None}
            check_broker_name(name)
            validate_dynamic_change(broker, present, per_broker=bool(name))
            return present
        case ResourceType.GROUP:
            if not name:
                raise InvalidConfig("Default group resources are not allowed.", error_code=INVALID_REQUEST)
            return validate_group_configs(settings, broker)
        case ResourceType.CLIENT_METRICS:
            return validate_client_metrics_configs(name, settings)
        case _:
            raise InvalidConfig(f"Unknown resource type {resource.value}", error_code=INVALID_REQUEST)


def check_broker_name(name: str) -> None:
    """Broker resources are named by number, or empty for the cluster's default."""
    if name and not name.removeprefix("-").isdecimal():
        raise InvalidConfig("Unable to parse broker name as a base 10 number.", error_code=INVALID_REQUEST)
    if name.startswith("-"):
        raise InvalidConfig("Invalid negative broker ID.", error_code=INVALID_REQUEST)


def check_min_insync_replicas_change(
    resource: ResourceType, name: str, before: Mapping[str, str], after: Mapping[str, str]
) -> None:
    """With eligible leader replicas on, `min.insync.replicas` is one number for the cluster, and stays set."""
    key = "min.insync.replicas"
    if resource is not ResourceType.BROKER or before.get(key) == after.get(key):
        return
    if name:
        raise InvalidConfig(f"Broker-level {key} cannot be altered while ELR is enabled.", key, after.get(key))
    if key not in after:
        raise InvalidConfig(f"Cluster-level {key} cannot be removed while ELR is enabled.", key)


def _valueless(changes: Sequence[Change]) -> list[str]:
    return [name for name, operation, value in changes if value is None and operation != Operation.DELETE]


def _check_request(names: Iterable[str], valueless: Sequence[str]) -> None:
    listed = list(names)
    if len(set(listed)) < len(listed):
        raise InvalidConfig("Error due to duplicate config keys", error_code=INVALID_REQUEST)
    if valueless:
        message = f"Null value not supported for : {', '.join(valueless)}"
        raise InvalidConfig(message, valueless[0], None, INVALID_REQUEST)


def _changed_list(resource: ResourceType, definition: Definition | None, current: str | None, change: Change) -> str:
    if definition is None or definition.type is not ConfigType.LIST:
        raise _not_a_list(resource, definition, change)
    text = definition.default_text if current is None else current
    entries = [entry for entry in (text or "").split(",") if entry]
    for entry in (change.value or "").rstrip(",").split(","):
        if change.operation == Operation.APPEND and entry not in entries:
            entries.append(entry)
        elif change.operation == Operation.SUBTRACT and entry in entries:
            entries.remove(entry)
    return ",".join(entries)


def _not_a_list(resource: ResourceType, definition: Definition | None, change: Change) -> InvalidConfig:
    name, operation, value = change
    verb = Operation(operation).name
    if resource is not ResourceType.BROKER:
        message = f"Can't {verb} to key {name} because its type is not LIST."
    elif definition is None:
        message = f"Unknown config name: {name}"
    else:
        message = f"Config value {verb.lower()} is not allowed for config key: {name}"
    return InvalidConfig(message, name, value)
