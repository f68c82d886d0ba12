"""Kafka's configuration: names, defaults, validation, dynamic change, and how it is described to clients.

Read `broker.py` for the settings of a node, `topic.py`, `group.py` and `client_metrics.py` for those of the other
resources, `alter.py` and `describe.py` for what handlers need. The tables (`broker_*.py`) are Kafka 4.3's.
"""

from moldau.broker.config.alter import (
    Change,
    Operation,
    apply_changes,
    check_min_insync_replicas_change,
    replace_all,
    validate_resource,
)
from moldau.broker.config.broker import BrokerConfig, Voter
from moldau.broker.config.client_metrics import (
    client_metrics_values,
    parse_match,
    validate_client_metrics_configs,
)
from moldau.broker.config.definition import ConfigSource, ResourceType
from moldau.broker.config.describe import (
    ConfigEntry,
    Synonym,
    describe_broker,
    describe_broker_default,
    describe_client_metrics,
    describe_group,
    describe_topic,
)
from moldau.broker.config.dynamic import usable_dynamic_settings, validate_dynamic_change
from moldau.broker.config.endpoints import Endpoint
from moldau.broker.config.errors import InvalidConfig
from moldau.broker.config.group import group_values, validate_group_configs
from moldau.broker.config.loading import load_broker_config, standalone_settings, with_dynamic_settings
from moldau.broker.config.properties import parse_overrides, parse_properties, read_properties
from moldau.broker.config.topic import (
    TopicSettings,
    log_config_for,
    topic_settings_for,
    topic_values,
    validate_topic_configs,
)
from moldau.broker.config.values import ConfigType, ConfigValue

__all__ = [
    "BrokerConfig",
    "Change",
    "ConfigEntry",
    "ConfigSource",
    "ConfigType",
    "ConfigValue",
    "Endpoint",
    "InvalidConfig",
    "Operation",
    "ResourceType",
    "Synonym",
    "TopicSettings",
    "Voter",
    "apply_changes",
    "check_min_insync_replicas_change",
    "client_metrics_values",
    "describe_broker",
    "describe_broker_default",
    "describe_client_metrics",
    "describe_group",
    "describe_topic",
    "group_values",
    "load_broker_config",
    "log_config_for",
    "parse_match",
    "parse_overrides",
    "parse_properties",
    "read_properties",
    "replace_all",
    "standalone_settings",
    "topic_settings_for",
    "topic_values",
    "usable_dynamic_settings",
    "validate_client_metrics_configs",
    "validate_dynamic_change",
    "validate_group_configs",
    "validate_resource",
    "validate_topic_configs",
    "with_dynamic_settings",
]
