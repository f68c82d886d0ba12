"""From texts to a checked config: `load_broker_config` for a node that starts, `with_dynamic_settings` for changes."""

from collections.abc import Iterable, Mapping

from moldau.broker.config.broker import BrokerConfig, Voter
from moldau.broker.config.checks import check_broker_config
from moldau.broker.config.endpoints import Endpoint, parse_endpoints, parse_protocol_map
from moldau.broker.config.errors import InvalidConfig
from moldau.broker.config.properties import parse_overrides
from moldau.broker.config.registry import (
    DYNAMIC_ONLY_KEYS,
    broker_defaults,
    broker_definitions,
    find_definition,
    synonyms_of,
    unknown_broker_config,
)
from moldau.broker.config.topic import topic_defaults
from moldau.broker.config.validators import parse_voter
from moldau.broker.config.values import ConfigValue

_MS_PER_MINUTE = 60_000
_MS_PER_HOUR = 3_600_000
_QUORUM_KEYS = (
    "process.roles",
    "controller.listener.names",
    "controller.quorum.voters",
    "controller.quorum.bootstrap.servers",
)
# A node nobody told about a cluster is one of its own, and keeps one copy of everything.
_STANDALONE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "log.dirs": "moldau-data",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
_ALIASES = {"node.id": "broker.id", "log.dirs": "log.dir"}
_CLAMPED_KEYS = tuple(f"group.{kind}.assignment.interval.ms" for kind in ("consumer", "share", "streams"))


def standalone_settings(host: str, port: int, data_dir: str) -> dict[str, str]:
    """Settings of a node of its own at that address, as `moldau serve` without a config file has them."""
    address = f"[{host}]" if ":" in host else host
    return {"listeners": f"PLAINTEXT://{address}:{port}", "log.dirs": data_dir}


def load_broker_config(settings: Mapping[str, str], overrides: Iterable[str] = ()) -> BrokerConfig:
    """The config of these settings and `key=value` overrides; InvalidConfig says what is wrong with them.

    A config that says nothing about its quorum is that of a node of its own, and gets the rest filled in.
    """
    merged = {**settings, **parse_overrides(overrides)}
    _refuse_dynamic_only(merged)
    standalone = not any(key in merged for key in _QUORUM_KEYS)
    if standalone:
        merged = {key: value for key, value in _STANDALONE.items() if _ALIASES.get(key) not in merged} | merged
    return build(_with_both_ids(merged), {}, {}, standalone=standalone)


def with_dynamic_settings(
    config: BrokerConfig, dynamic_default: Mapping[str, str], dynamic_broker: Mapping[str, str]
) -> BrokerConfig:
    """The config after a dynamic change; the two maps are everything that is set dynamically.

    Raises InvalidConfig if they contradict each other: then keep the config you have.
    """
    return build(config.static, dynamic_default, dynamic_broker, standalone=config.standalone, clamp=True)


def _refuse_dynamic_only(settings: Mapping[str, str]) -> None:
    for key in settings:
        if key in DYNAMIC_ONLY_KEYS:
            raise InvalidConfig.for_value(
                key, settings[key], "This can only be set while the broker runs, with `kafka-configs --alter`"
            )


def _with_both_ids(settings: dict[str, str]) -> dict[str, str]:
    for key, other in (("node.id", "broker.id"), ("broker.id", "node.id")):
        if key not in settings and other in settings:
            settings[key] = settings[other]
    return settings


def build(
    static: Mapping[str, str],
    dynamic_default: Mapping[str, str],
    dynamic_broker: Mapping[str, str],
    *,
    standalone: bool,
    clamp: bool = False,
) -> BrokerConfig:
    """The checked config of three layers of settings; `clamp` forgives dynamic intervals that are out of bounds."""
    texts = overlay(overlay(dict(static), dynamic_default), dynamic_broker)
    values = parse_values(texts)
    if clamp:
        _clamp(values)
    config = _assemble(static, dynamic_default, dynamic_broker, texts, values, standalone=standalone)
    check_broker_config(config)
    return config


def overlay(texts: dict[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """Put changes over settings. A change counts even if a stronger synonym was set below it."""
    for key, value in changes.items():
        for synonym in synonyms_of(key, with_listener_base=False):
            texts.pop(synonym, None)
        texts[key] = value
    return texts


def parse_values(texts: Mapping[str, str]) -> dict[str, ConfigValue]:
    """Every setting parsed, with defaults for what is not set; listeners' own settings are checked and left out."""
    values = dict(broker_defaults())
    for key, text in texts.items():
        definition = find_definition(key)
        if definition is None:
            raise unknown_broker_config(key, text)
        value = definition.parse_supported(text)
        if definition.name == key:
            values[key] = value
    for key, definition in broker_definitions().items():
        if definition.required and key not in values:
            raise InvalidConfig(f'Missing required configuration "{key}" which has no default value.', key)
    return values


def _clamp(values: dict[str, ConfigValue]) -> None:
    """A dynamic assignment interval out of the node's bounds is brought within them, as Kafka does."""
    for key in _CLAMPED_KEYS:
        prefix = key.removesuffix("assignment.interval.ms")
        value, low, high = (
            values[name] for name in (key, f"{prefix}min.assignment.interval.ms", f"{prefix}max.assignment.interval.ms")
        )
        assert isinstance(value, int)
        assert isinstance(low, int)
        assert isinstance(high, int)
        values[key] = low if value < low else min(value, high)


def _assemble(
    static: Mapping[str, str],
    dynamic_default: Mapping[str, str],
    dynamic_broker: Mapping[str, str],
    texts: Mapping[str, str],
    values: Mapping[str, ConfigValue],
    *,
    standalone: bool,
) -> BrokerConfig:
    listeners = _list(values, "listeners")
    controller_names = tuple(name.upper() for name in _list(values, "controller.listener.names"))
    key = "listener.security.protocol.map"
    protocols = parse_protocol_map(str(values[key]), controller_names, listeners, explicit=key in texts)
    endpoints = parse_endpoints("listeners", listeners, protocols, distinct_ports=True)
    advertised = endpoints
    if values["advertised.listeners"] is not None:
        given = _list(values, "advertised.listeners")
        advertised = parse_endpoints("advertised.listeners", given, protocols, distinct_ports=False)
    return BrokerConfig(
        static=static,
        dynamic_default=dynamic_default,
        dynamic_broker=dynamic_broker,
        texts=texts,
        values=values,
        topic_defaults=topic_defaults(values, _derived(values)),
        standalone=standalone,
        listener_protocols=protocols,
        listeners=endpoints,
        advertised_listeners=tuple(endpoint for endpoint in advertised if endpoint.listener not in controller_names),
        advertised_controller_listeners=_controllers(endpoints, advertised, controller_names),
        voters=tuple(Voter(*parse_voter(text)) for text in _list(values, "controller.quorum.voters")),
    )


def _controllers(
    endpoints: tuple[Endpoint, ...], advertised: tuple[Endpoint, ...], names: tuple[str, ...]
) -> tuple[Endpoint, ...]:
    given = {endpoint.listener: endpoint for endpoint in advertised}
    return tuple(given.get(each.listener, each) for each in endpoints if each.listener in names)


def _list(values: Mapping[str, ConfigValue], key: str) -> tuple[str, ...]:
    value = values[key]
    return value if isinstance(value, tuple) else ()


def _derived(values: Mapping[str, ConfigValue]) -> dict[str, int]:
    """Times that can be said in several units, in milliseconds, by the name of the topic setting they feed."""

    def first(*names: tuple[str, int]) -> int:
        found = (int(value) * unit for name, unit in names if isinstance(value := values[name], int))
        return next(found)

    retention = first(
        ("log.retention.ms", 1), ("log.retention.minutes", _MS_PER_MINUTE), ("log.retention.hours", _MS_PER_HOUR)
    )
    return {
        "segment.ms": first(("log.roll.ms", 1), ("log.roll.hours", _MS_PER_HOUR)),
        "segment.jitter.ms": first(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _MS_PER_HOUR)),
        "flush.ms": first(("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
        "retention.ms": max(retention, -1),
    }
