"""What options mean, and that a wrong one is named together with its remedy. No broker, no JVM."""

from typing import Any

import pytest

from moldau.spark.connecting import client_settings
from moldau.spark.options import (
    OffsetLimit,
    OptionError,
    parse_batch_options,
    parse_stream_options,
    read_duration_ms,
    source_schema,
)
from moldau.spark.ranges import RangeToRead, split

BOOTSTRAP = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def test_names_are_case_insensitive_and_defaults_are_sparks() -> None:
    batch = parse_batch_options({"KAFKA.Bootstrap.Servers": "h:1", "SUBSCRIBE": "a, b,,"})
    assert batch.subscribe == frozenset({"a", "b"})
    assert (batch.starting.kind, batch.ending.kind) == ("earliest", "latest")
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert not batch.read_committed
    stream = parse_stream_options(BOOTSTRAP | {"subscribe": "a", "kafka.isolation.level": "read_committed"})
    assert stream.starting.kind == "latest"
    assert stream.read_committed
    assert stream.group_id == "spark-a"


def test_the_columns_are_those_of_sparks_own_source() -> None:
    assert source_schema({}).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert source_schema({"includeheaders": "TRUE"})["headers"].dataType.simpleString() == (
        "array<struct<key:string,value:binary>>"
    )


def test_offsets_by_partition() -> None:
    parsed = parse_batch_options(BOOTSTRAP | {"subscribe": "a", "startingOffsets": '{"a":{"0":23,"1":-2}}'})
    assert parsed.starting == OffsetLimit("offsets", {("a", 0): 23, ("a", 1): -2}, option="startingOffsets")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"exactly one of .* none is given"),
        ({"subscribe": "a", "assign": "{}"}, "not assign and subscribe together"),
        ({"subscribe": " , "}, "option 'subscribe' is"),
        ({"subscribePattern": "("}, "option 'subscribePattern' is no regular expression"),
        ({"subscribePattern": " "}, "option 'subscribePattern' is empty"),
        ({"assign": "a"}, r'option \'assign\' is \'a\': write {"orders"'),
        ({"assign": '{"a":["x"]}'}, "option 'assign'"),
        ({"assign": "{}"}, "option 'assign' names no partition"),
        ({"subscribe": "a", "startingOffset": "latest"}, "did you mean 'startingOffsets'"),
        (
            {"subscribe": "a", "startingOffsets": "first"},
            "option 'startingOffsets' is 'first': write earliest, latest or",
        ),
        ({"subscribe": "a", "startingOffsets": '{"a":{"0":-3}}'}, "option 'startingOffsets'"),
        ({"subscribe": "a", "startingOffsets": '{"a":[1]}'}, "option 'startingOffsets'"),
        ({"subscribe": "a", "startingTimestamp": "noon"}, "option 'startingTimestamp' is 'noon': write a whole number"),
        ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "x"}, "write error or latest"),
        ({"subscribe": "a", "minPartitions": "0"}, "option 'minPartitions' is 0: write 1 or more"),
        ({"subscribe": "a", "failOnDataLoss": "no"}, "option 'failOnDataLoss' is 'no': write true or false"),
        ({"subscribe": "a", "maxTriggerDelay": "soon"}, "option 'maxTriggerDelay' is 'soon'"),
        ({"subscribe": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is higher than"),
        ({"subscribe": "a", "kafka.auto.offset.reset": "earliest"}, "set startingOffsets instead"),
        ({"subscribe": "a", "kafka.value.deserializer": "x"}, "values are always binary"),
        ({"subscribe": "a", "kafka.isolation.level": "x"}, "write read_committed or read_uncommitted"),
        ({"subscribe": "a", "kafka.bootstrap.servers": " "}, "'kafka.bootstrap.servers' is missing"),
    ],
)
@pytest.mark.parametrize("parse", [parse_batch_options, parse_stream_options])
def test_refusals_name_the_option_and_the_remedy(parse: Any, options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse(BOOTSTRAP | options)


def test_what_only_streams_or_only_batches_take() -> None:
    with pytest.raises(OptionError, match="option 'endingOffsets' has no meaning for a stream"):
        parse_stream_options(BOOTSTRAP | {"subscribe": "a", "endingOffsets": "latest"})
    with pytest.raises(OptionError, match="'startingOffsets' can't be latest in a batch"):
        parse_batch_options(BOOTSTRAP | {"subscribe": "a", "startingOffsets": "latest"})
    with pytest.raises(OptionError, match="'startingOffsets' can't be latest in a batch"):
        parse_batch_options(BOOTSTRAP | {"subscribe": "a", "startingOffsets": '{"a":{"0":-1}}'})
    with pytest.raises(OptionError, match="'endingOffsets' can't be earliest in a batch"):
        parse_batch_options(BOOTSTRAP | {"subscribe": "a", "endingOffsets": '{"a":{"0":-2}}'})
    both = {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":4}}'}
    with pytest.raises(OptionError, match="partition a-0: 5 > 4"):
        parse_batch_options(BOOTSTRAP | {"subscribe": "a"} | both)
    with pytest.raises(OptionError, match="name different partitions: a-0 and a-1"):
        parse_batch_options(BOOTSTRAP | {"subscribe": "a"} | both | {"endingOffsets": '{"a":{"1":9}}'})


@pytest.mark.parametrize(
    ("text", "ms"), [("15m", 900_000), ("200 ms", 200), ("30s", 30_000), ("2h", 7_200_000), ("5", 5)]
)
def test_durations(text: str, ms: float) -> None:
    assert read_duration_ms({"delay": text}, "delay", "1s") == ms


def ranges(*sizes: int) -> list[RangeToRead]:
    return [RangeToRead("t", index, 100, 100 + size) for index, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "limits", "expected"),
    [
        ((10, 0, 5), {}, [10, 5]),
        ((10, 5), {"min_partitions": 2}, [10, 5]),
        ((10,), {"min_partitions": 3}, [3, 3, 4]),
        ((100, 1, 1), {"min_partitions": 6}, [25, 25, 25, 25, 1, 1]),
        ((10, 3), {"max_records": 4}, [3, 3, 4, 3]),
        ((2,), {"min_partitions": 5}, [1, 1]),
        ((8, 8), {"max_records": 8, "min_partitions": 4}, [4, 4, 4, 4]),
    ],
)
def test_long_partitions_are_split(sizes: tuple[int, ...], limits: dict[str, int], expected: list[int]) -> None:
    parts = split(ranges(*sizes), **limits)
    assert [part.end - part.start for part in parts] == expected
    for index, size in enumerate(sizes):
        own = [part for part in parts if part.partition == index]
        borders = [part.start for part in own] + [part.end for part in own[-1:]]
        assert [part.end for part in own] == borders[1:]
        assert not own or (borders[0], borders[-1]) == (100, 100 + size)


@pytest.mark.parametrize(
    ("kafka", "message"),
    [
        ({"security.protocol": "TLS"}, "write one of PLAINTEXT, SSL"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "supported are PLAIN, SCRAM-SHA-256"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, "option 'kafka.sasl.username' is missing"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/x.jks"}, "keytool -importkeystore"),
        (
            {"security.protocol": "SSL", "ssl.keystore.location": "/x.p12", "ssl.keystore.type": "PKCS12"},
            "openssl pkcs12",
        ),
    ],
)
def test_security_that_cannot_be_had(kafka: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        client_settings({"bootstrap.servers": "localhost:9092", **kafka})
