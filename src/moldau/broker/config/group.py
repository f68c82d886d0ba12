"""Settings of a group: the table, what they inherit from the broker, and the bounds the broker sets.

Invariant: `group_values` is always within the broker's bounds, even if they were tightened after a group was set up.
"""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from moldau.broker.config.definition import Definition, parse_table
from moldau.broker.config.errors import InvalidConfig
from moldau.broker.config.registry import suggestion
from moldau.broker.config.topic import without_nulls
from moldau.broker.config.values import ConfigValue

if TYPE_CHECKING:
    from moldau.broker.config.broker import BrokerConfig

GROUP = """
consumer.assignment.interval.ms int 1000 [0,...] medium cluster
    Shortest time between two assignments of the group.
consumer.heartbeat.interval.ms int 5000 [1,...] medium cluster
    How often members of the consumer group send heartbeats.
consumer.session.timeout.ms int 45000 [1,...] medium cluster
    Time without heartbeats after which a member of the consumer group is removed.
share.assignment.interval.ms int 1000 [0,...] medium cluster
    Shortest time between two assignments of the share group.
share.auto.offset.reset string latest offset-reset medium cluster
    Where a new share group starts: `earliest`, `latest`, or that far back, `by_duration:PnDTnHnMn.nS`.
share.delivery.count.limit int 5 [2,...] medium cluster
    How often a record is delivered before it is given up.
share.heartbeat.interval.ms int 5000 [1,...] medium cluster
    How often members of the share group send heartbeats.
share.isolation.level string read_uncommitted {read_committed,read_uncommitted} medium cluster
    Whether the share group sees records of open and aborted transactions.
share.partition.max.record.locks int 2000 [100,...] medium cluster
    Most records of one partition locked for delivery at the same time.
share.record.lock.duration.ms int 30000 [1000,...] medium cluster
    How long a delivered record stays locked for its consumer.
share.renew.acknowledge.enable boolean true - medium cluster
    Let consumers of the share group prolong a record's lock.
share.session.timeout.ms int 45000 [1,...] medium cluster
    Time without heartbeats after which a member of the share group is removed.
streams.assignment.interval.ms int 1000 [0,...] medium cluster
    Shortest time between two assignments of the streams group.
streams.heartbeat.interval.ms int 5000 [1,...] medium cluster
    How often members of the streams group send heartbeats.
streams.initial.rebalance.delay.ms int 3000 [0,...] medium cluster
    How long the empty streams group waits for more members before its first rebalance.
streams.num.standby.replicas int 0 [0,...] medium cluster
    Standby replicas of each task.
streams.session.timeout.ms int 45000 [1,...] medium cluster
    Time without heartbeats after which a member of the streams group is removed.
"""

_WITHOUT_SYNONYM = frozenset({"share.auto.offset.reset", "share.isolation.level", "share.renew.acknowledge.enable"})
_ASSIGNMENT_INTERVAL = ".assignment.interval.ms"
# (setting, the broker's least, the broker's most), in the order Kafka looks at them.
_BOUNDS = (
    *(
        (f"{kind}.{what}", f"group.{kind}.min.{what}", f"group.{kind}.max.{what}")
        for kind in ("consumer", "share", "streams")
        for what in ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms")
    ),
    *(
        (f"share.{what}", f"group.share.min.{what}", f"group.share.max.{what}")
        for what in ("record.lock.duration.ms", "delivery.count.limit", "partition.max.record.locks")
    ),
    ("streams.num.standby.replicas", None, "group.streams.max.standby.replicas"),
)


@cache
def group_definitions() -> dict[str, Definition]:
    return parse_table(GROUP)


def broker_synonym(name: str) -> str | None:
    """The broker setting a group's inherits from."""
    return None if name in _WITHOUT_SYNONYM else f"group.{name}"


def inherited_values(broker: "BrokerConfig") -> dict[str, ConfigValue]:
    """What a group without own settings has."""
    return {
        name: known.default if (synonym := broker_synonym(name)) is None else broker.values[synonym]
        for name, known in group_definitions().items()
    }


def own_and_inherited_values(overrides: Mapping[str, str], broker: "BrokerConfig") -> dict[str, ConfigValue]:
    """Every group setting as it was set, whether or not the broker still allows it."""
    definitions = group_definitions()
    own = {name: definitions[name].parse(text) for name, text in overrides.items() if name in definitions}
    return inherited_values(broker) | own


def group_values(overrides: Mapping[str, str], broker: "BrokerConfig") -> dict[str, ConfigValue]:
    """Every group setting as it takes effect: own ones out of bounds are brought within them."""
    values = own_and_inherited_values(overrides, broker)
    for name, least_key, most_key in _BOUNDS:
        value = values[name]
        if name in overrides and isinstance(value, int):
            bounded = value if least_key is None else max(value, broker.get_int(least_key))
            values[name] = min(bounded, broker.get_int(most_key))
    return values


def validate_group_configs(overrides: Mapping[str, str | None], broker: "BrokerConfig") -> dict[str, str]:
    """The settings as they may be stored, or InvalidConfig."""
    configs = without_nulls(overrides, "group")
    for name in configs:
        if name not in group_definitions():
            hint = suggestion(name, group_definitions())
            message = f"Unknown group config name: {name}" + (f". {hint}" if hint else "")
            raise InvalidConfig(message, name, configs[name])
    values = own_and_inherited_values(configs, broker)
    for name, least_key, most_key in _BOUNDS:
        value = values[name]
        assert isinstance(value, int)
        if name.endswith(_ASSIGNMENT_INTERVAL) and name not in configs:
            continue
        if least_key is not None and value < broker.get_int(least_key):
            raise InvalidConfig(f"{name} must be greater than or equal to {least_key}", name, str(value))
        if value > broker.get_int(most_key):
            raise InvalidConfig(f"{name} must be less than or equal to {most_key}", name, str(value))
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = values[f"{kind}.session.timeout.ms"], values[f"{kind}.heartbeat.interval.ms"]
        assert isinstance(session, int)
        assert isinstance(heartbeat, int)
        if session <= heartbeat:
            raise InvalidConfig(
                f"{kind}.session.timeout.ms must be greater than {kind}.heartbeat.interval.ms",
                f"{kind}.session.timeout.ms",
                str(session),
            )
    return configs
