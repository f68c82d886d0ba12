"""Rows that leave Spark's sink as columns, on Moldau and on Apache Kafka: in order, once, where Java puts them."""

from collections import Counter

import pyarrow as pa
import pytest

from moldau.records.murmur2 import murmur2
from moldau.spark import column_sender, sink
from moldau.spark.sink_options import sink_options
from tests.interop.apache_kafka import ApacheKafka
from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_topic, read_all

PARTITIONS = 3
ROWS = 2_000
LONG = b"x" * 3_000  # so that a task needs many batches


@pytest.fixture
def bootstrap(request: pytest.FixtureRequest) -> str:
    cluster: BrokerProcess | ApacheKafka = request.getfixturevalue(request.param)
    return cluster.bootstrap_servers


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("bootstrap", ["moldau", "apache_kafka"], indirect=True)
def test_columns_are_read_as_they_were_written(bootstrap: str, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = create_topic(bootstrap, "columns", PARTITIONS)
    options = sink_options({"kafka.bootstrap.servers": bootstrap, "topic": topic, "kafka.compression.type": codec})
    keys = [b"%d" % number for number in range(ROWS)]
    batch = pa.RecordBatch.from_pydict(
        {"key": pa.array(keys, pa.binary()), "value": pa.array([each + LONG for each in keys], pa.binary())}
    )
    monkeypatch.setattr(column_sender, "_BATCH_BYTES_MAX", 500_000)
    monkeypatch.delattr(sink, "Sender")  # librdkafka has no part in it
    assert sink.write_at_least_once(options, iter([batch, batch])).rows == 2 * ROWS
    found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    for message in read_all(bootstrap, topic, PARTITIONS):
        key = bytes(message.key() or b"")
        assert message.value() == key + LONG
        assert message.partition() == (murmur2(key) & 0x7FFFFFFF) % PARTITIONS
        found[message.partition() or 0].append(int(key))
    for numbers in found.values():
        half = len(numbers) // 2
        assert numbers[:half] == numbers[half:] == sorted(set(numbers)), "each batch in its order"
    assert Counter(each for numbers in found.values() for each in numbers) == Counter(range(ROWS)) + Counter(
        range(ROWS)
    )
