"""Brokers that go away are waited for, as long as was told, with a word about it; wrong addresses are told soon."""

import threading
import time
from pathlib import Path

import pytest

from moldau.client.connection import BrokerError, Disconnected
from moldau.spark.broker_outage import BrokerPatience
from moldau.spark.pipelines import PipelineError, loads
from moldau.spark.pipelines.reach import require_cluster
from moldau.spark.ranges import DataLost
from moldau.wire import ErrorCode
from tests.spark.fake_registry import running
from tests.spark.reading import batch_reader, rows, send, stream_reader, values
from tests.spark.test_source_stream import EVERYTHING
from tests.support.broker_process import BrokerProcess
from tests.support.clients import create_topic


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def test_brokers_that_have_answered_get_their_time_and_a_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    patience = BrokerPatience(180, first_s=5, clock=clock, pause=clock.pause)

    def ask() -> str:
        if 10 <= clock.now < 110:
            raise Disconnected("cannot connect to 127.0.0.1:1")
        return "answer"

    assert patience.outlast(ask) == "answer"
    clock.now = 10
    assert patience.outlast(ask) == "answer"
    assert clock.now == 110
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4, "at once, and every half a minute"
    assert lines[0] == "waiting for the brokers, 180 s more (option outage): cannot connect to 127.0.0.1:1"


def test_patience_ends_and_what_time_does_not_cure_is_told_at_once() -> None:
    clock = Clock()
    patience = BrokerPatience(180, first_s=5, clock=clock, pause=clock.pause)

    def nobody() -> None:
        raise Disconnected("nobody")

    def unknown() -> None:
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "x")

    with pytest.raises(Disconnected):
        patience.outlast(nobody)
    assert clock.now == 5, "it has never answered"
    patience.outlast(lambda: None)
    with pytest.raises(BrokerError):
        patience.outlast(unknown)
    assert clock.now == 5
    with pytest.raises(Disconnected):
        patience.outlast(nobody)
    assert clock.now == 185


def test_a_query_and_its_tasks_outlast_a_broker_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a client's patience of nothing at all: what waits is the outage."""
    monkeypatch.setattr("moldau.spark.source._PATIENCE_SECONDS_MAX", 0.0)
    monkeypatch.setattr("moldau.spark.stream_source._LATEST_AGE_SECONDS_MAX", 0)
    with BrokerProcess(tmp_path / "data") as broker:
        topic = create_topic(broker.bootstrap_servers)
        send(broker.bootstrap_servers, topic, 3)
        options = {"startingOffsets": "earliest", "kafkaConsumer.pollTimeoutMs": 100, "publishProgress": False}
        reader = stream_reader(broker.bootstrap_servers, subscribe=topic, outage="1m", **options)
        start = reader.initialOffset()
        end = reader.latestOffset(start, EVERYTHING)
        tasks = reader.partitions(start, end)
        broker.kill()
        monkeypatch.setattr(reader._patience, "_pause", lambda _: broker.start())
        assert reader.latestOffset(end, EVERYTHING) == end
        broker.kill()
        found = reader.read(tasks[0])
        threading.Timer(0.5, broker.start).start()
        assert [row["value"] for batch in found for row in batch.to_pylist()] == [b"v0", b"v1", b"v2"]
        reader.stop()
    assert "waiting for the brokers, 60 s more (option outage): " in caplog.text


def test_a_wrong_address_is_told_within_seconds_and_before_spark(bootstrap: str) -> None:
    def pipeline(servers: str, topic: str = "orders") -> str:
        kafka, source = f"kafka: {{bootstrap.servers: '{servers}'}}", f"sources: {{a: {{topic: {topic}}}}}"
        return f"name: x\n{kafka}\n{source}\nsinks: [console: 1]"

    began = time.monotonic()
    with pytest.raises(PipelineError, match=r"x\.yaml:2:1: no broker answers at 127\.0\.0\.1:1: .*refused"):
        require_cluster(loads(pipeline("127.0.0.1:1"), "x.yaml"))
    assert time.monotonic() - began < 5
    with pytest.raises(PipelineError, match=r"x\.yaml:3:.*there is no topic 'orders'"):
        require_cluster(loads(pipeline(bootstrap), "x.yaml"))
    require_cluster(loads(pipeline(bootstrap, create_topic(bootstrap)), "x.yaml"))


def test_a_registry_that_is_not_there_is_told_before_spark(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.spark.registry.client._FIRST_SECONDS", 0.0)
    topic = create_topic(bootstrap)

    def pipeline(url: str, parse: str, sink: str) -> str:
        head = f"name: x\nkafka: {{bootstrap.servers: '{bootstrap}'}}\nregistry: '{url}'\n"
        return f"{head}sources: {{a: {{topic: {topic}, parse: {parse}}}}}\nsinks: [{sink}]"

    reads = ("{format: registry, values: avro}", "console: 1")
    writes = ("{format: text}", "{topic: out, schema: avro}")
    for parts, line in ((reads, 4), (writes, 5)):
        with pytest.raises(
            PipelineError, match=rf"x\.yaml:{line}:.*the registry at http://127\.0\.0\.1:1 does not answer"
        ):
            require_cluster(loads(pipeline("http://127.0.0.1:1", *parts), "x.yaml"))
    with running() as registry:
        require_cluster(loads(pipeline(registry.url, *writes), "x.yaml"))
        with pytest.raises(PipelineError, match=rf"x\.yaml:4:.*the schema of '{topic}-value' cannot be had: 404"):
            require_cluster(loads(pipeline(registry.url, *reads), "x.yaml"))
        registry.add(f"{topic}-value", {"type": "record", "name": "R", "fields": []})
        require_cluster(loads(pipeline(registry.url, *reads), "x.yaml"))
        again = [{"name": "next", "type": ["null", "R"]}]
        registry.add(f"{topic}-value", {"type": "record", "name": "R", "fields": again})
        with pytest.raises(PipelineError, match=rf"x\.yaml:4:.*'{topic}-value' has no columns: .*contains itself"):
            require_cluster(loads(pipeline(registry.url, *reads), "x.yaml"))


def test_an_end_beyond_the_end_gives_what_is_there_or_says_so_at_once(bootstrap: str) -> None:
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 3)
    beyond = f'{{"{topic}":{{"0":1000}}}}'
    lenient = batch_reader(bootstrap, subscribe=topic, endingOffsets=beyond, failOnDataLoss=False)
    began = time.monotonic()
    assert values(rows(lenient, lenient.partitions())) == [b"v0", b"v1", b"v2"]
    with pytest.raises(DataLost, match=rf"'endingOffsets' is 1000 for {topic}-0, which ends at 3"):
        batch_reader(bootstrap, subscribe=topic, endingOffsets=beyond).partitions()
    assert time.monotonic() - began < 10
