"""Topic settings: the table, what they inherit from the broker, and the checks on a topic's own.

A topic's own value counts first; then what the node says, dynamically for this broker, dynamically for all, or in
server.properties; then the default. `SYNONYMS` names the broker setting each inherits from.

Invariant: settings that pass `validate_topic_configs` always give a `TopicSettings`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from moldau.broker.config.broker import BrokerConfig
from moldau.broker.config.definition import Definition, parse_table
from moldau.broker.config.errors import InvalidConfig
from moldau.broker.config.registry import suggestion
from moldau.broker.config.values import ConfigValue

if TYPE_CHECKING:
    from moldau.log.config import LogConfig

TOPIC = """
cleanup.policy list delete {compact,delete} medium cluster
    `delete` drops old segments, `compact` keeps the last record of each key; both may be given, or none.
compression.gzip.level int -1 [1,...,9]|-1 medium cluster
    Level used when `compression.type` is gzip; -1 is the library's default.
compression.lz4.level int 9 [1,...,17] medium cluster
    Level used when `compression.type` is lz4.
compression.type string producer {uncompressed,zstd,lz4,snappy,gzip,producer} medium cluster
    Codec batches are stored with; `producer` keeps what the producer chose.
compression.zstd.level int 3 [-131072,...,22] medium cluster
    Level used when `compression.type` is zstd.
delete.retention.ms long 86400000 [0,...] medium cluster
    How long tombstones stay in a compacted topic.
file.delete.delay.ms long 60000 [0,...] medium cluster
    Wait between taking a file out of the log and deleting it.
flush.messages long 9223372036854775807 [1,...] medium cluster
    Records after which a partition is flushed to disk.
flush.ms long 9223372036854775807 [0,...] medium cluster
    Time after which a partition is flushed to disk.
follower.replication.throttled.replicas list "" throttled medium cluster
    Follower replicas to throttle, `partition:broker`, or `*` for all.
index.interval.bytes int 4096 [0,...] medium cluster
    Bytes of log between two entries of the offset index.
internal.segment.bytes int null - medium cluster internal
    Segment size without the lower bound, for tests.
leader.replication.throttled.replicas list "" throttled medium cluster
    Leader replicas to throttle, `partition:broker`, or `*` for all.
local.retention.bytes long -2 [-2,...] medium cluster
    Bytes kept locally with tiered storage, which Moldau does not have.
local.retention.ms long -2 [-2,...] medium cluster
    Time kept locally with tiered storage, which Moldau does not have.
max.compaction.lag.ms long 9223372036854775807 [1,...] medium cluster
    Longest time a record may stay uncompacted.
max.message.bytes int 1048588 [0,...] medium cluster
    Largest record batch, after compression, the topic accepts.
message.timestamp.after.max.ms long 3600000 [0,...] medium cluster
    How far in the future a producer's timestamp may be.
message.timestamp.before.max.ms long 9223372036854775807 [0,...] medium cluster
    How far in the past a producer's timestamp may be.
message.timestamp.type string CreateTime {CreateTime,LogAppendTime} medium cluster
    Whether records carry the producer's time or the time of the append.
min.cleanable.dirty.ratio double 0.5 [0,...,1] medium cluster
    Share of uncompacted bytes from which a partition is worth compacting.
min.compaction.lag.ms long 0 [0,...] medium cluster
    Time a record stays uncompacted at least.
min.insync.replicas int 1 [1,...] medium cluster
    In-sync replicas an acks=all write needs.
preallocate boolean false - medium cluster
    Reserve the whole segment on disk when it is created.
remote.log.copy.disable boolean false - medium cluster
    Tiered storage, which Moldau does not have.
remote.log.delete.on.disable boolean false - medium cluster
    Tiered storage, which Moldau does not have.
remote.storage.enable boolean false - medium cluster
    Tiered storage, which Moldau does not have: only `false` is accepted.
retention.bytes long -1 - medium cluster
    Bytes a partition keeps; -1 means no limit.
retention.ms long 604800000 [-1,...] medium cluster
    Milliseconds a partition keeps; -1 means for ever.
segment.bytes int 1073741824 [1048576,...] medium cluster
    Size at which a segment is closed.
segment.index.bytes int 10485760 [4,...] medium cluster
    Largest index file; a full one rolls the segment.
segment.jitter.ms long 0 [0,...] medium cluster
    Random part taken off `segment.ms`, so that not all segments roll at once.
segment.ms long 604800000 [1,...] medium cluster
    Milliseconds after which a segment is closed, even if it is not full.
unclean.leader.election.enable boolean false - medium cluster
    Let a replica that is not in sync lead when no other is left, losing records.
"""

SYNONYMS = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}


@dataclass(slots=True, frozen=True)
class TopicSettings:
    """The settings of a topic: those of its logs, and those the replicas and the controller look at."""

    log: "LogConfig"
    min_insync_replicas: int
    unclean_leader_election_enable: bool
    preallocate: bool
    compression_level: int | None
    """The level of the topic's own codec; None where it has none, or no level."""
    leader_throttled_replicas: tuple[str, ...]
    follower_throttled_replicas: tuple[str, ...]


@cache
def topic_definitions() -> dict[str, Definition]:
    return parse_table(TOPIC)


def topic_defaults(broker_values: Mapping[str, ConfigValue], derived: Mapping[str, int]) -> dict[str, ConfigValue]:
    """What a topic without own settings has. `derived` are the times the broker may say in several units."""
    return {
        name: derived[name] if name in derived else broker_values[SYNONYMS[name]] if name in SYNONYMS else known.default
        for name, known in topic_definitions().items()
    }


def topic_values(overrides: Mapping[str, str], broker: BrokerConfig) -> dict[str, ConfigValue]:
    """Every topic setting, parsed. Own settings Kafka does not know are left out, as a newer node may have set them."""
    definitions = topic_definitions()
    values = dict(broker.topic_defaults)
    for name, text in overrides.items():
        if name in definitions:
            values[name] = definitions[name].parse(text)
    return values


def validate_topic_configs(overrides: Mapping[str, str | None], broker: BrokerConfig) -> dict[str, str]:
    """The settings as they may be stored, or InvalidConfig."""
    configs = without_nulls(overrides, "topic")
    for name in configs:
        if name not in topic_definitions():
            hint = suggestion(name, topic_definitions())
            message = f"Unknown topic config name: {name}" + (f". {hint}" if hint else "")
            raise InvalidConfig(message, name, configs[name])
    values = topic_values(configs, broker)
    least, most = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    assert isinstance(least, int)
    assert isinstance(most, int)
    if least > most:
        raise InvalidConfig(
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})",
            "min.compaction.lag.ms",
            str(least),
        )
    if values["remote.storage.enable"]:
        # Word for word what Kafka answers with tiered storage switched off: clients cannot tell the difference.
        raise InvalidConfig(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
            "remote.storage.enable",
            "true",
        )
    return configs


def without_nulls(configs: Mapping[str, str | None], kind: str) -> dict[str, str]:
    """The same settings, or InvalidConfig if one of them has no value."""
    present = {name: value for name, value in configs.items() if value is not None}
    if len(present) < len(configs):
        missing = [name for name in configs if name not in present]
        raise InvalidConfig(f"Null value not supported for {kind} configs: {','.join(missing)}", missing[0])
    return present


def log_config_for(overrides: Mapping[str, str], broker: BrokerConfig) -> "LogConfig":
    """The settings of a topic's logs."""
    return topic_settings_for(overrides, broker).log


def topic_settings_for(overrides: Mapping[str, str], broker: BrokerConfig) -> TopicSettings:
    """All settings of a topic, typed. Topics set up alike share one object, so ten thousand cost as little as one."""
    return _topic_settings(tuple(sorted(overrides.items())), broker)


@lru_cache(maxsize=512)
def _topic_settings(overrides: tuple[tuple[str, str], ...], broker: BrokerConfig) -> TopicSettings:
    values = topic_values(dict(overrides), broker)
    codec = values["compression.type"]
    level = values.get(f"compression.{codec}.level")
    return TopicSettings(
        log=_log_config(values, broker),
        min_insync_replicas=_int(values, "min.insync.replicas"),
        unclean_leader_election_enable=bool(values["unclean.leader.election.enable"]),
        preallocate=bool(values["preallocate"]),
        compression_level=level if isinstance(level, int) else None,
        leader_throttled_replicas=_list(values, "leader.replication.throttled.replicas"),
        follower_throttled_replicas=_list(values, "follower.replication.throttled.replicas"),
    )


def _log_config(values: Mapping[str, ConfigValue], broker: BrokerConfig) -> "LogConfig":
    from moldau.log.config import CompressionType, LogConfig, TimestampType

    ratio = values["min.cleanable.dirty.ratio"]
    assert isinstance(ratio, float)
    internal_segment_bytes = values["internal.segment.bytes"]
    return LogConfig(
        segment_bytes=_int(values, "segment.bytes" if internal_segment_bytes is None else "internal.segment.bytes"),
        segment_ms=_int(values, "segment.ms"),
        segment_jitter_ms=_int(values, "segment.jitter.ms"),
        segment_index_bytes=_int(values, "segment.index.bytes"),
        index_interval_bytes=_int(values, "index.interval.bytes"),
        flush_messages=_int(values, "flush.messages"),
        flush_ms=_int(values, "flush.ms"),
        retention_bytes=_int(values, "retention.bytes"),
        retention_ms=_int(values, "retention.ms"),
        file_delete_delay_ms=_int(values, "file.delete.delay.ms"),
        max_message_bytes=_int(values, "max.message.bytes"),
        cleanup_policy=frozenset(_list(values, "cleanup.policy")),
        min_cleanable_dirty_ratio=ratio,
        min_compaction_lag_ms=_int(values, "min.compaction.lag.ms"),
        max_compaction_lag_ms=_int(values, "max.compaction.lag.ms"),
        delete_retention_ms=_int(values, "delete.retention.ms"),
        compression_type=CompressionType(values["compression.type"]),
        message_timestamp_type=TimestampType(values["message.timestamp.type"]),
        message_timestamp_before_max_ms=_int(values, "message.timestamp.before.max.ms"),
        message_timestamp_after_max_ms=_int(values, "message.timestamp.after.max.ms"),
        producer_id_expiration_ms=broker.get_int("producer.id.expiration.ms"),
        transaction_partition_verification_enable=broker.get_bool("transaction.partition.verification.enable"),
    )


def _int(values: Mapping[str, ConfigValue], name: str) -> int:
    value = values[name]
    assert isinstance(value, int)
    return value


def _list(values: Mapping[str, ConfigValue], name: str) -> tuple[str, ...]:
    value = values[name]
    assert isinstance(value, tuple)
    return value
