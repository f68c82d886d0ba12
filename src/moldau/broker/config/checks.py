"""What must hold between broker settings: Kafka's own cross-checks, told with both keys and both values.

Invariant: these run on every `BrokerConfig`, at start and at every dynamic change.
"""

import re
from itertools import pairwise

from moldau.broker.config.broker import BrokerConfig
from moldau.broker.config.errors import InvalidConfig

SUPPORTED_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_MIB = 1 << 20
_HOST = r"[0-9a-zA-Z\-%._:]*"
# Each setting is at most the next.
_ASCENDING = (
    *(
        (f"group.{kind}.min.{what}", f"group.{kind}.{what}", f"group.{kind}.max.{what}")
        for kind in ("consumer", "share", "streams")
        for what in ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms")
    ),
    *(
        (f"group.share.min.{what}", f"group.share.{what}", f"group.share.max.{what}")
        for what in ("delivery.count.limit", "partition.max.record.locks", "record.lock.duration.ms")
    ),
    ("group.share.max.size", "group.share.max.share.sessions"),
    ("group.streams.num.standby.replicas", "group.streams.max.standby.replicas"),
    ("replica.fetch.wait.max.ms", "replica.socket.timeout.ms"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
)
# The first is smaller than the second.
_SMALLER = tuple(
    (f"group.{kind}.heartbeat.interval.ms", f"group.{kind}.session.timeout.ms")
    for kind in ("consumer", "share", "streams")
)


def check_broker_config(config: BrokerConfig) -> None:
    """Raise InvalidConfig for the first thing that does not fit."""
    if config.get_int("broker.id") != config.node_id:
        raise _invalid(config, "broker.id", f"It must be the same as node.id ({config.node_id}); set only node.id")
    _check_order(config)
    _check_logs(config)
    _check_roles(config)
    if config.is_broker:
        _check_broker_listeners(config)
    _check_early_start_listeners(config)
    _check_sasl(config)
    _check_connections(config)
    _check_groups(config)


def _invalid(config: BrokerConfig, key: str, reason: str) -> InvalidConfig:
    value = config.values[key]
    return InvalidConfig.for_value(key, value, reason)


def _check_order(config: BrokerConfig) -> None:
    for keys in _ASCENDING:
        for key, larger in pairwise(keys):
            if config.get_int(key) > config.get_int(larger):
                raise _invalid(config, key, f"It must be at most {larger} ({config.get_int(larger)})")
    for key, larger in _SMALLER:
        if config.get_int(key) >= config.get_int(larger):
            raise _invalid(config, key, f"It must be less than {larger} ({config.get_int(larger)})")


def _check_logs(config: BrokerConfig) -> None:
    defaults = config.topic_defaults
    for topic_key, key, least in (("segment.ms", "log.roll.ms", 1), ("segment.jitter.ms", "log.roll.jitter.ms", 0)):
        value = defaults[topic_key]
        if isinstance(value, int) and value < least:
            raise InvalidConfig.for_value(key, value, f"Value must be at least {least}")
    if defaults["retention.ms"] == 0:
        raise InvalidConfig.for_value(
            "log.retention.ms", 0, "It must be -1, for no limit, or at least 1; the same goes for minutes and hours"
        )
    least_lag, most_lag = defaults["min.compaction.lag.ms"], defaults["max.compaction.lag.ms"]
    assert isinstance(least_lag, int)
    assert isinstance(most_lag, int)
    if least_lag > most_lag:
        key = "log.cleaner.min.compaction.lag.ms"
        raise _invalid(config, key, f"It must be at most log.cleaner.max.compaction.lag.ms ({most_lag})")
    threads = config.get_int("log.cleaner.threads")
    if threads and config.get_int("log.cleaner.dedupe.buffer.size") // threads <= _MIB:
        raise _invalid(config, "log.cleaner.dedupe.buffer.size", "It must be more than 1 MiB per cleaner thread")
    if not threads:
        raise _invalid(config, "log.cleaner.threads", "Value must be at least 1")
    cordoned = config.get_list("cordoned.log.dirs")
    unknown = [folder for folder in cordoned if folder not in config.log_dirs]
    if "*" in cordoned and len(cordoned) > 1:
        raise _invalid(config, "cordoned.log.dirs", "`*` already means all log dirs: leave the others out")
    if "*" not in cordoned and unknown:
        reason = f"These are not among log.dirs ({', '.join(config.log_dirs)}): {', '.join(unknown)}"
        raise _invalid(config, "cordoned.log.dirs", reason)


def _check_roles(config: BrokerConfig) -> None:
    if config.standalone:
        return
    voter_ids = {voter.id for voter in config.voters}
    if not voter_ids and not config.get_list("controller.quorum.bootstrap.servers"):
        raise _invalid(
            config,
            "controller.quorum.voters",
            "Name the controllers here or in controller.quorum.bootstrap.servers, "
            "or leave out process.roles and all controller.* settings for a node of its own",
        )
    if config.is_controller:
        _check_controller(config, voter_ids)
    else:
        _check_broker_without_controller(config, voter_ids)


def _check_controller(config: BrokerConfig, voter_ids: set[int]) -> None:
    if voter_ids and config.node_id not in voter_ids:
        reason = f"A controller must be one of its voters: node.id {config.node_id} is not in it"
        raise _invalid(config, "controller.quorum.voters", reason)
    listening = {endpoint.listener for endpoint in config.listeners}
    missing = [name for name in config.controller_listener_names if name not in listening]
    if missing:
        reason = f"A controller must listen there: add {', '.join(missing)} to listeners"
        raise _invalid(config, "controller.listener.names", reason)
    if not config.is_broker and config.broker_listeners:
        names = ", ".join(endpoint.listener for endpoint in config.broker_listeners)
        reason = f"With process.roles=controller all listeners must be in controller.listener.names; {names} is not"
        raise _invalid(config, "listeners", reason)


def _check_broker_without_controller(config: BrokerConfig, voter_ids: set[int]) -> None:
    if config.node_id in voter_ids:
        reason = f"node.id {config.node_id} is in it, but process.roles has no controller"
        raise _invalid(config, "controller.quorum.voters", reason)
    if config.controller_listeners:
        names = ", ".join(endpoint.listener for endpoint in config.controller_listeners)
        reason = f"With process.roles=broker the node must not listen there: take {names} out of listeners"
        raise _invalid(config, "controller.listener.names", reason)
    for name in config.controller_listener_names:
        if name not in config.listener_protocols:
            reason = f"{name} has no security protocol: add it to listener.security.protocol.map"
            raise _invalid(config, "controller.listener.names", reason)
    if config.get_bool("controller.quorum.auto.join.enable"):
        raise _invalid(config, "controller.quorum.auto.join.enable", "Only a controller can join the quorum")


def _check_broker_listeners(config: BrokerConfig) -> None:
    advertised = [endpoint.listener for endpoint in config.advertised_listeners]
    if not advertised:
        reason = "A broker needs a listener that is not in controller.listener.names"
        raise _invalid(config, "listeners", reason)
    name = config.inter_broker_listener_name
    if config.values["inter.broker.listener.name"] is not None and "security.inter.broker.protocol" in config.texts:
        raise _invalid(config, "inter.broker.listener.name", "Set either this or security.inter.broker.protocol")
    if name not in advertised:
        key = "inter.broker.listener.name"
        if config.values[key] is None:
            key = "security.inter.broker.protocol"
        if key not in config.texts:  # nobody wrote that: what is told of is what was written
            key = "advertised.listeners" if "advertised.listeners" in config.texts else "listeners"
            there = f"unless told otherwise, and there is none: add inter.broker.listener.name={advertised[0]}"
            raise _invalid(config, key, f"Brokers reach each other through the advertised listener {name} {there}")
        reason = f"Brokers reach each other through the advertised listener {name}: there are {', '.join(advertised)}"
        raise _invalid(config, key, f"{reason}; set inter.broker.listener.name to one of them")
    listening = [endpoint.listener for endpoint in config.listeners]
    unknown = [name for name in advertised if name not in listening]
    if unknown:
        reason = f"The broker does not listen on {', '.join(unknown)}: listeners has {', '.join(listening)}"
        raise _invalid(config, "advertised.listeners", reason)
    told = {endpoint.host for endpoint in config.advertised_listeners}
    of_controllers = any("://0.0.0.0:" in text for text in config.get_list("advertised.listeners"))
    if of_controllers or "0.0.0.0" in told:  # noqa: S104 - refused, not bound
        key = "listeners" if config.values["advertised.listeners"] is None else "advertised.listeners"
        reason = "Clients cannot reach 0.0.0.0: give advertised.listeners an address they can use"
        raise _invalid(config, key, reason)


def _check_early_start_listeners(config: BrokerConfig) -> None:
    known = {endpoint.listener for endpoint in config.listeners} | set(config.controller_listener_names)
    for name in config.get_list("early.start.listeners"):
        if name.upper() not in known:
            raise _invalid(config, "early.start.listeners", f"{name} is not in listeners ({', '.join(sorted(known))})")


def _check_sasl(config: BrokerConfig) -> None:
    for endpoint in config.listeners:
        if not endpoint.uses_sasl:
            continue
        enabled = config.for_listener(endpoint.listener, "sasl.enabled.mechanisms")
        assert isinstance(enabled, tuple)
        unsupported = [mechanism for mechanism in enabled if mechanism not in SUPPORTED_MECHANISMS]
        if unsupported or not enabled:
            raise InvalidConfig.for_value(
                "sasl.enabled.mechanisms",
                enabled,
                f"Listener {endpoint.listener} uses SASL; Moldau has {', '.join(SUPPORTED_MECHANISMS)}",
            )
        mechanism = config.get_str("sasl.mechanism.inter.broker.protocol")
        if endpoint.listener == config.inter_broker_listener_name and mechanism not in enabled:
            reason = f"It must be one of sasl.enabled.mechanisms ({', '.join(enabled)}), as brokers use SASL"
            raise _invalid(config, "sasl.mechanism.inter.broker.protocol", reason)


def _check_connections(config: BrokerConfig) -> None:
    queued, largest = config.get_int("queued.max.request.bytes"), config.get_int("socket.request.max.bytes")
    if 0 < queued < largest:
        raise _invalid(config, "queued.max.request.bytes", f"It must be at least socket.request.max.bytes ({largest})")
    key = "max.connections.per.ip.overrides"
    try:
        overrides = config.max_connections_per_ip_overrides
    except ValueError:
        raise _invalid(config, key, "Write host:count, with a whole number") from None
    if config.get_int("max.connections.per.ip") == 0 and not overrides:
        raise _invalid(config, "max.connections.per.ip", f"It can only be 0 if {key} lets someone in")
    invalid = [host for host in overrides if not re.fullmatch(_HOST, host)]
    if invalid:
        raise _invalid(config, key, f"These are not addresses: {', '.join(invalid)}")
    idle_ms = config.get_int("connections.max.idle.ms")
    if idle_ms >= 0 and config.get_int("connection.failed.authentication.delay.ms") >= idle_ms:
        reason = f"It must be less than connections.max.idle.ms ({idle_ms}), or the answer is never sent"
        raise _invalid(config, "connection.failed.authentication.delay.ms", reason)


def _check_groups(config: BrokerConfig) -> None:
    protocols = "group.coordinator.rebalance.protocols"
    if "classic" not in config.get_list(protocols):
        raise _invalid(config, protocols, "The classic protocol cannot be left out")
    if len(config.get_list("group.share.assignors")) != 1:
        raise _invalid(config, "group.share.assignors", "There must be exactly one")
    for key in ("offsets.topic.compression.codec", "share.coordinator.state.topic.compression.codec"):
        if not 0 <= config.get_int(key) <= 4:
            raise _invalid(config, key, "Codecs are 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd")
