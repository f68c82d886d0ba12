"""Options of source and sink: names and meanings of Spark's own Kafka connector, checked before anything starts.

Names are case-insensitive; what begins with `kafka.` is for the client (`kafka.bootstrap.servers`, security, limits).
Every refusal is an `OptionError` that names the option and says what to write instead.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from moldau.client.cluster import PartitionOffsets, TopicPartition
from moldau.spark.topic_patterns import PatternRefused, topic_pattern

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from moldau.spark.registry.client import RegistrySettings
    from moldau.spark.registry.formats import ReaderSchema

EARLIEST = -2
LATEST = -1
OUTAGE_DEFAULT = "5m"
_KAFKA = "kafka."
_REGISTRY = "schema.registry."
_SOURCE_NAMES = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
    "outage",
    "partition.metadata.cache.ttl.ms",
    "publishProgress",
    "valueFormat",
    "valueMode",
    "schema.subject",
    "schema.message",
    "schema.registry.url",
    "schema.registry.basic.auth.user.info",
    "schema.registry.bearer.auth.token",
)
_BY_LOWER_NAME = {name.lower(): name for name in _SOURCE_NAMES}
# What a consumer of its own would need, and Spark decides: with the reason.
_REFUSED = {
    "auto.offset.reset": "set startingOffsets instead: Spark itself keeps track of what was read",
    "key.deserializer": "keys are always binary: cast or parse the column",
    "value.deserializer": "values are always binary: cast or parse the column",
    "enable.auto.commit": "Spark's checkpoint holds the progress; publishProgress shows it as a consumer group",
    "interceptor.classes": "Java classes cannot be used here",
}
_DURATION = re.compile(r"(-?\d+)\s*(us|ms|s|m|min|h|d)?", re.IGNORECASE)
_UNIT_MS = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class OptionError(ValueError):
    """An option is missing, unknown or not valid; the message names it and says what to write."""


@dataclass(slots=True, frozen=True)
class OffsetLimit:
    """Where to start or end: `kind` says which of the other fields counts."""

    kind: Literal["earliest", "latest", "offsets", "timestamps", "timestamp"]
    by_partition: PartitionOffsets = field(default_factory=dict)  # offsets (-1 latest, -2 earliest) or timestamps in ms
    timestamp_ms: int = 0
    option: str = ""  # for messages


@dataclass(slots=True, frozen=True)
class SourceOptions:
    """Everything a reader needs; picklable, and equal options give equal values."""

    kafka: dict[str, str]  # without the prefix
    assign: frozenset[TopicPartition] | None
    subscribe: frozenset[str] | None
    subscribe_pattern: str | None
    starting: OffsetLimit
    ending: OffsetLimit
    no_match_starts_latest: bool  # startingOffsetsByTimestampStrategy: latest instead of an error
    fail_on_data_loss: bool
    include_headers: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: float
    min_partitions: int | None
    max_records_per_partition: int | None
    poll_timeout_ms: int
    offset_retries: int
    offset_retry_interval_ms: int
    api_timeout_ms: int
    outage_ms: float  # how long brokers that have answered may be away
    metadata_age_ms_max: int
    group_id: str | None  # progress is published here; None: nowhere
    value_reader: "ReaderSchema | None" = None  # values are decoded with it; None: they stay bytes
    fails_on_bad_value: bool = True  # valueMode: FAILFAST, or PERMISSIVE, which gives null

    @property
    def read_committed(self) -> bool:
        return self.kafka.get("isolation.level", "read_uncommitted") == "read_committed"


def lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def kafka_settings(options: Mapping[str, str]) -> dict[str, str]:
    """The client's settings: every option that begins with `kafka.`, without that, in lower case."""
    settings = {name.removeprefix(_KAFKA): value for name, value in lowered(options).items() if name.startswith(_KAFKA)}
    if not settings.get("bootstrap.servers", "").strip():
        raise OptionError("option 'kafka.bootstrap.servers' is missing: give host:port of a broker, or several")
    return settings


def registry_settings(options: Mapping[str, str]) -> "RegistrySettings":
    """From the options `schema.registry.*`; `options` have lower-case names."""
    from moldau.spark.registry.client import RegistrySettings

    own = {name.removeprefix(_REGISTRY): text for name, text in options.items() if name.startswith(_REGISTRY)}
    try:
        return RegistrySettings.parse(own, read_duration_ms(options, "outage", OUTAGE_DEFAULT) / 1000)
    except ValueError as error:
        raise OptionError(f"option '{error}'") from None


def read_format(options: Mapping[str, str], known: tuple[str, ...]) -> str | None:
    """`valueFormat`, if it is set; `options` have lower-case names."""
    found = options.get("valueformat", "").strip().lower()
    if found and found not in known:
        raise OptionError(f"option 'valueFormat' is '{found}': write {', '.join(known)}, or leave it out for bytes")
    return found or None


def ask_value_reader(options: Mapping[str, str]) -> "ReaderSchema | None":
    """The newest schema of the values, from the registry; None if they are to stay bytes."""
    lower = lowered(options)
    found = read_format(lower, ("avro", "json", "protobuf"))
    if found is None:
        return None
    from moldau.spark.registry.client import RegistryError, UnknownSchema
    from moldau.spark.registry.formats import reader_schema

    subject = lower.get("schema.subject") or f"{lower.get('subscribe', '').strip()}-value"
    if subject == "-value" or "," in subject:
        raise OptionError("option 'schema.subject' is missing: name the subject whose newest schema gives the columns")
    message = lower.get("schema.message", "").strip()
    if message and found != "protobuf":
        raise OptionError(f"option 'schema.message' names a message of Protobuf, and 'valueFormat' is '{found}'")
    try:
        return reader_schema(found, registry_settings(lower), subject, message)
    except (RegistryError, UnknownSchema) as error:
        raise OptionError(f"the schema of subject '{subject}' cannot be had: {error}") from None


def source_schema(options: Mapping[str, str], value_type: "DataType | None" = None) -> "StructType":
    """The columns of Spark's own Kafka source; `headers` only if asked for."""
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    fields = [
        StructField("key", BinaryType()),
        StructField("value", value_type or BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if read_bool(lowered(options), "includeHeaders", default=False):
        pair = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        fields.append(StructField("headers", ArrayType(pair)))
    return StructType(fields)


def read_bool(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """An option of true or false; `options` have lower-case names."""
    text = options.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in {"true", "false"}:
        raise OptionError(f"option '{name}' is '{text}': write true or false")
    return text.strip().lower() == "true"


def read_int(options: Mapping[str, str], name: str, *, least: int) -> int | None:
    """A whole number of at least `least`, or None if it is not set; `options` have lower-case names."""
    text = options.get(name.lower())
    if text is None:
        return None
    try:
        number = int(text.strip())
    except ValueError:
        raise OptionError(f"option '{name}' is '{text}': write a whole number") from None
    if number < least:
        raise OptionError(f"option '{name}' is {number}: write {least} or more")
    return number


def read_int_or(options: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    """The same with a default."""
    number = read_int(options, name, least=least)
    return default if number is None else number


def read_duration_ms(options: Mapping[str, str], name: str, default: str) -> float:
    """A time as Spark writes it: `15m`, `30s`, `200ms`; a bare number is in milliseconds."""
    text = options.get(name.lower(), default).strip()
    found = _DURATION.fullmatch(text)
    if found is None or int(found.group(1)) < 0:
        raise OptionError(f"option '{name}' is '{text}': write a time such as 30s, 15m or 200ms")
    return int(found.group(1)) * _UNIT_MS[(found.group(2) or "ms").lower()]


def refuse_misspelt(options: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Options nobody knows are left alone, as Spark leaves them, unless they look like one that is known."""
    for name in options:
        if name not in known and not name.startswith(_KAFKA):
            close = get_close_matches(name, known, n=1, cutoff=0.85)
            if close:
                raise OptionError(f"option '{name}' does not exist: did you mean '{known[close[0]]}'?")


def parse_stream_options(options: Mapping[str, str]) -> SourceOptions:
    """Options of readStream."""
    lower = lowered(options)
    for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
        if name.lower() in lower:
            raise OptionError(f"option '{name}' has no meaning for a stream: leave it out, or use spark.read")
    return _parse(lower, default_start="latest")


def parse_batch_options(options: Mapping[str, str]) -> SourceOptions:
    """Options of read."""
    parsed = _parse(lowered(options), default_start="earliest")
    start, end = parsed.starting, parsed.ending
    if start.kind == "latest" or (start.kind == "offsets" and LATEST in start.by_partition.values()):
        raise OptionError("option 'startingOffsets' can't be latest in a batch query: there would be nothing to read")
    if end.kind == "earliest" or (end.kind == "offsets" and EARLIEST in end.by_partition.values()):
        raise OptionError("option 'endingOffsets' can't be earliest in a batch query: there would be nothing to read")
    if start.kind == end.kind and start.kind in {"offsets", "timestamps"}:
        if start.by_partition.keys() != end.by_partition.keys():
            raise OptionError(
                f"options '{start.option}' and '{end.option}' name different partitions: "
                f"{shown(start.by_partition)} and {shown(end.by_partition)}"
            )
        for partition, first in start.by_partition.items():
            last = end.by_partition[partition]
            if first > last and first >= 0 and last >= 0:
                raise OptionError(
                    f"option '{start.option}' is greater than '{end.option}' for partition "
                    f"{partition[0]}-{partition[1]}: {first} > {last}"
                )
    return parsed


def _parse(options: dict[str, str], default_start: Literal["earliest", "latest"]) -> SourceOptions:
    refuse_misspelt(options, _BY_LOWER_NAME)
    kafka = kafka_settings(options)
    for name, reason in _REFUSED.items():
        if name in kafka:
            raise OptionError(f"option 'kafka.{name}' is not supported: {reason}")
    level = kafka.get("isolation.level", "read_uncommitted")
    if level not in {"read_committed", "read_uncommitted"}:
        raise OptionError(f"option 'kafka.isolation.level' is '{level}': write read_committed or read_uncommitted")
    assign, subscribe, pattern = _parse_topics(options)
    least = read_int(options, "minOffsetsPerTrigger", least=1)
    most = read_int(options, "maxOffsetsPerTrigger", least=1)
    if least is not None and most is not None and least > most:
        raise OptionError(f"option 'minOffsetsPerTrigger' ({least}) is higher than 'maxOffsetsPerTrigger' ({most})")
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if strategy not in {"error", "latest"}:
        raise OptionError(f"option 'startingOffsetsByTimestampStrategy' is '{strategy}': write error or latest")
    metadata_age_ms = read_int(options, "partition.metadata.cache.ttl.ms", least=-1)
    return SourceOptions(
        kafka=kafka,
        assign=assign,
        subscribe=subscribe,
        subscribe_pattern=pattern,
        starting=_parse_limit(options, "starting", default_start),
        ending=_parse_limit(options, "ending", "latest"),
        no_match_starts_latest=strategy == "latest",
        fail_on_data_loss=read_bool(options, "failOnDataLoss", default=True),
        include_headers=read_bool(options, "includeHeaders", default=False),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=read_duration_ms(options, "maxTriggerDelay", "15m"),
        min_partitions=read_int(options, "minPartitions", least=1),
        max_records_per_partition=read_int(options, "maxRecordsPerPartition", least=1),
        poll_timeout_ms=read_int_or(options, "kafkaConsumer.pollTimeoutMs", 120_000, least=1),
        offset_retries=read_int_or(options, "fetchOffset.numRetries", 3, least=1),
        offset_retry_interval_ms=read_int_or(options, "fetchOffset.retryIntervalMs", 1_000, least=0),
        api_timeout_ms=read_int_or(options, "kafka.default.api.timeout.ms", 60_000, least=1),
        outage_ms=read_duration_ms(options, "outage", OUTAGE_DEFAULT),
        metadata_age_ms_max=1_000 if metadata_age_ms is None else max(metadata_age_ms, 0),
        group_id=_group_id(options, kafka),
        fails_on_bad_value=_value_mode(options) == "failfast",
    )


def _value_mode(options: Mapping[str, str]) -> str:
    mode = options.get("valuemode", "failfast").strip().lower()
    if mode not in {"failfast", "permissive"}:
        raise OptionError(f"option 'valueMode' is '{mode}': write FAILFAST, or PERMISSIVE for null")
    return mode


def _parse_topics(
    options: dict[str, str],
) -> tuple[frozenset[TopicPartition] | None, frozenset[str] | None, str | None]:
    given = [name for name in ("assign", "subscribe", "subscribePattern") if name.lower() in options]
    if len(given) != 1:
        found = f"not {' and '.join(given)} together" if given else "none is given"
        raise OptionError(f"exactly one of the options subscribe, subscribePattern and assign must be given: {found}")
    if given == ["assign"]:
        table = _parse_json(options["assign"], "assign", '{"orders":[0,1]}')
        try:
            partitions = frozenset((topic, int(index)) for topic, indexes in table.items() for index in indexes)
        except (TypeError, ValueError):
            raise _bad_json("assign", options["assign"], '{"orders":[0,1]}') from None
        if not partitions:
            raise OptionError("option 'assign' names no partition: write e.g. {\"orders\":[0,1]}")
        return partitions, None, None
    if given == ["subscribe"]:
        topics = frozenset(name.strip() for name in options["subscribe"].split(",") if name.strip())
        if not topics:
            raise OptionError(f"option 'subscribe' is '{options['subscribe']}': name one topic, or several with commas")
        return None, topics, None
    pattern = options["subscribepattern"].strip()
    if not pattern:
        raise OptionError("option 'subscribePattern' is empty: write a regular expression for topic names")
    try:
        topic_pattern(pattern)
    except PatternRefused as error:
        raise OptionError(f"option 'subscribePattern' {error}") from None
    return None, None, pattern


def _parse_limit(options: dict[str, str], side: str, default: Literal["earliest", "latest"]) -> OffsetLimit:
    """Spark's order: one timestamp for all, timestamps by partition, offsets."""
    if (text := options.get(f"{side}timestamp")) is not None:
        number = read_int(options, f"{side}Timestamp", least=0)
        assert number is not None, text
        return OffsetLimit("timestamp", timestamp_ms=number, option=f"{side}Timestamp")
    name = f"{side}OffsetsByTimestamp"
    if (text := options.get(name.lower())) is not None:
        example = '{"orders":{"0":1790000000000}}'
        return OffsetLimit("timestamps", _partition_table(text, name, example, least=0), option=name)
    name = f"{side}Offsets"
    text = options.get(name.lower(), default).strip()
    if text.lower() == "earliest":
        return OffsetLimit("earliest", option=name)
    if text.lower() == "latest":
        return OffsetLimit("latest", option=name)
    example = 'earliest, latest or {"orders":{"0":23,"1":-2}} (-2 earliest, -1 latest)'
    return OffsetLimit("offsets", _partition_table(text, name, example, least=EARLIEST), option=name)


def _partition_table(text: str, name: str, example: str, *, least: int) -> PartitionOffsets:
    table = _parse_json(text, name, example)
    try:
        found = {(topic, int(index)): int(value) for topic, row in table.items() for index, value in row.items()}
    except (AttributeError, TypeError, ValueError):
        raise _bad_json(name, text, example) from None
    if any(value < least or index < 0 for (_, index), value in found.items()):
        raise _bad_json(name, text, example)
    return found


def _parse_json(text: str, name: str, example: str) -> dict[str, Any]:
    try:
        table = json.loads(text)
    except ValueError:
        raise _bad_json(name, text, example) from None
    if not isinstance(table, dict):
        raise _bad_json(name, text, example)
    return table


def _bad_json(name: str, text: str, example: str) -> OptionError:
    return OptionError(f"option '{name}' is '{text}': write {example}")


def _group_id(options: dict[str, str], kafka: dict[str, str]) -> str | None:
    """The group whose offsets show the progress: named by the user, else after what is read."""
    if not read_bool(options, "publishProgress", default=True):
        return None
    if kafka.get("group.id"):
        return kafka["group.id"]
    topics = options.get("subscribe") or options.get("subscribepattern") or options.get("assign", "")
    return f"{options.get('groupidprefix', 'spark')}-{re.sub(r'[^a-zA-Z0-9._-]+', '-', topics).strip('-')}"


def shown(partitions: Any) -> str:
    """Partitions as people write them."""
    return ", ".join(f"{topic}-{index}" for topic, index in sorted(partitions)) or "none"
