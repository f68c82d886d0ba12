"""The settings of one node, typed: what server.properties says, and what was changed while it runs.

Values are read with the accessor of their type (`get_int("num.partitions")`), those that need more than a lookup are
fields or properties. A config never changes: whoever holds one holds a consistent set.

Invariant: a `BrokerConfig` that exists was made by `loading.py`, and passed every check of `checks.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from moldau.broker.config.definition import Support
from moldau.broker.config.endpoints import Endpoint, parse_csv_map
from moldau.broker.config.registry import broker_definitions, find_definition
from moldau.broker.config.values import ConfigValue


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
    advertised_controller_listeners: tuple[Endpoint, ...]
    """What other nodes are told of the controllers' listeners: as advertised, or as they listen."""
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
    def keys_without_use(self) -> tuple[str, ...]:
        """Settings of certificates that were set although no listener speaks TLS: somebody forgot one, or the other."""
        if any(each.uses_tls for each in self.listeners):
            return ()
        return tuple(sorted(key for key in self.static if "ssl.keystore." in key and self.static[key]))

    @property
    def ignored(self) -> tuple[str, ...]:
        """Keys that were set and have no effect here: worth a line in the log."""
        found = ((key, find_definition(key)) for key in self.static)
        return tuple(sorted(key for key, known in found if known is not None and known.support is Support.IGNORED))
