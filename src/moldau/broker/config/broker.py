"""The settings of one node, typed and checked: what server.properties says, and what was changed while it runs.

`load_broker_config` turns texts into a `BrokerConfig`; `BrokerConfig.with_dynamic` gives the one that follows from
dynamic changes. Values are read with the accessor of their type (`get_int("num.partitions")`), those that need more
than a lookup are fields or properties. A config never changes: whoever holds one holds a consistent set.

Invariant: a `BrokerConfig` that exists passed every check of `checks.py`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from moldau.broker.config.definition import Support
from moldau.broker.config.endpoints import Endpoint, parse_csv_map, parse_endpoints, parse_protocol_map
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


class Voter(NamedTuple):
    id: int
    host: str
    port: int


@dataclass(slots=True, frozen=True, eq=False)
class BrokerConfig:
    """All settings of a broker, checked."""

    static: Mapping[str, str]
    """What server.properties and the command line say, as written."""
    dynamic_default: Mapping[str, str]
    """What was changed for all brokers while running."""
    dynamic_broker: Mapping[str, str]
    """What was changed for this broker while running."""
    texts: Mapping[str, str]
    """What counts of the three above, as written."""
    values: Mapping[str, ConfigValue]
    """Every setting by name, parsed, defaults included."""
    topic_defaults: Mapping[str, ConfigValue]
    """What a topic that says nothing has."""
    standalone: bool
    """Whether this node is a quorum of one, because no quorum was configured."""
    listener_protocols: Mapping[str, str]
    listeners: tuple[Endpoint, ...]
    advertised_listeners: tuple[Endpoint, ...]
    """What brokers' clients are told; never a controllers' listener."""
    voters: tuple[Voter, ...]

    def __repr__(self) -> str:
        """Without the settings: passwords are among them."""
        return f"BrokerConfig(node {self.values.get('node.id')}, {len(self.texts)} settings)"

    def get_int(self, key: str) -> int:
        value = self.values[key]
        assert isinstance(value, int), f"{key} is not a number, or not set"
        return value

    def get_int_or_none(self, key: str) -> int | None:
        return None if self.values[key] is None else self.get_int(key)

    def get_float(self, key: str) -> float:
        value = self.values[key]
        assert isinstance(value, float), f"{key} is not a double"
        return value

    def get_bool(self, key: str) -> bool:
        value = self.values[key]
        assert isinstance(value, bool), f"{key} is not a boolean"
        return value

    def get_str(self, key: str) -> str:
        value = self.values[key]
        assert isinstance(value, str), f"{key} is not a string, or not set"
        return value

    def get_str_or_none(self, key: str) -> str | None:
        return None if self.values[key] is None else self.get_str(key)

    def get_list(self, key: str) -> tuple[str, ...]:
        """A list; one that is not set is empty."""
        value = self.values[key]
        assert value is None or isinstance(value, tuple), f"{key} is not a list"
        return value or ()

    def for_listener(self, listener: str, key: str, mechanism: str | None = None) -> ConfigValue:
        """The value a listener (and SASL mechanism) was given for itself, or else the one for all."""
        prefix = f"listener.name.{listener.lower()}."
        names = [f"{prefix}{mechanism.lower()}.{key}"] if mechanism else []
        for name in (*names, f"{prefix}{key}"):
            if name in self.texts:
                return broker_definitions()[key].parse(self.texts[name])
        return self.values[key]

    def with_dynamic(self, dynamic_default: Mapping[str, str], dynamic_broker: Mapping[str, str]) -> "BrokerConfig":
        """The settings after a dynamic change; the two maps are everything that is set dynamically.

        Raises InvalidConfig if they contradict each other: then keep the config you have.
        """
        return build(self.static, dynamic_default, dynamic_broker, standalone=self.standalone, clamp=True)

    @property
    def node_id(self) -> int:
        return self.get_int("node.id")

    @property
    def is_broker(self) -> bool:
        return "broker" in self.get_list("process.roles")

    @property
    def is_controller(self) -> bool:
        return "controller" in self.get_list("process.roles")

    @property
    def controller_listener_names(self) -> tuple[str, ...]:
        return tuple(name.upper() for name in self.get_list("controller.listener.names"))

    @property
    def broker_listeners(self) -> tuple[Endpoint, ...]:
        names = self.controller_listener_names
        return tuple(endpoint for endpoint in self.listeners if endpoint.listener not in names)

    @property
    def controller_listeners(self) -> tuple[Endpoint, ...]:
        names = self.controller_listener_names
        return tuple(endpoint for endpoint in self.listeners if endpoint.listener in names)

    @property
    def inter_broker_listener_name(self) -> str:
        name = self.get_str_or_none("inter.broker.listener.name")
        return (name or self.get_str("security.inter.broker.protocol")).upper()

    @property
    def log_dirs(self) -> tuple[str, ...]:
        return self.get_list("log.dirs") or self.get_list("log.dir")

    @property
    def cordoned_log_dirs(self) -> tuple[str, ...]:
        dirs = self.get_list("cordoned.log.dirs")
        return self.log_dirs if "*" in dirs else dirs

    @property
    def metadata_log_dir(self) -> str:
        return self.get_str_or_none("metadata.log.dir") or self.log_dirs[0]

    @property
    def max_connections_per_ip_overrides(self) -> dict[str, int]:
        key = "max.connections.per.ip.overrides"
        return {host: int(count) for host, count in parse_csv_map(key, self.get_str(key)).items()}

    @property
    def super_users(self) -> frozenset[str]:
        users = self.get_str("super.users").split(";")
        return frozenset(user.strip() for user in users if user.strip())

    @property
    def ignored(self) -> tuple[str, ...]:
        """Keys that were set and have no effect here: worth a line in the log."""
        found = ((key, find_definition(key)) for key in self.static)
        return tuple(sorted(key for key, known in found if known is not None and known.support is Support.IGNORED))


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
    from moldau.broker.config.checks import check_broker_config

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
        voters=tuple(Voter(*parse_voter(text)) for text in _list(values, "controller.quorum.voters")),
    )


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
