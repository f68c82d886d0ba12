"""What scenarios share: batches with fixed timestamps, and topics that are there when the call returns."""

import time
from typing import Any

from moldau.records import BatchOptions, Codec, build_batch
from moldau.records.reader import RecordTuple
from moldau.wire import messages as m
from tests.interop.differential import Side

# Recent, so that retention does not remove the records in the middle of a scenario, and the same on both sides.
FIRST_TIMESTAMP_MS = int(time.time()) // 60 * 60_000
UNKNOWN_ID = b"\x77" * 16


def batch(values: list[bytes | None], first_timestamp_ms: int = FIRST_TIMESTAMP_MS, **options: Any) -> bytes:
    """One batch, a record per value, keys k0, k1, ..., timestamps 1 ms apart: the same bytes on both sides."""
    records: list[RecordTuple] = [
        (number, first_timestamp_ms + number, b"k%d" % number, value, ((b"h", b"1"),) if number == 0 else ())
        for number, value in enumerate(values)
    ]
    return bytes(build_batch(records, BatchOptions(**options)))


def keyless_batch() -> bytes:
    return bytes(build_batch([(0, FIRST_TIMESTAMP_MS, None, b"v", ())]))


def new_topic(side: Side, name: str, partitions: int = 1, **configs: str) -> bytes:
    """Create it and wait until the broker itself serves it; returns the topic id."""
    topic = m.CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            m.CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    side.ask(m.CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
    served = side.await_answer(f"{name} is known", metadata(name), 12, lambda answer: is_served(answer, partitions))
    # Known is not yet led: a broker answers NOT_LEADER_OR_FOLLOWER until it has made its replicas.
    kind = m.ListOffsetsRequest
    ends = [kind.ListOffsetsPartition(partition_index=number, timestamp=-1) for number in range(partitions)]
    asked = kind(replica_id=-1, topics=[kind.ListOffsetsTopic(name=name, partitions=ends)], timeout_ms=5_000)
    side.await_answer(
        f"{name} is led", asked, 10, lambda answer: not any(p.error_code for p in answer.topics[0].partitions)
    )
    return bytes(served.topics[0].topic_id)


def is_led(answer: Any) -> bool:
    return all(partition.error_code == 0 for partition in answer.topics[0].partitions)


def metadata(*names: str) -> m.MetadataRequest:
    topics = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return m.MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def is_served(answer: Any, partitions: int) -> bool:
    topic = answer.topics[0]
    return topic.error_code == 0 and [p.error_code for p in topic.partitions] == [0] * partitions


def produce(
    topic: str, records: bytes, *, topic_id: bytes = bytes(16), partition: int = 0, acks: int = -1, **fields: Any
) -> m.ProduceRequest:
    data = m.ProduceRequest.PartitionProduceData(index=partition, records=records)
    topic_data = m.ProduceRequest.TopicProduceData(name=topic, topic_id=topic_id, partition_data=[data])
    return m.ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=[topic_data], **fields)


def fetch(topic: str, topic_id: bytes, offset: int = 0, partition: int = 0, **fields: Any) -> m.FetchRequest:
    """A plain consumer's fetch of one partition, without a session; `fields` may name those of the partition too."""
    names = m.FetchRequest.FetchPartition.__slots__
    own = {name: fields.pop(name) for name in list(fields) if name in names}
    wanted = m.FetchRequest.FetchPartition(
        **{
            "partition": partition,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }
        | own
    )
    defaults = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 50 << 20, "session_epoch": -1, "replica_id": -1}
    topics = [m.FetchRequest.FetchTopic(topic=topic, topic_id=topic_id, partitions=[wanted])]
    return m.FetchRequest(topics=topics, **(defaults | fields))


CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
