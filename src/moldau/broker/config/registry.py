"""All broker settings in one place, found by name, with help for names that are not found.

Invariant: every name Kafka 4.3 knows is here, so that a refused name is one that Kafka would silently ignore.
"""

from collections.abc import Iterable
from functools import cache

from moldau.broker.config.definition import Definition, Scope, parse_table
from moldau.broker.config.errors import InvalidConfig
from moldau.broker.config.values import ConfigValue

_LISTENER_PREFIX = "listener.name."
# These may be given per mechanism too: listener.name.<listener>.<mechanism>.<key>.
_MECHANISM_KEYS = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
    "sasl.oauthbearer.expected.audience",
    "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.scope.claim.name",
    "sasl.oauthbearer.sub.claim.name",
    "sasl.oauthbearer.token.endpoint.url",
)
# Of a key that nobody knows, the value may be one that nobody should see.
_SECRET_WORDS = ("password", "secret", "jaas", "key", "credential", "loginmodule")
# Dynamically these change only with the listener's prefix.
DYNAMIC_SECURITY_KEYS = frozenset(
    {
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.certificates",
    }
)
_CLUSTER_LEVEL_LISTENER_KEYS = frozenset({"max.connections", "max.connection.creation.rate", "num.network.threads"})
DYNAMIC_ONLY_KEYS = frozenset(
    {
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
# The first of a line that is set counts, the others are ways to say it in other units.
_SYNONYMS = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
_SYNONYMS_OF = {name: names for names in _SYNONYMS for name in names} | {
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")
}
# Settings of Kafka's StandardAuthorizer, which reads them itself: DescribeConfigs knows nothing about them.
AUTHORIZER = """
super.users string "" - high static
    Users no ACL applies to, as `User:name;User:name`.
allow.everyone.if.no.acl.found boolean false - medium static
    Allow everything on resources that no ACL names.
"""


@cache
def broker_definitions() -> dict[str, Definition]:
    """Every broker setting of Kafka by name. Parsed at first use: the tables cost about a millisecond."""
    from moldau.broker.config.broker_general import GENERAL
    from moldau.broker.config.broker_groups import GROUPS, TRANSACTIONS
    from moldau.broker.config.broker_log import LOG
    from moldau.broker.config.broker_network import NETWORK
    from moldau.broker.config.broker_remote import REMOTE
    from moldau.broker.config.broker_replication import KRAFT, REPLICATION
    from moldau.broker.config.broker_security import OAUTH, SECURITY

    return parse_table(GENERAL, NETWORK, LOG, REPLICATION, KRAFT, GROUPS, TRANSACTIONS, SECURITY, OAUTH, REMOTE)


@cache
def authorizer_definitions() -> dict[str, Definition]:
    return parse_table(AUTHORIZER)


@cache
def own_definitions() -> dict[str, Definition]:
    """What Kafka has no name for. DescribeConfigs of Kafka would not know them; neither does ours."""
    from moldau.broker.config.own import OWN

    return parse_table(OWN)


@cache
def broker_defaults() -> dict[str, ConfigValue]:
    """The default of every setting that has one or may be missing."""
    definitions = broker_definitions() | authorizer_definitions() | own_definitions()
    return {name: definition.default for name, definition in definitions.items() if not definition.required}


def find_definition(name: str) -> Definition | None:
    """The definition a key is checked with: its own, or that of the key behind a listener's prefix."""
    definition = broker_definitions().get(name) or authorizer_definitions().get(name) or own_definitions().get(name)
    if definition is not None:
        return definition
    base = listener_base_name(name)
    return None if base is None else broker_definitions().get(_without_mechanism(base))


def _without_mechanism(base: str) -> str:
    return next((key for key in _MECHANISM_KEYS if base.endswith(f".{key}")), base)


def listener_base_name(name: str) -> str | None:
    """What follows `listener.name.<listener>.`, or None for a key without that prefix."""
    if not name.startswith(_LISTENER_PREFIX):
        return None
    _, dot, base = name.removeprefix(_LISTENER_PREFIX).partition(".")
    return base if dot else None


def synonyms_of(name: str, *, with_listener_base: bool = True) -> tuple[str, ...]:
    """The names whose values stand in for this one, itself included, strongest first."""
    if name in _SYNONYMS_OF:
        return _SYNONYMS_OF[name]
    if with_listener_base and (base := listener_base_name(name)) is not None:
        return name, _without_mechanism(base)
    return (name,)


def is_per_broker(name: str) -> bool:
    """Whether the key cannot be changed for the whole cluster at once."""
    definition = broker_definitions().get(name)
    if definition is not None:
        return definition.scope is Scope.PER_BROKER
    base = listener_base_name(name)
    return base is not None and base not in _CLUSTER_LEVEL_LISTENER_KEYS


def unknown_broker_config(name: str, value: str | None) -> InvalidConfig:
    hint = suggestion(name, [*broker_definitions(), *authorizer_definitions(), *own_definitions()])
    what = hint or "The names are those of Kafka 4.3's broker settings."
    shown = "[hidden]" if any(word in f"{name} {value}".lower() for word in _SECRET_WORDS) else value
    return InvalidConfig(f"Unknown broker config name: {name} (value {shown}). {what}", name, shown)


def suggestion(name: str, known: Iterable[str]) -> str:
    """`Did you mean …?` for a name that is nearly right, or nothing."""
    import difflib

    close = difflib.get_close_matches(name.strip().lower().replace("_", "."), list(known), n=3, cutoff=0.75)
    return f"Did you mean {' or '.join(close)}?" if close else ""
