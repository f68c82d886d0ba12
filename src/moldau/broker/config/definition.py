"""What one setting is: its name, type, default, valid values and whether it can change while the node runs.

The tables of this package are text, two lines per setting, so that a reader sees Kafka's facts at a glance:

    name type default valid importance scope [internal] [ignored | refused | only:VALUE|VALUE]
        One line of documentation.

`default` is written as Kafka prints it, `null` for none, `""` for empty and `required` where there is no default.
`valid` is one of the notations of `validators.py`, or `-`. `scope` says how a broker setting changes: `static` needs
a restart, `broker` changes per broker, `cluster` also for all brokers at once; everything else is `cluster`.
`ignored` settings are accepted and have no effect; `refused` ones belong to a feature Moldau does not have, so only
the default is accepted; `only:` lists what is accepted beside the default.

Invariant: a table that parses is right about types; that it is right about Kafka is proven against Kafka's own jars
in `tests/interop/test_config_drift.py`.
"""

from collections.abc import Iterator
from enum import Enum, IntEnum
from typing import NamedTuple

from moldau.broker.config.errors import InvalidConfig
from moldau.broker.config.validators import Validator, parse_validator
from moldau.broker.config.values import ConfigType, ConfigValue, parse_value


class ConfigSource(IntEnum):
    """Where a value comes from, by DescribeConfigs' numbers."""

    UNKNOWN = 0
    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class ResourceType(IntEnum):
    """What settings belong to, by the numbers of the protocol and of ConfigRecord."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Importance(Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Scope(Enum):
    """How a broker setting changes."""

    READ_ONLY = "static"
    PER_BROKER = "broker"
    CLUSTER_WIDE = "cluster"


class Support(Enum):
    HONOURED = "honoured"
    IGNORED = "ignored"
    LIMITED = "limited"


class Definition(NamedTuple):
    name: str
    type: ConfigType
    default: ConfigValue
    default_text: str | None
    required: bool
    validator: Validator | None
    importance: Importance
    scope: Scope
    internal: bool
    support: Support
    accepted: tuple[str, ...]
    documentation: str

    @property
    def sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str) -> ConfigValue:
        """The value of this text, or InvalidConfig as Kafka would refuse it."""
        value = parse_value(self.name, text, self.type)
        if self.validator is None:
            return value
        if isinstance(value, tuple) and self.validator.drops_duplicates:
            value = tuple(dict.fromkeys(value))
        self.validator.check(self.name, value)
        return value

    def parse_supported(self, text: str) -> ConfigValue:
        """Like `parse`, but refuses what Kafka accepts and Moldau cannot do."""
        value = self.parse(text)
        if self.support is Support.LIMITED and value != self.default and text.strip() not in self.accepted:
            valid = [*self.accepted]
            if self.default_text:
                valid.insert(0, self.default_text)
            instead = f"set it to {' or '.join(valid)}, or leave it out" if valid else "leave it out"
            shown = "[hidden]" if self.sensitive else text
            raise InvalidConfig.for_value(
                self.name, shown, f"Kafka knows this setting, but Moldau does not support it: {instead}."
            )
        return value


def parse_table(*texts: str) -> dict[str, Definition]:
    """The definitions of these tables, in their order."""
    return {definition.name: definition for text in texts for definition in _rows(text)}


def _rows(text: str) -> Iterator[Definition]:
    lines = iter(text.strip().splitlines())
    for line in lines:
        yield _row(line.split(), next(lines).strip())


_TYPES = {kind.name.lower(): kind for kind in ConfigType}
_IMPORTANCES = {importance.value: importance for importance in Importance}
_SCOPES = {scope.value: scope for scope in Scope}


def _row(columns: list[str], documentation: str) -> Definition:
    name, type_name, default_text, valid, importance, scope, *flags = columns
    kind = _TYPES[type_name]
    required = default_text == "required"
    text: str | None = default_text
    if default_text in ("required", "null"):
        text = None
    elif default_text == '""':
        text = ""
    support, accepted = _support(flags)
    return Definition(
        name,
        kind,
        None if text is None else parse_value(name, text, kind),
        text,
        required,
        parse_validator(valid, kind),
        _IMPORTANCES[importance],
        _SCOPES[scope],
        "internal" in flags,
        support,
        accepted,
        documentation,
    )


def _support(flags: list[str]) -> tuple[Support, tuple[str, ...]]:
    if not flags:
        return Support.HONOURED, ()
    last = flags[-1]
    if last == "ignored":
        return Support.IGNORED, ()
    if last == "refused":
        return Support.LIMITED, ()
    if last.startswith("only:"):
        return Support.LIMITED, tuple(last.removeprefix("only:").split("|"))
    return Support.HONOURED, ()
