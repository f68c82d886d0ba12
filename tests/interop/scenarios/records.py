"""Records: produced, fetched, found by time, deleted; and everything that is refused on the way."""

from moldau.wire import messages as m
from tests.interop.differential import Masks, Side
from tests.interop.scenarios.support import (
    CODECS,
    FIRST_TIMESTAMP_MS,
    UNKNOWN_ID,
    batch,
    fetch,
    keyless_batch,
    new_topic,
    produce,
)


def producing(side: Side) -> None:
    topic_id = new_topic(side, "r-p", 2)
    for version in range(3, 14):
        side.call("produce", produce("r-p", batch([b"a", b"b"]), topic_id=topic_id), version)
    side.call("acks=1", produce("r-p", batch([b"a"]), acks=1), 12)
    side.send(produce("r-p", batch([b"zero"]), acks=0), 12)
    for codec in CODECS:
        side.call(f"codec {codec.name}", produce("r-p", batch([b"x" * 100] * 3, codec=codec)), 12)
    side.call("null value", produce("r-p", batch([None])), 12)
    side.call("two batches", produce("r-p", batch([b"1"]) + batch([b"2"])), 12)
    side.call("no records", produce("r-p", b""), 12)
    side.call("acks=2", produce("r-p", batch([b"a"]), acks=2), 12)
    side.call("no such partition", produce("r-p", batch([b"a"]), partition=9), 12)
    side.call("no such topic", produce("r-none", batch([b"a"])), 12)
    side.call("no such id", produce("", batch([b"a"]), topic_id=UNKNOWN_ID), 13)
    flipped = bytearray(batch([b"abc"]))
    flipped[-1] ^= 1
    side.call("wrong crc", produce("r-p", bytes(flipped)), 12)
    side.call("cut short", produce("r-p", batch([b"abc"])[:-2]), 12)
    old = bytearray(batch([b"abc"]))
    old[16] = 1
    side.call("magic 1", produce("r-p", bytes(old)), 12)
    side.call("too large", produce("r-p", batch([b"x" * 1_100_000])), 12)
    side.call("far in the future", produce("r-p", batch([b"f"], first_timestamp_ms=9_000_000_000_000)), 12)
    side.call("control batch from a client", produce("r-p", batch([b"c"], control=True)), 12)
    side.call("what is there now", fetch("r-p", topic_id), 12)


def producing_to_special_topics(side: Side) -> None:
    stamped = new_topic(side, "r-lat", 1, message_timestamp_type="LogAppendTime")
    side.call("log append time", produce("r-lat", batch([b"a", b"b"])), 12)
    times = Masks(
        presence=("records.batch.base_timestamp", "records.batch.max_timestamp"), ignore=("records.batch.payload",)
    )
    side.call("log append time, fetched", fetch("r-lat", stamped), 12, times)
    new_topic(side, "r-compact", 1, cleanup_policy="compact")
    side.call("no key on a compacted topic", produce("r-compact", keyless_batch()), 12)
    new_topic(side, "r-small", 1, max_message_bytes="200")
    side.call("larger than the topic allows", produce("r-small", batch([b"x" * 300])), 12)
    side.call("small enough", produce("r-small", batch([b"x" * 30])), 12)
    recompressed = new_topic(side, "r-gzip", 1, compression_type="uncompressed")
    for codec in CODECS:
        side.call(f"{codec.name} to uncompressed", produce("r-gzip", batch([b"x" * 50] * 2, codec=codec)), 12)
    side.call("uncompressed, fetched", fetch("r-gzip", recompressed), 12)
    new_topic(side, "r-isr", 1, min_insync_replicas="2")
    side.call("too few in sync, acks=all", produce("r-isr", batch([b"a"])), 12)
    side.call("too few in sync, acks=1", produce("r-isr", batch([b"a"]), acks=1), 12)


def old_timestamps(side: Side) -> None:
    """A record a week (segment.ms) newer than the first of its segment starts another; a fetch ends with a segment."""
    topic_id = new_topic(side, "r-old", 1, retention_ms="-1")
    side.call("years ago", produce("r-old", batch([b"a"], first_timestamp_ms=1_500_000_000_000)), 12)
    side.call("years ago, again", produce("r-old", batch([b"b"], first_timestamp_ms=1_500_000_000_000)), 12)
    side.call("now", produce("r-old", batch([b"c"])), 12)
    for offset in range(3):
        side.call(f"fetch from {offset}", fetch("r-old", topic_id, offset), 17)


def idempotent_producing(side: Side) -> None:
    topic_id = new_topic(side, "r-i")
    request = m.InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    # A young broker may still be waiting for its first block of producer ids.
    init = side.await_answer("first producer id", request, 5, lambda answer: answer.error_code == 0)
    side.call_every("init", request)
    producer = init.producer_id

    def send(label: str, sequence: int, count: int = 2, epoch: int = 0, producer_id: int | None = None) -> None:
        records = batch(
            [b"v"] * count,
            producer_id=producer if producer_id is None else producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        side.call(label, produce("r-i", records), 12)

    send("first", 0)
    send("next", 2)
    send("duplicate of the last", 2)
    send("duplicate of the first", 0)
    send("gap", 9)
    send("next after the refusals", 4)
    for sequence in range(6, 16, 2):
        send("more", sequence)
    send("duplicate too old to be remembered", 0)
    send("newer epoch, wrong sequence", 5, epoch=1)
    send("newer epoch", 0, epoch=1)
    send("older epoch", 16, epoch=0)
    send("unknown producer starting at 5", 5, producer_id=987_654)
    send("no sequence", -1, producer_id=producer)
    side.call("fetched", fetch("r-i", topic_id), 12)
    kind = m.DescribeProducersRequest
    asked = kind(topics=[kind.TopicRequest(name="r-i", partition_indexes=[0, 7])])
    side.call("producers", asked, 0, Masks(unordered=("topics.partitions.active_producers",)))


def fetching(side: Side) -> None:
    topic_id = new_topic(side, "r-f")
    for start in range(3):
        side.ask(produce("r-f", batch([b"v%d" % start] * 5, FIRST_TIMESTAMP_MS + 10 * start)), 12)
    for version in range(4, 19):
        side.call("from 0", fetch("r-f", topic_id), version)
    side.call("from the middle of a batch", fetch("r-f", topic_id, 7), 17)
    side.call("at the end", fetch("r-f", topic_id, 15), 17)
    side.call("beyond the end", fetch("r-f", topic_id, 16), 17)
    side.call("negative", fetch("r-f", topic_id, -5), 17)
    side.call("read committed", fetch("r-f", topic_id, isolation_level=1), 17)
    side.call("one batch at least", fetch("r-f", topic_id, partition_max_bytes=1), 17)
    side.call("one batch at least, in all", fetch("r-f", topic_id, max_bytes=1), 17)
    side.call("no such partition", fetch("r-f", topic_id, partition=3), 17)
    side.call("no such topic", fetch("r-none", bytes(16)), 12)
    side.call("no such id", fetch("", UNKNOWN_ID), 17)
    side.call("this leader epoch", fetch("r-f", topic_id, current_leader_epoch=0), 17)
    side.call("a later leader epoch", fetch("r-f", topic_id, current_leader_epoch=4), 17)
    side.call("diverging epoch", fetch("r-f", topic_id, 5, last_fetched_epoch=3), 17)
    side.call("waits in vain", fetch("r-f", topic_id, 15, max_wait_ms=100, min_bytes=1), 17)


def fetching_in_sessions(side: Side) -> None:
    topic_id = new_topic(side, "r-s", 2)
    side.ask(produce("r-s", batch([b"a"])), 12)
    begun = side.call("begin", fetch("r-s", topic_id, session_epoch=0), 17)
    empty = m.FetchRequest(session_id=begun.session_id, session_epoch=1, max_bytes=1 << 20, topics=[])
    side.call("nothing changed in the request", empty, 17)
    side.call("moved on", fetch("r-s", topic_id, 1, session_id=begun.session_id, session_epoch=2), 17)
    side.ask(produce("r-s", batch([b"b"])), 12)
    side.call("new data", empty.replace(session_epoch=3), 17)
    side.call(
        "added a partition", fetch("r-s", topic_id, 0, partition=1, session_id=begun.session_id, session_epoch=4), 17
    )
    gone = m.FetchRequest.ForgottenTopic(topic="r-s", topic_id=topic_id, partitions=[0])
    side.call("forgot a partition", empty.replace(session_epoch=5, forgotten_topics_data=[gone]), 17)
    side.call("wrong epoch", empty.replace(session_epoch=9), 17)
    side.call("unknown session", empty.replace(session_id=123_456, session_epoch=1), 17)
    side.call("closed", empty.replace(session_epoch=-1), 17)
    side.call("after the close", empty.replace(session_epoch=6), 17)


def listing_offsets(side: Side) -> None:
    topic_id = new_topic(side, "r-o")
    for start in range(3):
        side.ask(produce("r-o", batch([b"v"] * 4, FIRST_TIMESTAMP_MS + 10 * start)), 12)
    kind = m.ListOffsetsRequest

    def ask(
        label: str, timestamp: int, version: int = 10, partition: int = 0, epoch: int = -1, name: str = "r-o"
    ) -> None:
        wanted = kind.ListOffsetsPartition(partition_index=partition, current_leader_epoch=epoch, timestamp=timestamp)
        topics = [kind.ListOffsetsTopic(name=name, partitions=[wanted])]
        side.call(label, kind(replica_id=-1, topics=topics, timeout_ms=5_000), version)

    for version in range(1, 12):
        ask("latest", -1, version)
        ask("earliest", -2, version)
        ask("by time", FIRST_TIMESTAMP_MS + 11, version)
        ask("max timestamp", -3, version)
        ask("earliest local", -4, version)
        ask("latest tiered", -5, version)
        ask("earliest pending upload", -6, version)
    ask("before all", 1)
    ask("between batches", FIRST_TIMESTAMP_MS + 6)
    ask("after all", FIRST_TIMESTAMP_MS + 1_000)
    ask("unknown special", -9)
    ask("no such partition", -1, partition=8)
    ask("no such topic", -1, name="r-none")
    ask("later epoch", -1, epoch=7)
    epochs = m.OffsetForLeaderEpochRequest
    for epoch in (-1, 0, 5):
        one = epochs.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
        request = epochs(replica_id=-1, topics=[epochs.OffsetForLeaderTopic(topic="r-o", partitions=[one])])
        side.call_every(f"end of epoch {epoch}", request)
    deletion = m.DeleteRecordsRequest
    for label, offset in (("some", 5), ("fewer", 2), ("too many", 99), ("all", -1)):
        gone = deletion.DeleteRecordsTopic(
            name="r-o", partitions=[deletion.DeleteRecordsPartition(partition_index=0, offset=offset)]
        )
        side.call(f"delete {label}", deletion(topics=[gone], timeout_ms=5_000), 2)
        ask(f"earliest after delete {label}", -2)
        side.call(f"fetch from 0 after delete {label}", fetch("r-o", topic_id), 17)


SCENARIOS = {
    "producing": producing,
    "producing to special topics": producing_to_special_topics,
    "old timestamps": old_timestamps,
    "idempotent producing": idempotent_producing,
    "fetching": fetching,
    "fetching in sessions": fetching_in_sessions,
    "listing offsets": listing_offsets,
}
