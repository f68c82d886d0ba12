"""DescribeConfigs: every setting of a resource with its value, where it comes from, and what else was said about it.

Invariant: values of passwords, and of keys nobody knows the type of, never leave here.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from moldau.broker.config.broker import BrokerConfig
from moldau.broker.config.client_metrics import client_metrics_definitions, client_metrics_values
from moldau.broker.config.definition import ConfigSource, Definition
from moldau.broker.config.dynamic import is_dynamic
from moldau.broker.config.group import broker_synonym, group_definitions, own_and_inherited_values
from moldau.broker.config.registry import DYNAMIC_ONLY_KEYS, broker_definitions, find_definition, synonyms_of
from moldau.broker.config.topic import SYNONYMS, topic_definitions, topic_values
from moldau.broker.config.values import ConfigType, ConfigValue, render_value


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    is_sensitive: bool
    synonyms: tuple[Synonym, ...]
    type: ConfigType
    documentation: str | None


def describe_topic(
    overrides: Mapping[str, str], broker: BrokerConfig, keys: Collection[str] | None = None
) -> list[ConfigEntry]:
    """A topic's settings; all of them, or those asked for."""

    def synonyms(name: str, sensitive: bool) -> tuple[Synonym, ...]:
        key = SYNONYMS.get(name)
        return () if key is None else _broker_synonyms(key, broker, hidden=sensitive)

    values = topic_values(overrides, broker)
    return _describe(topic_definitions(), values, overrides, keys, ConfigSource.TOPIC_CONFIG, synonyms_for=synonyms)


def describe_group(
    overrides: Mapping[str, str], broker: BrokerConfig, keys: Collection[str] | None = None
) -> list[ConfigEntry]:
    """A group's settings; all of them, or those asked for."""

    def synonyms(name: str, sensitive: bool) -> tuple[Synonym, ...]:
        key = broker_synonym(name)
        if key is not None:
            return _broker_synonyms(key, broker, hidden=sensitive)
        known = group_definitions().get(name)
        return () if known is None else (Synonym(name, known.default_text, ConfigSource.DEFAULT_CONFIG),)

    values = own_and_inherited_values(overrides, broker)
    return _describe(group_definitions(), values, overrides, keys, ConfigSource.GROUP_CONFIG, synonyms_for=synonyms)


def describe_client_metrics(overrides: Mapping[str, str], keys: Collection[str] | None = None) -> list[ConfigEntry]:
    """The settings of a client metrics subscription; all of them, or those asked for."""

    def synonyms(name: str, sensitive: bool) -> tuple[Synonym, ...]:
        del name, sensitive
        return ()

    values = client_metrics_values(overrides)
    source = ConfigSource.CLIENT_METRICS_CONFIG
    return _describe(client_metrics_definitions(), values, overrides, keys, source, synonyms_for=synonyms)


def describe_broker(broker: BrokerConfig, keys: Collection[str] | None = None) -> list[ConfigEntry]:
    """This broker's settings; all of them, or those asked for."""
    definitions = broker_definitions()
    quota_keys = broker.dynamic_broker.keys() | broker.dynamic_default.keys()
    names = [name for name, known in definitions.items() if _is_shown(known) or name in quota_keys]
    names += [name for name in broker.texts if name not in definitions or definitions[name].internal]
    return [_broker_entry(name, broker, default_only=False) for name in _wanted(dict.fromkeys(names), keys)]


def describe_broker_default(broker: BrokerConfig, keys: Collection[str] | None = None) -> list[ConfigEntry]:
    """What is set dynamically for all brokers."""
    return [_broker_entry(name, broker, default_only=True) for name in _wanted(broker.dynamic_default, keys)]


def _is_shown(definition: Definition) -> bool:
    return not definition.internal and definition.name not in DYNAMIC_ONLY_KEYS


def _wanted(names: Iterable[str], keys: Collection[str] | None) -> list[str]:
    """Kafka takes an empty list of keys as all of them."""
    return sorted(name for name in names if not keys or name in keys)


def _describe(
    definitions: Mapping[str, Definition],
    values: Mapping[str, ConfigValue],
    overrides: Mapping[str, str],
    keys: Collection[str] | None,
    source: ConfigSource,
    *,
    synonyms_for: Callable[[str, bool], tuple[Synonym, ...]],
) -> list[ConfigEntry]:
    shown = [name for name, known in definitions.items() if not known.internal]
    entries = []
    for name in _wanted({*shown, *overrides}, keys):
        known = definitions.get(name)
        sensitive = known is None or known.sensitive
        value = None if sensitive else render_value(values[name])
        synonyms = synonyms_for(name, sensitive)
        if name in overrides:
            synonyms = (Synonym(name, value, source), *synonyms)
        entries.append(
            ConfigEntry(
                name,
                value,
                synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
                False,
                sensitive,
                synonyms,
                ConfigType.UNKNOWN if known is None else known.type,
                None if known is None else known.documentation,
            )
        )
    return entries


def _broker_entry(name: str, broker: BrokerConfig, *, default_only: bool) -> ConfigEntry:
    known = find_definition(name) if name in broker_definitions() or name.startswith("listener.name.") else None
    sensitive = known is None or known.sensitive
    synonyms = _broker_synonyms(name, broker, hidden=sensitive)
    if default_only:
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        synonyms = tuple(synonym for synonym in synonyms if synonym.source is source)
    text = (broker.dynamic_default if default_only else broker.texts).get(name)
    value = None
    if known is not None and not sensitive:
        parsed = known.name == name and not default_only
        value = render_value(broker.values[name]) if parsed else text
    own = broker_definitions().get(name)
    return ConfigEntry(
        name,
        value,
        synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        not is_dynamic(name),
        sensitive,
        synonyms,
        ConfigType.UNKNOWN if known is None else known.type,
        None if own is None else own.documentation,
    )


def _broker_synonyms(name: str, broker: BrokerConfig, *, hidden: bool) -> tuple[Synonym, ...]:
    """Everything said about a broker setting, strongest first, from its own name downwards.

    Kafka leaves out what stands before the first entry of that very name. So `log.retention.ms`, if only the hours
    were given, has no synonyms at all, and its source is the default's; clients know it that way.
    """
    names = synonyms_of(name)
    definitions = broker_definitions()
    defaults = {
        key: text
        for key in names
        if (known := definitions.get(key)) and (text := known.default_text) is not None and key not in DYNAMIC_ONLY_KEYS
    }
    layers = (
        (broker.dynamic_broker, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (broker.dynamic_default, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (broker.static, ConfigSource.STATIC_BROKER_CONFIG),
        (defaults, ConfigSource.DEFAULT_CONFIG),
    )
    found = [
        Synonym(key, None if hidden else texts[key], source)
        for texts, source in layers
        for key in names
        if key in texts
    ]
    start = next((index for index, synonym in enumerate(found) if synonym.name == name), len(found))
    return tuple(found[start:])
