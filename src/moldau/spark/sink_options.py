"""What a writer was told, checked before anything runs: option names are Spark's, errors name the option and the fix.

`kafka.*` options go to the producer. Those that only Java's producer knows are translated to librdkafka's names, so
that options taken over from Spark's own Kafka sink mean the same here. The result can be pickled: tasks receive it.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from moldau.client.settings import ClientSettings
from moldau.spark.connecting import client_settings, librdkafka_settings
from moldau.spark.options import (
    OUTAGE_DEFAULT,
    OptionError,
    kafka_settings,
    lowered,
    read_bool,
    read_duration_ms,
    read_format,
    read_int,
    refuse_misspelt,
    registry_settings,
)
from moldau.spark.registry.client import RegistrySettings

_NAMES = (
    "topic",
    "delivery",
    "transactionalIdPrefix",
    "batchId",
    "checkReplay",
    "outage",
    "valueFormat",
    "schema.subject",
    "schema.registry.url",
    "schema.registry.basic.auth.user.info",
    "schema.registry.bearer.auth.token",
    "includeHeaders",
    "checkpointLocation",
)
_BY_LOWER_NAME = {name.lower(): name for name in _NAMES}
# Open transactions hold readers of committed data back, and the brokers' ceiling is 15 minutes unless it was raised.
_TRANSACTION_TIMEOUT_MS = 5 * 60_000

_BLOCK_MS_MIN = 1_000

# What Java's producer does unless told otherwise. murmur2 puts a key where every Java program puts it.
_DEFAULTS: Mapping[str, str] = {
    "partitioner": "murmur2_random",
    "delivery.timeout.ms": "120000",
    "linger.ms": "5",
    "queue.buffering.max.messages": "500000",
    "queue.buffering.max.kbytes": "65536",
}
_JAVA_NAMES: Mapping[str, str] = {
    "max.request.size": "message.max.bytes",
    "message.timeout.ms": "delivery.timeout.ms",
    "compression.gzip.level": "compression.level",
    "compression.lz4.level": "compression.level",
    "compression.zstd.level": "compression.level",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
}
_REFUSED: Mapping[str, str] = {
    "key.serializer": "keys are written as they are; cast the column to string or binary",
    "value.serializer": "values are written as they are; cast the column to string or binary",
    "transactional.id": "the sink makes one for each task; set delivery=exactly-once and transactionalIdPrefix",
    "partitioner.class": "Java classes cannot run here; give a partition column, or set kafka.partitioner to one of "
    "librdkafka's",
    "interceptor.classes": "Java classes cannot run here",
}
_SECURITY = ("security.protocol", "sasl.", "ssl.")


class Delivery(enum.Enum):
    """What a reader of committed records sees of a task that was tried more than once."""

    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


@dataclass(slots=True, frozen=True)
class SinkOptions:
    """Everything a writing task must know besides the columns."""

    topic: str | None
    delivery: Delivery
    producer: Mapping[str, str]  # librdkafka's names
    connection: Mapping[str, str]  # those of them that every kind of client understands
    client: ClientSettings  # the same for our own client
    transactional_id_prefix: str | None
    batch_id: int | None
    transaction_timeout_ms: int
    max_block_ms: int
    value_format: str | None  # avro, json or protobuf: values are structs, written under a schema that is registered
    registry: RegistrySettings | None
    subject: str
    check_replay: bool  # whether a batch that was written and comes again must bring the same rows


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Options as Spark gives them, in any case."""
    given = lowered(options)
    refuse_misspelt(given, _BY_LOWER_NAME)
    kafka = kafka_settings(given)
    delivery = _delivery(given.get("delivery", Delivery.AT_LEAST_ONCE.value))
    prefix = given.get("transactionalidprefix", "").strip() or None
    batch_id = read_int(given, "batchId", least=0)
    if delivery is Delivery.AT_LEAST_ONCE and (prefix is not None or batch_id is not None):
        raise OptionError(
            "options 'transactionalIdPrefix' and 'batchId' belong to exactly-once delivery: "
            "set delivery=exactly-once, or leave them out"
        )
    if batch_id is not None and prefix is None:
        raise OptionError(
            "option 'batchId' needs 'transactionalIdPrefix', a name of this output that stays the same from run to "
            "run: together they recognise a batch that was written before"
        )
    value_format = read_format(given, ("avro", "json", "protobuf"))
    subject = given.get("schema.subject") or f"{given.get('topic', '')}-value"
    if value_format is not None and subject == "-value":
        raise OptionError("option 'schema.subject' is missing: name it, or give the topic as an option")
    transaction_timeout_ms = read_int(given, "kafka.transaction.timeout.ms", least=1) or _TRANSACTION_TIMEOUT_MS
    outage_ms = round(read_duration_ms(given, "outage", OUTAGE_DEFAULT))
    producer = _producer_settings(kafka, delivery, outage_ms)
    if delivery is Delivery.EXACTLY_ONCE:
        # Trying longer than the transaction lasts makes no sense, and librdkafka refuses to.
        producer["delivery.timeout.ms"] = str(min(transaction_timeout_ms, int(producer["delivery.timeout.ms"])))
    connection = librdkafka_settings(kafka)
    if "client.id" in kafka:
        connection["client.id"] = kafka["client.id"]
    return SinkOptions(
        topic=given.get("topic"),
        delivery=delivery,
        producer=producer | connection,
        connection=connection,
        client=client_settings(kafka),
        transactional_id_prefix=prefix,
        batch_id=batch_id,
        transaction_timeout_ms=transaction_timeout_ms,
        max_block_ms=read_int(given, "kafka.max.block.ms", least=1) or max(outage_ms, _BLOCK_MS_MIN),
        value_format=value_format,
        registry=None if value_format is None else registry_settings(given),
        subject=subject,
        check_replay=read_bool(given, "checkReplay", default=True),
    )


def _delivery(text: str) -> Delivery:
    try:
        return Delivery(text.strip().lower().replace("_", "-"))
    except ValueError:
        known = " or ".join(each.value for each in Delivery)
        raise OptionError(f"option 'delivery' is '{text}': write {known}") from None


def _producer_settings(kafka: Mapping[str, str], delivery: Delivery, outage_ms: int) -> dict[str, str]:
    """Records are kept for brokers that are away as long as the outage may last, unless the user says how long."""
    settings = dict(_DEFAULTS)
    settings["delivery.timeout.ms"] = str(max(int(settings["delivery.timeout.ms"]), outage_ms))
    read_int(kafka, "delivery.timeout.ms", least=0)
    for name, value in kafka.items():
        if name in _REFUSED:
            raise OptionError(f"option 'kafka.{name}' is not supported: {_REFUSED[name]}")
        if name == "buffer.memory":
            settings["queue.buffering.max.kbytes"] = str((read_int(kafka, name, least=1024) or 0) // 1024)
        elif name not in ("transaction.timeout.ms", "max.block.ms") and not name.startswith(_SECURITY):
            settings[_JAVA_NAMES.get(name, name)] = value
    acknowledged = settings.get("acks", settings.get("request.required.acks", "all")).strip().lower() in ("all", "-1")
    if delivery is Delivery.EXACTLY_ONCE:
        idempotent = settings.get("enable.idempotence", "true").strip().lower() == "true"
        for name, right in (("acks", acknowledged), ("enable.idempotence", idempotent)):
            if not right:
                raise OptionError(f"option 'kafka.{name}' contradicts exactly-once delivery: leave it out")
    # Java's producer is idempotent unless an option contradicts it that was set on purpose.
    elif "enable.idempotence" not in settings:
        settings["enable.idempotence"] = "true" if acknowledged and settings.get("retries") != "0" else "false"
    return settings
