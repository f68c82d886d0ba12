"""What a writer is told, and what it refuses before anything runs."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from moldau.spark.options import OptionError
from moldau.spark.sink import make_batch_writer, make_stream_writer
from moldau.spark.sink_columns import check_columns
from moldau.spark.sink_options import Delivery, sink_options

HERE = {"kafka.bootstrap.servers": "127.0.0.1:1"}
PAIR = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
VALUE = StructType([StructField("value", StringType())])


def schema(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


def test_the_defaults_are_those_of_javas_producer_in_spark() -> None:
    options = sink_options(HERE)
    assert options.delivery is Delivery.AT_LEAST_ONCE
    assert options.topic is None
    assert options.producer["partitioner"] == "murmur2_random"
    assert options.producer["enable.idempotence"] == "true"
    assert options.producer["delivery.timeout.ms"] == "300000", "as long as an outage may last"


def test_names_are_taken_in_any_case_and_javas_names_are_translated() -> None:
    options = sink_options(
        {
            "Kafka.Bootstrap.Servers": "b:9092",
            "TOPIC": "Orders",
            "Delivery": "Exactly-Once",
            "transactionalidprefix": "p",
            "kafka.buffer.memory": "33554432",
            "kafka.max.request.size": "2000000",
            "kafka.compression.type": "zstd",
            "kafka.compression.zstd.level": "5",
            "kafka.transaction.timeout.ms": "1234",
            "kafka.max.block.ms": "77",
        }
    )
    assert options.topic == "Orders"
    assert options.delivery is Delivery.EXACTLY_ONCE
    assert options.transactional_id_prefix == "p"
    assert (options.transaction_timeout_ms, options.max_block_ms) == (1234, 77)
    chosen = {name: options.producer[name] for name in ("message.max.bytes", "compression.type", "compression.level")}
    assert chosen == {"message.max.bytes": "2000000", "compression.type": "zstd", "compression.level": "5"}
    assert options.producer["queue.buffering.max.kbytes"] == "32768"
    assert options.producer["bootstrap.servers"] == "b:9092"
    assert not {"transaction.timeout.ms", "max.block.ms", "buffer.memory"} & options.producer.keys()
    assert pickle.loads(pickle.dumps(options)) == options


def test_security_goes_to_every_client_the_sink_makes() -> None:
    options = sink_options(
        {
            **HERE,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": 'x required username="u" password="p\\"w";',
        }
    )
    for settings in (options.producer, options.connection):
        assert settings["sasl.username"] == "u"
        assert settings["sasl.password"] == 'p"w'
        assert settings["security.protocol"] == "SASL_PLAINTEXT"
    assert "partitioner" not in options.connection


@pytest.mark.parametrize(
    ("option", "idempotent"),
    [({"kafka.acks": "1"}, "false"), ({"kafka.retries": "0"}, "false"), ({"kafka.acks": "all"}, "true")],
)
def test_idempotence_gives_way_to_what_was_set_on_purpose(option: dict[str, str], idempotent: str) -> None:
    assert sink_options(HERE | option).producer["enable.idempotence"] == idempotent


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "t"}, r"kafka\.bootstrap\.servers"),
        (HERE | {"delivery": "twice"}, "at-least-once or exactly-once"),
        (HERE | {"delivry": "exactly-once"}, "did you mean 'delivery'"),
        (HERE | {"kafka.key.serializer": "x"}, "cast the column"),
        (HERE | {"kafka.transactional.id": "x"}, "transactionalIdPrefix"),
        (HERE | {"kafka.partitioner.class": "x"}, "partition column"),
        (HERE | {"transactionalIdPrefix": "p"}, "delivery=exactly-once"),
        (HERE | {"delivery": "exactly-once", "batchId": "3"}, "transactionalIdPrefix"),
        (HERE | {"delivery": "exactly-once", "batchId": "-3", "transactionalIdPrefix": "p"}, "0 or more"),
        (HERE | {"delivery": "exactly-once", "kafka.acks": "1"}, "contradicts exactly-once"),
        (HERE | {"delivery": "exactly-once", "kafka.enable.idempotence": "false"}, "contradicts exactly-once"),
        (HERE | {"kafka.buffer.memory": "many"}, "whole number"),
    ],
)
def test_bad_options_are_refused_with_the_fix(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        sink_options(options)


def test_a_property_librdkafka_does_not_know_is_refused_on_the_driver() -> None:
    with pytest.raises(ValueError, match=r"no\.such\.thing"):
        make_stream_writer(HERE | {"topic": "t", "kafka.no.such.thing": "1"}, VALUE, False)


def test_overwriting_is_refused() -> None:
    with pytest.raises(OptionError, match="append"):
        make_batch_writer(HERE | {"topic": "t"}, VALUE, True)


def test_a_named_batch_write_needs_its_number_and_a_stream_numbers_itself() -> None:
    named = HERE | {"topic": "t", "delivery": "exactly-once", "transactionalIdPrefix": "p"}
    with pytest.raises(OptionError, match="batchId"):
        make_batch_writer(named, VALUE, False)
    with pytest.raises(OptionError, match="batchId"):
        make_stream_writer(named | {"batchId": "3"}, VALUE, False)
    make_stream_writer(named, VALUE, False)


@pytest.mark.parametrize(
    ("columns", "topic"),
    [
        (schema(value=StringType()), "t"),
        (schema(value=BinaryType(), key=BinaryType(), topic=StringType()), None),
        (schema(value=BinaryType(), key=StringType(), headers=ArrayType(PAIR), partition=IntegerType()), "t"),
        # What the sink does not read may have any type, and the option goes before the column.
        (schema(value=BinaryType(), offset=LongType(), timestamp=TimestampType(), topic=LongType()), "t"),
    ],
)
def test_columns_that_can_be_written(columns: StructType, topic: str | None) -> None:
    check_columns(columns, topic)


@pytest.mark.parametrize(
    ("columns", "topic", "says"),
    [
        (schema(value=StringType()), None, "topic option required when no 'topic' attribute is present"),
        (schema(key=StringType()), "t", "Required attribute 'value' not found"),
        (schema(Value=StringType()), "t", "Required attribute 'value' not found"),
        (
            schema(value=LongType()),
            "t",
            r"value attribute unsupported type bigint. value must be a\(n\) string or binary",
        ),
        (schema(value=StringType(), key=DoubleType()), "t", "key attribute unsupported type double"),
        (schema(value=StringType(), partition=LongType()), "t", r"partition must be a\(n\) int"),
        (schema(value=StringType(), topic=BinaryType()), None, "topic attribute unsupported type binary"),
        (schema(value=StringType(), headers=ArrayType(StringType())), "t", "headers attribute unsupported type"),
        (schema(value=StringType(), headers=PAIR), "t", r"array<struct<key:string,value:binary>>"),
    ],
)
def test_columns_that_cannot_be_written(columns: StructType, topic: str | None, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_columns(columns, topic)


def test_exactly_once_in_foreach_batch_refuses_adaptive_streaming() -> None:
    """There the tasks are those of the streaming query too, and nobody else asks."""
    from moldau.spark.sink import foreach_batch

    written: list[str] = []
    saved = SimpleNamespace(save=lambda: written.append("rows"))
    writer = SimpleNamespace(options=lambda **_: SimpleNamespace(mode=lambda _: saved))
    options = {"kafka.bootstrap.servers": "h:1", "topic": "t"}

    def write(delivery: str, setting: str | None) -> None:
        session = SimpleNamespace(conf=SimpleNamespace(get=lambda key, default: setting or default))
        rows: Any = SimpleNamespace(sparkSession=session, write=SimpleNamespace(format=lambda _: writer))
        prefix = {"transactionalIdPrefix": "p"} if delivery == "exactly-once" else {}
        foreach_batch({**options, **prefix, "delivery": delivery})(rows, 3)

    with pytest.raises(OptionError, match=r"exactly-once needs spark\.sql\.adaptive\.streaming\.stateless"):
        write("exactly-once", "true")
    assert not written
    write("exactly-once", "false")
    write("at-least-once", "true")
    assert written == ["rows", "rows"]


def test_exactly_once_refuses_adaptive_streaming() -> None:
    """Spark 4.3 turns it on by default, and tasks see a setting only if it was set."""
    from moldau.spark.sink import refuse_adaptive

    for setting, version in ((None, "4.3.0"), ("true", "4.3.0"), ("TRUE", "4.2.0")):
        with pytest.raises(
            OptionError, match=r"exactly-once needs spark\.sql\.adaptive\.streaming\.stateless\.enabled=false"
        ):
            refuse_adaptive(setting, version)
    refuse_adaptive("false", "4.3.0")
    refuse_adaptive(None, "4.2.1")


def test_the_source_plans_without_numpy_and_arrow() -> None:
    """Spark gives a Python worker ten seconds to say hello, and on a busy machine imports are most of that."""
    import subprocess
    import sys

    heavy = {"numpy", "pyarrow", "pandas", "confluent_kafka"}
    code = f"import sys, moldau.spark.stream_source; print(*({heavy} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == ""
