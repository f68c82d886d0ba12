"""The wire room beside kio and kafka-python, in the same run."""

import io
import time
from collections.abc import Callable
from typing import Any

from kafka.protocol.metadata import MetadataResponse as KafkaPythonMetadataResponse
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from benchmarks.rows import Row
from moldau.wire import decode, encode
from moldau.wire import messages as m
from moldau.wire.fetch import decode_fetch_request
from moldau.wire.produce import ProduceOutcome, decode_produce_request, encode_produce_response


def microseconds(action: Callable[[], object], *, seconds: float = 0.4) -> float:
    """The best of several rounds: what the code costs when nothing else disturbs it."""
    action()
    repeats = 1
    while True:
        started = time.perf_counter()
        for _ in range(repeats):
            action()
        took = time.perf_counter() - started
        if took > 0.01:
            break
        repeats *= 4
    best = took / repeats
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        started = time.perf_counter()
        for _ in range(repeats):
            action()
        best = min(best, (time.perf_counter() - started) / repeats)
    return best * 1e6


def _produce_request() -> m.ProduceRequest:
    partition = m.ProduceRequest.PartitionProduceData(0, b"r" * 16_384)
    topic = m.ProduceRequest.TopicProduceData(name="benchmark", partition_data=[partition])
    return m.ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[topic])


def _fetch_request(topics: int, partitions: int) -> m.FetchRequest:
    return m.FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        topics=[
            m.FetchRequest.FetchTopic(
                topic=f"topic-{number}",
                topic_id=bytes([number] * 16),
                partitions=[
                    m.FetchRequest.FetchPartition(index, 3, 123_456, -1, -1, 1 << 20) for index in range(partitions)
                ],
            )
            for number in range(topics)
        ],
    )


def _metadata_response() -> m.MetadataResponse:
    brokers = [m.MetadataResponse.MetadataResponseBroker(node, f"host-{node}", 9092) for node in range(3)]
    topics = [
        m.MetadataResponse.MetadataResponseTopic(
            0,
            f"topic-{number}",
            bytes([number] * 16),
            partitions=[
                m.MetadataResponse.MetadataResponsePartition(0, index, index, 5, [0, 1, 2], [0, 1, 2])
                for index in range(3)
            ],
        )
        for number in range(100)
    ]
    return m.MetadataResponse(brokers=brokers, cluster_id="benchmark", controller_id=1, topics=topics)


def _kio_write(entity_type: Any, data: bytes) -> Callable[[], object]:
    entity, _ = entity_reader(entity_type)(data, 0)
    write = entity_writer(entity_type)
    return lambda: write(io.BytesIO(), entity)


def rows() -> list[Row]:
    produce = encode(_produce_request(), 9)
    produce_view = memoryview(produce)
    read_produce = entity_reader(load_request_schema(0, 9))
    outcome = [("benchmark", [ProduceOutcome(0, 0, 42, -1, 0)])]
    produced = encode_produce_response(9, outcome)
    one_topic, many_topics = (encode(_fetch_request(*shape), 13) for shape in ((1, 50), (50, 1)))
    read_fetch = entity_reader(load_request_schema(1, 13))
    metadata = _metadata_response()
    metadata_bytes = encode(metadata, 12)
    theirs = KafkaPythonMetadataResponse.decode(metadata_bytes, version=12)
    theirs._header = None
    kio_metadata = load_response_schema(3, 12)
    return [
        Row(
            "Produce request, 16 KiB, decode",
            microseconds(lambda: decode_produce_request(produce_view, 0, 9)),
            "us",
            {"kio": microseconds(lambda: read_produce(produce, 0))},
            "<= 3",
            "lower",
        ),
        Row(
            "Produce response, encode",
            microseconds(lambda: encode_produce_response(9, outcome)),
            "us",
            {"kio": microseconds(_kio_write(load_response_schema(0, 9), produced))},
            "<= 1",
            "lower",
        ),
        Row(
            "Fetch request, 1 topic x 50 partitions, decode",
            microseconds(lambda: decode_fetch_request(one_topic, 0, 13)),
            "us",
            {"kio": microseconds(lambda: read_fetch(one_topic, 0))},
            "<= 15",
            "lower",
        ),
        Row(
            "Fetch request, 50 topics x 1 partition, decode",
            microseconds(lambda: decode_fetch_request(many_topics, 0, 13)),
            "us",
            {"kio": microseconds(lambda: read_fetch(many_topics, 0))},
            "",
            "lower",
        ),
        Row(
            "Metadata response, 100 topics x 3 partitions, encode",
            microseconds(lambda: encode(metadata, 12)),
            "us",
            {
                "kio": microseconds(_kio_write(kio_metadata, metadata_bytes)),
                "kafka-python": microseconds(lambda: theirs.encode(version=12)),
            },
            "<= 700",
            "lower",
        ),
        Row(
            "Metadata response, 100 topics x 3 partitions, decode",
            microseconds(lambda: decode(m.MetadataResponse, 12, metadata_bytes)),
            "us",
            {
                "kio": microseconds(lambda: entity_reader(kio_metadata)(metadata_bytes, 0)),
                "kafka-python": microseconds(lambda: KafkaPythonMetadataResponse.decode(metadata_bytes, version=12)),
            },
            "",
            "lower",
        ),
    ]
