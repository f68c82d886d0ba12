"""S3: the folder of a killed Apache Kafka with a compacted topic. Its cleaner leaves gaps between segments, above the
recovery point too; Kafka opens it in full, and so do we."""

from itertools import pairwise
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from moldau.log.checkpoints import RECOVERY_POINT, read_offsets
from moldau.log.dirs.log_dir import WITHOUT_GAPS
from moldau.records import iter_batches
from moldau.seams import RealDisk
from tests.interop.apache_kafka import ApacheKafka
from tests.interop.test_log_folders import (
    MEBIBYTE,
    QUICK_CLEANER,
    committed,
    consume,
    create_topic,
    our_manager,
    wait_for_cleaning,
)


def produce(kafka: ApacheKafka) -> None:
    """Keys that come once, then keys that come again and again: the end of most segments is compacted away."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20, "batch.size": 16_000})
    value = b"v" * 1000
    for number in range(6000):
        key = b"once %d" % number if number % 100 < 20 else b"again %d" % (number % 50)
        producer.produce("compacted", value + b"%d" % number, key, 0)
        if number % 100 == 99:
            producer.flush()
    producer.flush()


def compact(kafka: ApacheKafka) -> None:
    """Only now, so that all of it is cleaned in one round and segment by segment."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    changes = [
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("min.cleanable.dirty.ratio", "0.01", incremental_operation=AlterConfigOpType.SET),
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, "compacted", incremental_configs=changes)
    admin.incremental_alter_configs([resource])[resource].result(30)


def gaps(folder: Path) -> list[tuple[int, int]]:
    """(where a segment ends, where the next begins), where that is not the same."""
    segments = sorted(folder.glob("*.log"))
    found = []
    for segment, following in pairwise(segments):
        data = segment.read_bytes()
        end = max([header.next_offset for _, header in iter_batches(data)], default=int(segment.stem))
        if end != int(following.stem):
            found.append((end, int(following.stem)))
    return found


def test_we_open_the_folder_of_a_killed_apache_kafka_in_full(tmp_path: Path) -> None:
    folder = tmp_path / "compacted-0"
    with ApacheKafka(QUICK_CLEANER, log_dir=tmp_path) as kafka:
        create_topic(kafka, "compacted", segment_bytes=str(MEBIBYTE))
        produce(kafka)
        compact(kafka)
        wait_for_cleaning(folder)
        expected = consume(kafka, "compacted")
        kafka.kill()
        left = gaps(folder)
        assert left
        points = read_offsets(RealDisk(), f"{tmp_path}/{RECOVERY_POINT}")
        assert WITHOUT_GAPS not in points
        assert points.get(("compacted", 0), 0) < left[-1][1]  # otherwise nothing would be recovered
        for _ in range(2):  # and again after we were killed ourselves, with a checkpoint of our own
            manager = our_manager(tmp_path)
            assert committed(manager.logs["compacted", 0]) == expected
            assert WITHOUT_GAPS in read_offsets(RealDisk(), f"{tmp_path}/{RECOVERY_POINT}")
            manager.abandon()
        kafka.start()  # which has no trouble with the checkpoint that we left
        assert consume(kafka, "compacted") == expected
        assert "without-gaps" not in kafka.output(10_000)
