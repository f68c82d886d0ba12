"""S1, S3: data folders go both ways. Apache Kafka's dump tool finds nothing wrong in ours, and its broker opens them;
our log opens what its broker wrote and returns the same records."""

import random
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from moldau.log import AppendOrigin, LogConfig, LogContext, LogManager, PartitionLog, open_log
from moldau.log.cleaner.cleanable import log_to_clean
from moldau.log.cleaner.cleaner import CleanJob
from moldau.log.segment import Segment
from moldau.records import (
    BatchOptions,
    Codec,
    EndTransactionMarker,
    build_batch,
    build_end_transaction_marker,
    iter_batches,
    iter_records,
)
from moldau.records.reader import RecordTuple
from moldau.seams import RealDisk, SystemClock, SystemRandom
from tests.interop.apache_kafka import ApacheKafka, run_tool

NOW_MS = time.time_ns() // 1_000_000
MEBIBYTE = 1 << 20
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TROUBLE = ("mismatch", "Mismatch", "out of order", "not valid", "isvalid: false", "Error", "Exception", "corrupt")


@dataclass(frozen=True)
class Seen:
    """A record as a consumer sees it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


# -- our side


def write_log(log: PartitionLog, first: int = 0, leader_epoch: int = 0) -> None:
    """Every kind of batch there is: codecs, headers, null keys and values, transactions of both outcomes."""
    for number in range(first, first + 120):
        codec = Codec(number % 5)
        records: list[RecordTuple] = [
            (index, NOW_MS + number, b"key %d" % (number % 11), b"value %d.%d " % (number, index) * 20, ())
            for index in range(number % 4 + 1)
        ]
        if number % 10 == 3:
            records.append((len(records), NOW_MS + number, b"key %d" % (number % 11), None, ()))
        if number % 10 == 7:
            records.append(
                (len(records), NOW_MS + number, b"with headers", b"x", ((b"name", b"value"), (b"null", None)))
            )
        log.append_as_leader(build_batch(records, BatchOptions(codec=codec)), leader_epoch)
        if number % 15 == 0:
            write_transaction(log, number, leader_epoch)
    log.update_high_watermark(log.log_end_offset)


def write_transaction(log: PartitionLog, number: int, leader_epoch: int) -> None:
    producer = 1000 + number % 3
    known = log.producers.producers.get(producer)
    sequence = known.last_sequence + 1 if known is not None else 0
    options = BatchOptions(producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True)
    value = b"transaction %d" % number
    log.append_as_leader(build_batch([(0, NOW_MS + number, b"txn", value, ())], options), leader_epoch)
    marker = EndTransactionMarker(number % 2 == 0, 0)
    data = build_end_transaction_marker(marker, producer_id=producer, producer_epoch=0, timestamp_ms=NOW_MS + number)
    log.append_as_leader(data, leader_epoch, AppendOrigin.COORDINATOR)


def committed(log: PartitionLog) -> list[Seen]:
    """What a read_committed consumer makes of a log: the protocol's rule, applied to `read` and the aborted index."""
    seen: list[Seen] = []
    offset = log.log_start_offset
    while offset < log.last_stable_offset:
        info = log.read(offset, MEBIBYTE, upper_bound_offset=log.last_stable_offset)
        if info.region is None:
            break
        data = info.region.read()
        aborted = sorted(log.aborted_transactions(offset, log.last_stable_offset), key=lambda txn: txn.first_offset)
        open_aborts: set[int] = set()
        for position, header in iter_batches(data):
            while aborted and aborted[0].first_offset <= header.last_offset:
                open_aborts.add(aborted.pop(0).producer_id)
            offset = header.next_offset
            if header.is_control:
                open_aborts.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in open_aborts):
                for record in iter_records(data, position, header):
                    headers = tuple((key.decode(), value) for key, value in record.headers)
                    seen.append(Seen(record.offset, record.timestamp, record.key, record.value, headers))
    return seen


def our_manager(path: Path, config: LogConfig | None = None) -> LogManager:
    manager = LogManager(
        [str(path)],
        disk=RealDisk(),
        clock=SystemClock(),
        random=SystemRandom(),
        config_for=lambda topic: config or LogConfig(segment_bytes=MEBIBYTE),
    )
    manager.open()
    for log in manager.logs.values():
        log.update_high_watermark(log.log_end_offset)
    return manager


# -- their side


def dump(*files: Path, options: tuple[str, ...] = ()) -> str:
    output = run_tool("kafka-dump-log", "--files", ",".join(map(str, files)), *options).stdout
    assert not [word for word in TROUBLE if word in output], output[-3000:]
    return output


def consume(kafka: ApacheKafka, topic: str, partition: int = 0) -> list[Seen]:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    seen: list[Seen] = []
    try:
        consumer.assign([TopicPartition(topic, partition, confluent_kafka.OFFSET_BEGINNING)])
        while (message := consumer.poll(20)) is not None:
            error = message.error()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                break
            headers: Any = message.headers() or ()
            offset: Any = message.offset()
            seen.append(Seen(offset, message.timestamp()[1], message.key(), message.value(), tuple(headers)))
    finally:
        consumer.close()
    return seen


def produce(kafka: ApacheKafka, topic: str, count: int = 300, size: int = 1500) -> None:
    """Every codec in turn, then transactions that commit and abort."""
    chance = random.Random(3)
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "compression.type": codec, "linger.ms": 20})
        for number in range(count):
            value = b"%s %d " % (codec.encode(), number) + chance.randbytes(size)  # which no codec can make small
            producer.produce(
                topic, value, b"key %d" % (number % 50), 0, timestamp=NOW_MS + number, headers=[("h", b"v")]
            )
        producer.flush()
    for number in range(6):
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"{topic} {number % 2}"}
        producer = Producer(settings)
        producer.init_transactions(30)
        producer.begin_transaction()
        for index in range(20):
            producer.produce(topic, b"transaction %d %d" % (number, index), b"key %d" % index, 0)
        producer.flush()
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def create_topic(kafka: ApacheKafka, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    future = admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic]
    future.result(30)


def offsets_for(kafka: ApacheKafka, topic: str, timestamps: list[int]) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "times"})
    try:
        return {
            timestamp: consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], 20)[0].offset
            for timestamp in timestamps
        }
    finally:
        consumer.close()


def max_timestamp_offset(kafka: ApacheKafka, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    partition = TopicPartition(topic, 0)
    youngest: Any = OffsetSpec
    found = admin.list_offsets({partition: youngest.max_timestamp()})[partition].result(20)
    return int(found.offset)


# -- our folders under Apache Kafka's dump tool


@pytest.fixture(params=["delete", "compact"])
def our_log(request: pytest.FixtureRequest, tmp_path: Path) -> PartitionLog:
    config = LogConfig(segment_bytes=8000, index_interval_bytes=500, cleanup_policy=frozenset({request.param}))
    log = open_log(LogContext(), f"{tmp_path}/ours-0", "ours", 0, config, topic_id=SystemRandom().uuid())
    write_log(log)
    if request.param == "compact":
        assert CleanJob(log_to_clean(log, None, NOW_MS)).run_and_finish()
        write_log(log, 120)
    log.close()
    return log


def test_the_dump_tool_reads_our_segments(our_log: PartitionLog) -> None:
    folder = Path(our_log.folder)
    logs = sorted(folder.glob("*.log"))
    assert len(logs) > 3
    output = dump(*logs, options=("--deep-iteration", "--print-data-log"))
    found = re.findall(r"^\| offset: (\d+) .*", output, re.MULTILINE)
    ours = []
    for segment in our_log.segments:
        for _, header, batch in segment.batches():
            ours += [record.offset for record in iter_records(batch, 0, header)]
    assert list(map(int, found)) == ours
    assert output.count("isvalid: true") == sum(1 for segment in our_log.segments for _ in segment.headers())
    our_log.release()


def test_the_dump_tool_verifies_our_indexes(our_log: PartitionLog) -> None:
    folder = Path(our_log.folder)
    indexes = sorted([*folder.glob("*.index"), *folder.glob("*.timeindex")])
    assert sum(path.stat().st_size for path in indexes) > 100
    output = dump(*indexes)
    assert output.count("offset:") >= sum(segment.offset_index.file.count for segment in our_log.segments)
    dump(*indexes, options=("--verify-index-only",))
    dump(*indexes, options=("--index-sanity-check",))


def test_the_dump_tool_reads_our_transaction_index_and_snapshots(our_log: PartitionLog) -> None:
    folder = Path(our_log.folder)
    output = dump(*sorted(folder.glob("*.txnindex")), *sorted(folder.glob("*.snapshot")))
    aborted = [entry for segment in our_log.segments for entry in segment.txn_index.entries]
    assert aborted
    for entry in aborted:
        assert f"producerId: {entry.producer_id}" in output
        assert f"lastOffset: {entry.last_offset}" in output
    for producer in our_log.producers.active():
        assert f"producerId: {producer.producer_id} producerEpoch: {producer.producer_epoch}" in output


# -- folders going both ways


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exchange")


QUICK_CLEANER = {
    "log.cleaner.backoff.ms": "100",
    "log.retention.check.interval.ms": "100000",
    "log.initial.task.delay.ms": "100",
}


@dataclass
class Written:
    """What Apache Kafka wrote and what it answered before it stopped."""

    seen: dict[str, list[Seen]]
    times: dict[str, dict[int, int]]
    youngest: dict[str, int]


TOPICS = {
    "plain": {"segment_bytes": str(MEBIBYTE)},
    "compacted": {
        "segment_bytes": str(MEBIBYTE),
        "cleanup_policy": "compact",
        "min_cleanable_dirty_ratio": "0.01",
        "delete_retention_ms": "100",
    },
    "stamped": {"segment_bytes": str(MEBIBYTE), "message_timestamp_type": "LogAppendTime"},
}


@pytest.fixture(scope="module")
def written(data_dir: Path) -> Iterator[Written]:
    with ApacheKafka(QUICK_CLEANER, log_dir=data_dir) as kafka:
        for topic, config in TOPICS.items():
            create_topic(kafka, topic, **config)
            produce(kafka, topic)
        wait_for_cleaning(data_dir / "compacted-0")
        asked = [NOW_MS - 1, NOW_MS, *(NOW_MS + number for number in range(0, 300, 23)), NOW_MS + 10_000_000]
        result = Written(
            {topic: consume(kafka, topic) for topic in TOPICS},
            {topic: offsets_for(kafka, topic, asked) for topic in TOPICS},
            {topic: max_timestamp_offset(kafka, topic) for topic in TOPICS},
        )
        kafka.stop()
        yield result


def wait_for_cleaning(folder: Path) -> None:
    """Until everything but the active segment is clean: then nothing changes any more."""
    deadline = time.monotonic() + 60
    checkpoint = folder.parent / "cleaner-offset-checkpoint"
    while time.monotonic() < deadline:
        active = max(int(path.stem) for path in folder.glob("*.log"))
        if active and checkpoint.exists() and f"compacted 0 {active}" in checkpoint.read_text().splitlines():
            return
        time.sleep(0.1)
    raise AssertionError("Apache Kafka did not clean its compacted topic")


@pytest.mark.parametrize("topic", list(TOPICS))
def test_we_read_what_apache_kafka_wrote(written: Written, data_dir: Path, topic: str) -> None:
    manager = our_manager(data_dir)
    try:
        log = manager.logs[(topic, 0)]
        ours = committed(log)
        assert ours == written.seen[topic]
        assert len(ours) > 60
        assert log.topic_id is not None
        for timestamp, expected in written.times[topic].items():
            found = log.offset_for_timestamp(timestamp)
            ours_offset = -1 if found is None else found.offset
            assert ours_offset == first_at_or_after(log, timestamp)
            assert expected == first_in_the_first_young_segment(log, timestamp)
            assert expected == ours_offset or topic == "compacted"
        youngest = log.offset_of_max_timestamp()
        assert youngest is not None
        assert youngest.offset == written.youngest[topic]
    finally:
        manager.close()


def first_in_the_first_young_segment(log: PartitionLog, timestamp: int) -> int:
    """Apache Kafka's way (`UnifiedLog.searchOffsetInLocalLog`): it looks into one segment only, the first that is young
    enough. A segment is as young as its youngest batch, even an emptied one; without a batch, as young as its file
    (`LogSegment.largestTimestamp`). So what the cleaner emptied hides the records behind it: the answer is that there
    are none. That is not what ListOffsets promises: we go on to the next segment, and differ in this one case."""
    young = [segment for segment in log.segments if segment.largest_timestamp >= timestamp]
    return first_record(young[:1], timestamp)


def first_at_or_after(log: PartitionLog, timestamp: int) -> int:
    """The slow and sure way: every record, control records included, as in Apache Kafka."""
    return first_record(log.segments, timestamp)


def first_record(segments: list[Segment], timestamp: int) -> int:
    for segment in segments:
        for _, header, batch in segment.batches():
            for record in iter_records(batch, 0, header):
                if record.timestamp >= timestamp:
                    return record.offset
    return -1


def test_folders_go_back_and_forth(written: Written, data_dir: Path, tmp_path: Path) -> None:
    """We append to what Apache Kafka wrote; it goes on from there; and we again."""
    data_dir = Path(shutil.copytree(data_dir, tmp_path / "copy"))  # the other tests read what was written first
    expected = dict(written.seen)
    for turn in range(2):
        manager = our_manager(data_dir)
        for topic in ("plain", "compacted"):
            log = manager.logs[(topic, 0)]
            write_log(log, 1000 * turn, leader_epoch=max(0, log.epochs.latest))
            expected[topic] = committed(log)
        manager.close()
        with ApacheKafka(QUICK_CLEANER, log_dir=data_dir) as kafka:
            for topic in ("plain", "compacted"):
                seen = consume(kafka, topic)
                assert seen == expected[topic] or (topic == "compacted" and newest(seen) == newest(expected[topic]))
                produce(kafka, topic, count=20)
                expected[topic] = consume(kafka, topic)
            output = kafka.output(10_000)
            assert "corrupt" not in output.lower()
            kafka.stop()
    manager = our_manager(data_dir)
    assert committed(manager.logs[("plain", 0)]) == expected["plain"]
    assert newest(committed(manager.logs[("compacted", 0)])) == newest(expected["compacted"])
    manager.close()


def newest(records: list[Seen]) -> dict[bytes | None, Seen]:
    return {record.key: record for record in records if record.value is not None}


def test_apache_kafka_recovers_what_we_left_in_a_crash(tmp_path: Path) -> None:
    """No clean-shutdown marker, indexes with reserve, a torn batch at the end."""
    with ApacheKafka(log_dir=tmp_path) as kafka:
        create_topic(kafka, "torn", segment_bytes=str(MEBIBYTE))
        kafka.stop()
        manager = our_manager(tmp_path)
        log = manager.logs[("torn", 0)]
        write_log(log)
        expected = committed(log)
        segment = Path(log.active_segment.path(".log"))
        log.release()
        for log_dir in manager.dirs.values():
            log_dir.unlock()
        with segment.open("ab") as file:
            file.write(b"\0" * 8 + b"torn")
        kafka.start()
        assert consume(kafka, "torn") == expected
